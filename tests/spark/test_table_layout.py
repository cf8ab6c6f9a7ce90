"""Partitions, columns, properties, clusters and maintenance of tables that Spark fills, and how they may change."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812
from structlog.testing import capture_logs

from sidecar.errors import ConfigError
from sidecar.sinks.table.layout import Column
from sidecar.spark.ingest.job import load_for_ingest
from sidecar.spark.table.columns import fitting, kept, parsed, schema_of
from sidecar.spark.table.delta import OwnDelta, appending
from sidecar.zone.table import label_of
from tests.support.process import write_config
from tests.support.spark.ingesting import config
from tests.support.spark.odd_rows import TAGS, ingest, land, without_jars
from tests.support.spark.tables import make_due

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = (None, 1, 2, 1, 23, None)

FAILING: dict[str, Any] = {"optimize": lambda: 1 / 0, "vacuum": lambda: 1 / 0}


@pytest.mark.parametrize("form", ["parquet", "deltalake"])
def test_partitions_and_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Odd tags and hours have folders, fields of the value are columns; some may be added, and none left out."""
    kind = "parquet" if form == "parquet" else "delta"
    without_jars(monkeypatch)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        table: dict[str, Any] = {"format": kind, "schema": "id bigint, tag string"}
        table |= {"partition_by": ["date", "hour", "tag"], "columns": ["offset", "data.*"]}
        land(tmp_path, 0)
        ingest(tmp_path, **table)
        land(tmp_path, 10)
        ingest(tmp_path, **table | {"columns": ["offset", "data.*", "key"]})
        for change, told in (
            ({"columns": ["offset", "data"]}, r"spark\.table\.columns leaves out id, tag"),
            ({"columns": ["key", "data.*"]}, r"leaves out offset"),
            ({"partition_by": ["date"]}, r"partitioned by date, hour, tag_label"),
            ({"columns": ["tag", "data.*"]}, r"`tag`: spark\.table\.columns\[0\], and field 2 of spark\.table\.schema"),
        ):
            with pytest.raises(ConfigError, match=told) as caught:
                ingest(tmp_path, **table | change)
            assert caught.value.exit_code == 78
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    if kind == "delta":
        found = DeltaTable(tmp_path / "table")
        assert found.metadata().partition_columns == ["date", "hour", "tag_label"]
        names, rows = [field.name for field in found.schema().fields], found.to_pyarrow_table().to_pylist()
        assert names == ["offset", "id", "tag", "date", "hour", "tag_label", "key"]
    else:
        frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "table"))
        rows = [row.asDict() for row in frame.collect()]
    by_offset = {row["offset"]: row for row in rows}
    assert sorted(row["offset"] for row in rows) == [*range(6), *range(10, 16)]
    for first in (0, 10):
        some = [by_offset[first + i] for i in range(6)]
        assert [row["hour"] for row in some] == list(HOURS)
        assert [row["tag_label"] for row in some] == [None if tag is None else label_of(tag) for tag in TAGS]
        assert [(row["id"], row["tag"]) for row in some] == [(first + i, f"data {i}") for i in range(6)]
        assert {row["key"] and bytes(row["key"]) for row in some} == {b"k" if first else None}


def test_columns_that_were_dropped_do_not_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """A column and a field, by ALTER TABLE: refused at the start, and what the refusal says helps."""
    table: dict[str, Any] = {"format": "delta", "schema": "id bigint, tag string"}
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    path = tmp_path / "table"
    alter(spark, path, "SET TBLPROPERTIES('delta.columnMapping.mode' = 'name')")
    before = spark.read.format("delta").load(str(path)).limit(1).toArrow()
    alter(spark, path, "DROP COLUMN key")
    running: Future[str] = Future()
    running.set_result("a query")
    with pytest.raises(AnalysisException, match="METADATA_MISMATCH"):
        appending(str(path), running)(spark.createDataFrame(before), 1)
    land(tmp_path, 10)
    with pytest.raises(ConfigError, match="table has lost key: new rows would bring back what was dropped") as caught:
        ingest(tmp_path, **table)
    assert caught.value.exit_code == 78
    assert "List the others in spark.table.columns" in caught.value.hint
    there = [name for name in spark.read.format("delta").load(str(path)).columns if name != "key"]
    ingest(tmp_path, **table, columns=there)
    assert spark.read.format("delta").load(str(path)).columns == there
    alter(spark, path, "DROP COLUMN data.tag")
    with pytest.raises(ConfigError, match=r"table has lost data\.tag: "):
        ingest(tmp_path, **table, columns=there)
    alter(spark, path, "ADD COLUMNS (data.tag string)")
    land(tmp_path, 20)
    ingest(tmp_path, **table, columns=[*there, "key"])
    rows = spark.read.format("delta").load(str(path)).collect()
    assert {(row["data"]["id"], row["data"]["tag"], row["key"] and bytes(row["key"])) for row in rows} == {
        (first + i, *((f"data {i}", b"k") if first == 20 else (None, None))) for first in (0, 10, 20) for i in range(6)
    }


