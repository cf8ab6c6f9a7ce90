"""A table and the checkpoint of its queries belong together: what one does not know is refused, not left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.errors import ConfigError
from tests.support.spark.odd_rows import ingest, land, without_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = ["parquet", "delta", "deltalake", "delta merged", "deltalake merged"]


@pytest.fixture(params=FORMS)
def table(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a table of each kind."""
    kind, *merged = request.param.split()
    if kind == "deltalake":
        without_jars(monkeypatch)
    found: dict[str, Any] = {"format": "parquet" if kind == "parquet" else "delta"}
    if merged:
        found |= {"schema": "id bigint, tag string", "merge": {"key": "$.id"}}
    return found


def count(spark: SparkSession, folder: Path, table: dict[str, Any]) -> int:
    """The rows of the table."""
    return spark.read.format(table["format"]).load(str(folder / "table")).count()


def test_an_older_copy_of_the_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, table: dict[str, Any]) -> None:
    """The micro-batches that it has not begun would be left out, though they are to have other rows."""
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    land(tmp_path, 10)
    ingest(tmp_path, **table)
    before = count(spark, tmp_path, table)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    land(tmp_path, 20)
    with pytest.raises(
        ConfigError, match=r"has micro-batches up to number 1, and the checkpoint .* up to 0"
    ) as refused:
        ingest(tmp_path, **table)
    assert "Bring back the checkpoint that filled it" in refused.value.hint
    assert count(spark, tmp_path, table) == before


def test_a_table_that_is_gone_is_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    """A share that is not mounted is an empty folder: a new table in it would lack all earlier rows."""
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table").mkdir()
    land(tmp_path, 10)
    with pytest.raises(ConfigError, match=r"is not there, and the checkpoint .* up to number 0 into it"):
        ingest(tmp_path, **table)
    assert list((tmp_path / "table").iterdir()) == []
