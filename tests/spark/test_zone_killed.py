"""From two writers through a zone into a table: writers and query killed, files and lines damaged, every row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.spark_zone import damaged, killed


@pytest.mark.proof
@pytest.mark.timeout(600)  # two JVMs, one after the other
def test_writers_and_query_killed(tmp_path: Path) -> None:
    """Two writers and the query end at any point, batches come again and from another writer: each row once, whole."""
    assert killed(tmp_path, 10_000, 1, 1_000).exact


@pytest.mark.proof
@pytest.mark.timeout(600)  # two JVMs
def test_a_damaged_zone_gives_no_wrong_row(tmp_path: Path) -> None:
    """Half files, orphans, torn and flipped lines: the table has all that is whole, and each damage is said once."""
    assert damaged(tmp_path, 50, 5).exact