def alter(spark: SparkSession, path: Path, change: str) -> None:
    """Change a table, by a session with Delta's rules."""
    OwnDelta(spark)._java.sql(f"ALTER TABLE delta.`{path}` {change}")


@pytest.mark.parametrize("merge", [{}, {"merge": {"key": "key"}}])
def test_columns_that_another_writer_leaves_out_do_not_come_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: dict[str, Any]
) -> None:
    """The same by deltalake, for tables whose rows are appended or merged."""
    without_jars(monkeypatch)
    table = {"format": "delta", **merge}
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    path = tmp_path / "table"
    rows = pa.table(DeltaTable(path).to_pyarrow_table()).drop_columns(["value"])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConfigError, match="table has lost value: "):
        ingest(tmp_path, **table)


def test_fields_of_any_name_are_columns(spark: SparkSession) -> None:
    """A field whose name has a dot or a backtick is a field of `data`, and may be a column."""
    schema = schema_of("`a.b` string, `c``d` string")
    frame = spark.createDataFrame([(b'{"a.b": "1", "c`d": "2"}',)], "value binary")
    columns = [Column("data", "data"), Column("a.b", "data.a.b"), Column("c`d", "data.c`d")]
    (row,) = kept(fitting(parsed(frame, schema), schema, F.lit(None)), columns).collect()
    assert row.asDict(recursive=True) == {"data": {"a.b": "1", "c`d": "2"}, "a.b": "1", "c`d": "2"}


@pytest.mark.parametrize("form", ["delta", pytest.param("deltalake", marks=pytest.mark.proof)])
def test_maintenance_between_micro_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """What is due runs behind a micro-batch, also one that comes again; failures are told, each row is there once."""
    table: dict[str, Any] = {"format": "delta", "maintenance": {"optimize": "1h", "vacuum": "1h"}}
    table["properties"] = {"delta.deletedFileRetentionDuration": "interval 30 hours"}
    if form == "deltalake":
        without_jars(monkeypatch)
        table["partition_by"] = "none"
    else:
        table["cluster_by"] = ["tag", "timestamp"]
    notes = tmp_path / "checkpoint" / "maintenance" / "table.json"
    commits = tmp_path / "checkpoint" / "table" / "commits"
    told: list[list[str]] = []
    for run in range(3):
        if run < 2:
            land(tmp_path, 10 * run)
        if run != 1:
            make_due(notes)
        if run == 2:  # Spark thinks that the last one was cut short, though the table has it
            for name in ("1", ".1.crc"):
                (commits / name).unlink()
        with capture_logs() as events, monkeypatch.context() as patched:
            if run == 0:
                patched.setattr("sidecar.spark.table.delta.OwnDelta.steps", lambda self, path: FAILING)
                patched.setattr("sidecar.sinks.table.by_deltalake.steps", lambda path: FAILING)
            ingest(tmp_path, **table)
        told.append([event["event"] for event in events if event["event"].startswith("table.")])
        if run == 1:
            assert operations(tmp_path).isdisjoint({"OPTIMIZE", "VACUUM START", "VACUUM END"})
    assert told == [["table.maintenance_failed"] * 2, [], ["table.maintained"] * 2]
    assert "OPTIMIZE" in operations(tmp_path)
    found = DeltaTable(tmp_path / "table")
    assert found.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 30 hours"
    offsets = found.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
    assert sorted(offsets) == [10 * run + i for run in (0, 1) for i in range(6)]


def operations(folder: Path) -> set[str]:
    """The operations in the table's log, without what Delta does by itself."""
    history = DeltaTable(folder / "table").history()
    return {str(one["operation"]) for one in history if one["operationParameters"].get("auto") not in (True, "true")}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"cluster_by": ["tag"]}, "spark.table.cluster_by: needs a Delta table: Parquet has no clusters"),
        ({"properties": {"delta.appendOnly": True}}, "spark.table.properties: needs a Delta table"),
        ({"maintenance": {"optimize": "1h"}}, "spark.table.maintenance: needs a Delta table: the log of Spark's file"),
        ({"format": "delta", "path": "{}", "maintenance": {"vacuum": "1d"}}, "would delete files of spark.checkpoint"),
        ({"format": "delta", "cluster_by": ["tag"], "partition_by": ["date"]}, "Delta clusters tables without part"),
        ({"columns": ["offset", "data.*"]}, "spark.table.columns: has data.*, which needs spark.table.schema"),
    ],
)
def test_keys_that_a_table_has_not_are_refused(tmp_path: Path, table: dict[str, Any], told: str) -> None:
    """Each is named with its line and the reason, before Spark is started."""
    chosen = {key: value.format(tmp_path) if isinstance(value, str) else value for key, value in table.items()}
    with pytest.raises(ConfigError) as caught:
        load_for_ingest(write_config(tmp_path / "c.yaml", config(tmp_path, **chosen)))
    assert told in str(caught.value)
    assert "c.yaml:" in str(caught.value)
