"""A table and the checkpoint of its queries belong together: what one does not know is refused, not left out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from sidecar.core.parts import Batch
from sidecar.errors import ConfigError
from tests.support.landing import Sent, part, writer
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


APPENDED = pytest.mark.parametrize("table", ["parquet", "delta", "deltalake"], indirect=True)
"""Tables whose rows are appended: for what does not depend on how a micro-batch is written."""


def count(spark: SparkSession, folder: Path, table: dict[str, Any]) -> int:
    """The rows of the table."""
    return spark.read.format(table["format"]).load(str(folder / "table")).count()


@dataclass(frozen=True)
class Filled:
    """A folder whose table got a micro-batch in each of two runs, and copies of it after each."""

    folder: Path
    copies: Mapping[int, Path]

    def bring_back(self, runs: int, *names: str) -> Path:
        """Let what is called so, or all, be as after so many runs; the folder is given back."""
        for name in names or [path.name for path in self.folder.iterdir()]:
            shutil.rmtree(self.folder / name)
        for name in names or [path.name for path in self.copies[runs].iterdir()]:
            shutil.copytree(self.copies[runs] / name, self.folder / name)
        return self.folder


@pytest.fixture(scope="module")
def all_filled() -> dict[str, Filled]:
    """By kind of table; each is filled once."""
    return {}


@pytest.fixture
def filled(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    table: dict[str, Any],
    all_filled: dict[str, Filled],
) -> Filled:
    """The folder for a table of this kind."""
    form = request.node.callspec.params["table"]
    if form not in all_filled:
        folder, copies = tmp_path_factory.mktemp("filled"), tmp_path_factory.mktemp("copies")
        made = Filled(folder, {run: copies / f"{run}" for run in (1, 2)})
        for run, copy in made.copies.items():
            land(folder, 10 * (run - 1))
            ingest(folder, **table)
            shutil.copytree(folder, copy)
        all_filled[form] = made
    forget_tables(spark)
    return all_filled[form]


def test_an_older_copy_of_the_checkpoint_is_refused(spark: SparkSession, filled: Filled, table: dict[str, Any]) -> None:
    """The micro-batches that it has not begun would be left out, though they are to have other rows."""
    folder = filled.bring_back(2)
    before = count(spark, folder, table)
    filled.bring_back(1, "checkpoint")
    land(folder, 20)
    with pytest.raises(
        ConfigError, match=r"has micro-batches up to number 1, and the checkpoint .* up to 0"
    ) as refused:
        ingest(folder, **table)
    assert "Bring back the checkpoint that filled it" in refused.value.hint
    assert count(spark, folder, table) == before


@APPENDED
def test_an_older_copy_of_the_table_is_refused(filled: Filled, table: dict[str, Any]) -> None:
    """It would lack the rows of the micro-batches that its checkpoint has put into it since."""
    folder = filled.bring_back(2)
    filled.bring_back(1, "table")
    with pytest.raises(ConfigError, match=r"has micro-batches up to number 0 of the checkpoint .* up to number 1 into"):
        ingest(folder, **table)


@APPENDED
def test_a_new_checkpoint_does_not_append_all_again(spark: SparkSession, filled: Filled, table: dict[str, Any]) -> None:
    """Not unless it is said what to do with the rows that are there."""
    folder = filled.bring_back(1)
    before = count(spark, folder, table)
    (folder / "checkpoint").rename(folder / "earlier")
    with pytest.raises(ConfigError, match=r"another one filled it|is new: all of them would be appended again"):
        ingest(folder, **table)
    assert count(spark, folder, table) == before


@pytest.mark.parametrize("table", ["delta", "deltalake", "deltalake merged"], indirect=True)
def test_a_new_checkpoint_goes_on_where_the_table_ends(
    spark: SparkSession, tmp_path: Path, table: dict[str, Any]
) -> None:
    """Table and rejects have each row once, also those that came in between, and after the next start."""
    table |= {"schema": "id bigint, tag string", "resume": "from_table"}
    for first in (0, 10, 20, 30):
        land_with_rejects(tmp_path, first)
        if first in (10, 20):
            shutil.rmtree(tmp_path / "checkpoint")
        ingest(tmp_path, **table)
    wanted = sorted(first + number for first in (0, 10, 20, 30) for number in range(6))
    assert offsets(spark, tmp_path / "table") == [offset for offset in wanted if offset % 10 < 5]
    assert offsets(spark, tmp_path / "table-rejects") == [offset for offset in wanted if offset % 10 == 5]


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_rows_beside_those_that_are_there_must_be_asked_for(
    spark: SparkSession, filled: Filled, table: dict[str, Any]
) -> None:
    """For example, because the earlier ones were deleted."""
    folder = filled.bring_back(1)
    before = count(spark, folder, table)
    shutil.rmtree(folder / "checkpoint")
    shutil.rmtree(folder / "zone" / "ack")
    ingest(folder, **table, resume="beside")
    assert count(spark, folder, table) == 2 * before


@pytest.mark.parametrize("kind", ["delta", "deltalake"])
def test_places_outlive_the_log_and_a_restore(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Checkpoints of the log, its clean-up, OPTIMIZE, VACUUM and RESTORE: an older checkpoint is refused after all."""
    if kind == "deltalake":
        without_jars(monkeypatch)
    path = tmp_path / "table"
    made = {"format": "delta", "resume": "from_table"}
    for first in (0, 10, 20):
        land(tmp_path, first)
        ingest(tmp_path, **made)
        if not first:
            shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    wear(path)
    shutil.move(tmp_path / "checkpoint", tmp_path / "last")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    forget_tables(spark)
    with pytest.raises(ConfigError, match=r"has micro-batches up to number 2, and the checkpoint .* up to 0"):
        ingest(tmp_path, **made)
    shutil.rmtree(tmp_path / "checkpoint")
    land(tmp_path, 30)
    ingest(tmp_path, **made)
    assert offsets(spark, path) == [*range(6), *range(10, 16), *range(30, 36)]  # the restore took those from 20 on


def wear(path: Path) -> None:
    """All that removes commits from the log of a table; at the end, the last micro-batch is taken back."""
    table = DeltaTable(path)
    last = table.version()
    table.optimize.compact()
    table.restore(last - 1)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"}, raise_if_not_exists=False)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert not (path / "_delta_log" / f"{last:020}.json").exists(), "the log was not cleaned up"


def land_with_rejects(folder: Path, first: int) -> None:
    """Land five messages of JSON, and one that is none."""
    zone = writer(folder / "zone", f"w{first}")
    rows = [Sent(first + i, b"k%d" % (first + i), b'{"id": %d}' % (first + i) if i < 5 else b"no") for i in range(6)]
    zone.land(Batch(1, "", [part(rows, "")]))
    zone.close()


def offsets(spark: SparkSession, path: Path) -> list[int]:
    """The offsets of the rows of a table of Delta."""
    return sorted(row["offset"] for row in spark.read.format("delta").load(str(path)).select("offset").collect())


def forget_tables(spark: SparkSession) -> None:
    """Let Spark's Delta read the logs of all tables again, as another process does."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_a_table_that_is_gone_is_refused(filled: Filled, table: dict[str, Any]) -> None:
    """A share that is not mounted is an empty folder: a new table in it would lack all earlier rows."""
    folder = filled.bring_back(1)
    shutil.rmtree(folder / "table")
    (folder / "table").mkdir()
    land(folder, 10)
    with pytest.raises(ConfigError, match=r"is not there, and the checkpoint .* up to number 0 into it"):
        ingest(folder, **table)
    assert list((folder / "table").iterdir()) == []
