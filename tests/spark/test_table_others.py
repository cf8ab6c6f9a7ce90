"""Tables of other programs as targets of jobs on Spark: features that the writer lacks, and constraints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar.errors import SidecarError
from tests.support.delta import require
from tests.support.spark.odd_rows import ingest, land, without_jars

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(("writer", "feature"), [("delta", "invented"), ("deltalake", "rowTracking")])
@pytest.mark.usefixtures("spark")
def test_a_feature_that_the_writer_lacks_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, feature: str
) -> None:
    """The error names it, with exit code 78 and what to do, before anything is read."""
    if writer == "deltalake":
        without_jars(monkeypatch)
    land(tmp_path, 0)
    ingest(tmp_path, format="delta")
    require(tmp_path / "table", 7, feature)
    with pytest.raises(SidecarError, match=feature) as caught:
        ingest(tmp_path, format="delta")
    assert caught.value.exit_code == 78
    assert "DROP FEATURE" in caught.value.hint
