"""Values at the extremes of all types: by each writer, compacted by each, read by each reader."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from structlog.testing import capture_logs

from sidecar.errors import ConfigError
from sidecar.sinks.table import by_deltalake
from sidecar.spark.driver import TIMES, own_session
from sidecar.spark.table.columns import schema_of
from sidecar.spark.table.delta import OwnDelta, oldest_of_sink
from tests.support.jars import ROOT
from tests.support.process import wait_until
from tests.support.spark import extremes
from tests.support.spark.examples import example
from tests.support.spark.extremes import COLUMNS, OF_DELTA, OF_PARQUET, OUTSIDE, SCHEMA, by_id, plain, texts
from tests.support.spark.odd_rows import ingest, without_jars

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

DOCUMENT: Final = (ROOT / "docs" / "spark-types.md").read_text()
WANTED: Final = {row: plain(value) for row, value in extremes.rows().items()}


class Heard(StreamingQueryListener):
    """Counts the rows that a job reads."""

    rows = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Take a start."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Take an end."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take a micro-batch."""
        self.rows += event.progress.numInputRows


def compactions(spark: SparkSession) -> Mapping[str, Callable[[str], object]]:
    """What makes one file of several."""
    with ExitStack() as stack:
        delta = OwnDelta(own_session(stack, spark, is_delta=True))
    return {
        "not compacted": lambda path: None,
        "Delta's OPTIMIZE": lambda path: delta.steps(path)["optimize"](),
        "deltalake's compaction": lambda path: by_deltalake.steps(path)["optimize"](),
    }


def filled(folder: Path, monkeypatch: pytest.MonkeyPatch, form: str, **table: Any) -> str:
    """A table by a writer, in two micro-batches."""
    monkeypatch.setattr("sidecar.spark.ingest.job.BATCH_BYTES_MAX", 1)
    monkeypatch.setattr("sidecar.spark.ingest.job.DRIVER_BATCH_BYTES_MAX", 1)
    with monkeypatch.context() as patched:
        if form.startswith("deltalake"):
            without_jars(patched)
        if form.endswith("merge"):
            table["merge"] = {"key": "$.id", "order_by": "timestamp"}
        ingest(folder, format="parquet" if form == "Parquet" else "delta", **table)
    return str(folder / "table")


def literal(field: str, row: int) -> Column:
    """A value of a column in Spark's SQL."""
    kind, values = COLUMNS[field]
    return F.lit(values[row].text.strip('"')).cast(kind) if field != "text" else F.lit(values[row].value)


EXTREMES: Final = {"d38": 1, "d18": 0, "f64": 2, "at": 6, "text": 1}
"""The rows with an extreme value of these fields."""


def by_statistics(spark: SparkSession, path: str) -> Mapping[str, int]:
    """The same, as Spark finds them in a table of Delta: each file whose statistics exclude the value is left out."""
    table = spark.read.format("delta").load(path)
    found = [
        table.where(F.col(f"data.{field}") == literal(field, row)).select(F.lit(field).alias("field"), "data.id")
        for field, row in EXTREMES.items()
    ]
    rows = reduce(DataFrame.union, found).collect()
    assert len(rows) == len(found)
    return {row["field"]: row["id"] for row in rows}


