"""A running daemon reads its file again: what applies at once, when all is quiet, and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.reloads import reloads, reloads_killed
from tests.support.kafka import Broker


@pytest.mark.slow
def test_reloads_under_load_lose_and_repeat_nothing(kafka: Broker, tmp_path: Path) -> None:
    """40 times, 5 of them with a mistake in the file, which changes nothing."""
    assert reloads(kafka, tmp_path, 40, 5).exact


@pytest.mark.slow
def test_kills_in_the_midst_of_a_reload_lose_nothing(kafka: Broker, tmp_path: Path) -> None:
    """5 times, with two members on different files."""
    assert reloads_killed(kafka, tmp_path, 5).exact