@pytest.mark.parametrize("form", ["Spark's Delta", "deltalake", "Spark's Delta, merge", "deltalake, merge", "Parquet"])
def test_every_reader_has_the_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Whoever wrote and compacted a table, all readers have equal values; times that some cannot hold are rejects."""
    extremes.land(tmp_path / "zone", [*texts(), *map(str.encode, OUTSIDE)], files=2)
    path = filled(tmp_path, monkeypatch, form, schema=SCHEMA)
    assert f"| {form} |" in DOCUMENT
    kind = "parquet" if form == "Parquet" else "delta"
    rejects = spark.read.format(kind).load(f"{path}-rejects").select("offset", "reason").collect()
    wanted = [(len(texts()) + number, re.findall(r'"(\w+)"', text)[0]) for number, text in enumerate(OUTSIDE)]
    assert sorted((row["offset"], row["reason"]) for row in rejects) == [
        (offset, f"a time in {name} is outside of the years 1 to 9999") for offset, name in wanted
    ]
    for number, (name, compact) in enumerate(compactions(spark).items() if kind == "delta" else ()):
        copy = str(shutil.copytree(path, tmp_path / f"{number}"))
        compact(copy)
        assert len(DeltaTable(copy).file_uris()) == (2 if name == "not compacted" else 1)
        assert by_id(spark.read.format(kind).load(copy).select("data").toArrow()) == WANTED, name
        for reader, read in OF_DELTA.items():
            assert by_id(read(copy)) == WANTED, (name, reader)
        if name == "not compacted" or "merge" not in form:  # what compacts does not know who wrote
            assert by_statistics(spark, copy) == EXTREMES, name
    if kind == "parquet":
        assert by_id(spark.read.parquet(path).select("data").toArrow()) == WANTED
        for reader, read in OF_PARQUET.items():
            assert by_id(read(path)) == WANTED, reader


def test_the_document_has_every_type() -> None:
    """Its table of types has those that are compared, each with what is compared."""
    told = set(re.findall(r"`([^`]+)`", DOCUMENT.partition("| type |")[2].partition("\n\n")[0]))
    for kind, _ in COLUMNS.values():
        assert set(re.findall(r"[a-z]\w+", re.sub(r"\w+:", "", kind))) <= told


@pytest.mark.parametrize("kind", re.findall(r"`([^`]+)`", DOCUMENT.partition("**Refused**")[2].partition("\n\n")[0]))
def test_a_type_that_a_reader_lacks_is_refused(spark: SparkSession, kind: str) -> None:
    """Before anything is read, with the field; also inside of another type."""
    for text, path in ((f"v {kind}", "v"), (f"a array<struct<b: map<string, {kind}>>>", "a.element.b.value")):
        with pytest.raises(ConfigError, match=rf"spark\.table\.schema: {path}(\.key)? is of the type ") as caught:
            schema_of(text)
        assert caught.value.exit_code == 78


def test_the_session_of_the_user_is_untouched(spark: SparkSession, tmp_path: Path) -> None:
    """A job in a session that exists leaves its settings and its active session, and its listeners hear the queries."""
    before, heard = spark.conf.getAll, Heard()
    extremes.land(tmp_path / "zone", [b"{}"])
    spark.streams.addListener(heard)
    try:
        ingest(tmp_path, format="parquet")
        wait_until(lambda: heard.rows == 1, 30, "the listener heard the query")
    finally:
        spark.streams.removeListener(heard)
    assert spark.conf.getAll == before
    assert spark.getActiveSession() is spark


def test_a_message_of_another_year_has_no_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timestamp beyond the year 9999 is null in table and rejects, and no order of a merge."""
    extremes.land(tmp_path / "zone", [b"{}", b"no JSON", b'{"id": 1}'], timestamp_ms=1_700_000_000_000_000)
    path = filled(tmp_path, monkeypatch, "Spark's Delta, merge", schema="id bigint")
    assert DeltaTable(path).to_pyarrow_table().num_rows == 0
    rejects = spark.read.format("delta").load(f"{path}-rejects").orderBy("offset").collect()
    assert [(row["timestamp"], row["date"], row["reason"]) for row in rejects] == [
        (None, None, "the value has no $.id"),
        (None, None, "the value does not fit the schema"),
        (None, None, "the message has no timestamp of the years 1 to 9999"),
    ]


def test_a_table_with_int96(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named at the start, deltalake does not rewrite it, and Spark does so as the document shows."""
    schema, times = "id bigint, at timestamp", ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
    values = [f'{{"id": {number}, "at": "{at}"}}'.encode() for number, at in enumerate(times)]
    extremes.land(tmp_path / "zone", values, files=2)
    path = filled(tmp_path, monkeypatch, "Spark's Delta, merge", schema=schema)
    before = by_id(spark.read.format("delta").load(path).select("data").toArrow())
    spark.conf.set(TIMES[0], "INT96")  # Spark's default, which earlier versions had
    frame = spark.read.format("delta").load(path)
    frame.repartition(2, F.col("data.id")).write.format("delta").mode("overwrite").save(path)
    with pytest.raises(ConfigError, match="has timestamps as INT96, and deltalake would write those outside"):
        by_deltalake.steps(path)["optimize"]()
    extremes.land(tmp_path / "zone", [b'{"id": 0}'], first=100)
    with capture_logs() as events, pytest.raises(ConfigError, match="has timestamps as INT96"):
        filled(tmp_path, monkeypatch, "deltalake, merge", schema=schema)
    assert [event["table"] for event in events if event["event"] == "table.old_timestamps"] == [path]
    with capture_logs() as events:
        filled(tmp_path, monkeypatch, "Spark's Delta, merge", schema=schema)
    assert [event["table"] for event in events if event["event"] == "table.old_timestamps"] == [path]
    example("## INT96", "spark-types.md")({"/var/lib/sidecar/orders": path}, {"spark": spark})
    spark.conf.unset(TIMES[0])
    by_deltalake.steps(path)["optimize"]()
    merged = DeltaTable(path).to_pyarrow_table()
    assert merged.filter(~pc.field("deleted")).num_rows == len(times)
    wanted = before | {0: {"id": 0, "at": None}}
    assert by_id(spark.read.format("delta").load(path).select("data").toArrow()) == wanted
    assert by_id(OF_DELTA["deltalake"](path)) == wanted
    with capture_logs() as events:
        filled(tmp_path, monkeypatch, "deltalake, merge", schema=schema)
    assert [event for event in events if event["event"] == "table.old_timestamps"] == []


def test_a_parquet_table_with_int96_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Its oldest file is found, also when the log of Spark's file sink was compacted."""
    extremes.land(tmp_path / "zone", [b"{}"])
    ingest(tmp_path, format="parquet")
    (file,) = (tmp_path / "table").glob("**/*.parquet")
    pq.write_table(pq.ParquetFile(file).read(), file, use_deprecated_int96_timestamps=True)
    file.with_name(f".{file.name}.crc").unlink()
    with capture_logs() as events:
        ingest(tmp_path, format="parquet")
    told = [(event["table"], event["file"]) for event in events if event["event"] == "table.old_timestamps"]
    assert told == [(str(tmp_path / "table"), f"file://{file}")]
    log = tmp_path / "table" / "_spark_metadata"
    (log / "0").rename(log / "9.compact")
    assert list(oldest_of_sink(spark, str(tmp_path / "table"))) == [f"file://{file}"]
