"""Tables of other programs as targets of jobs on Spark: features that the writer lacks, and constraints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField

from sidecar.errors import ConfigError, SidecarError
from sidecar.sinks.table.constraints import Constraint, constraints_of
from sidecar.spark.driver import QueryError
from sidecar.spark.table.columns import generated, refuse_unresolved, violation
from tests.support.delta import forbid_null, require, rows_of
from tests.support.spark.odd_rows import ingest, land, without_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


WRITERS = pytest.mark.parametrize("writer", ["delta", "deltalake"])
REASON = "the row violates the constraint {} of the table"


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, writer: str) -> SparkSession:
    """The session, for this writer."""
    if writer == "deltalake":
        without_jars(monkeypatch)
    return spark


def reasons(folder: Path) -> dict[int, str]:
    """The reasons of the rejects by offset."""
    return {row["offset"]: row["reason"] for row in rows_of(folder / "table-rejects")}


def offsets(folder: Path) -> list[int]:
    """The offsets of the rows of the table."""
    return sorted(row["offset"] for row in rows_of(folder / "table"))


@WRITERS
@pytest.mark.usefixtures("by")
def test_rows_that_violate_a_constraint_are_rejects(tmp_path: Path) -> None:
    """Those of CHECK on columns, on fields of the value and on derived columns; what does not fit keeps its reason."""
    table: dict[str, Any] = {"format": "delta", "schema": "id bigint", "partition_by": ["hour"]}
    table |= {"columns": ["offset", "tag", "data.*"]}
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    checks = {"small": "offset < 14", "odd": "id != 11", "early": "hour != 23 OR hour IS NULL OR offset = 4"}
    for name, sql in checks.items():
        DeltaTable(tmp_path / "table").alter.add_constraint({name: sql})
    land(tmp_path, 10)
    ingest(tmp_path, **table)
    found = reasons(tmp_path)
    assert {**found, **dict.fromkeys(offsets(tmp_path), "")}.keys() == {*range(6), *range(10, 16)}
    assert len(found) + len(offsets(tmp_path)) == 12
    late = REASON.format("early (hour != 23 OR hour IS NULL OR offset = 4)")
    assert found == {11: REASON.format("odd (id != 11)"), 14: late, 15: REASON.format("small (offset < 14)")}


@WRITERS
@pytest.mark.usefixtures("by")
def test_nulls_are_rejects_where_the_table_takes_none(tmp_path: Path) -> None:
    """NOT NULL is a constraint too, also of a merged table."""
    table: dict[str, Any] = {"format": "delta", "schema": "id bigint", "merge": {"key": "$.id", "order_by": "$.id"}}
    land(tmp_path, 0, ["a"])
    ingest(tmp_path, **table)
    forbid_null(tmp_path / "table", "tag")
    land(tmp_path, 10, ["b", None, "c"])
    ingest(tmp_path, **table)
    assert offsets(tmp_path) == [0, 10, 12]
    assert reasons(tmp_path) == {11: REASON.format("NOT NULL of tag")}


@WRITERS
@pytest.mark.usefixtures("by")
def test_without_a_table_of_rejects_a_violation_is_for_a_person(tmp_path: Path) -> None:
    """The job ends with 78 and says what to do; without the constraint it goes on, and nothing was lost."""
    land(tmp_path, 0)
    ingest(tmp_path, format="delta")
    DeltaTable(tmp_path / "table").alter.add_constraint({"small": "offset < 12"})
    land(tmp_path, 10)
    with pytest.raises(QueryError) as caught:
        ingest(tmp_path, format="delta")
    assert caught.value.exit_code == 78
    assert "DROP CONSTRAINT" in caught.value.hint
    DeltaTable(tmp_path / "table").alter.drop_constraint("small")
    ingest(tmp_path, format="delta")
    assert offsets(tmp_path) == [*range(6), *range(10, 16)]


def test_a_constraint_on_what_is_not_written_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """No row would fulfil it."""
    frame = spark.createDataFrame([], "offset bigint")
    for sql in ("other > 3", "no such ("):
        with pytest.raises(ConfigError, match="which no row that this job writes fulfils") as caught:
            refuse_unresolved(frame, [Constraint("odd", sql)], "/table")
        assert "DROP CONSTRAINT" in caught.value.hint


def test_a_generated_column_is_a_constraint(spark: SparkSession) -> None:
    """A row with another value there than the table computes is a reject; the length of a text is one too."""
    fields = [
        StructField("day", StringType(), metadata={"delta.generationExpression": "cast(offset AS string)"}),
        StructField("tag", StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(2)"}),
    ]
    found = generated(fields) + constraints_of({}, fields)
    rows = [(1, "1", "ab"), (2, "x", "a"), (3, None, None), (4, "4", "abc")]
    frame = spark.createDataFrame(rows, "offset bigint, day string, tag string")
    told = [row["why"] for row in frame.withColumn("why", violation(found)).orderBy("offset").collect()]
    day = REASON.format("generated column day (cast(offset AS string))")
    assert told == [None, day, day, REASON.format("varchar(2) of tag")]


@pytest.mark.parametrize("pending", [False, True])
def test_other_constraints_need_queries_at_one_place(spark: SparkSession, tmp_path: Path, pending: bool) -> None:
    """Else rows between table and rejects would be in both, or in neither."""
    table: dict[str, Any] = {"format": "delta", "schema": "id bigint"}
    land(tmp_path, 0)
    ingest(tmp_path, **table)
    DeltaTable(tmp_path / "table").alter.add_constraint({"small": "offset < 12"})
    if pending:
        for name in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / "table" / "commits" / name).unlink()
        told = r"changed from none to small \(offset < 12\).*different places"
        with pytest.raises(ConfigError, match=told) as caught:
            ingest(tmp_path, **table)
        assert "--once" in caught.value.hint
        DeltaTable(tmp_path / "table").alter.drop_constraint("small")
    ingest(tmp_path, **table)
    assert offsets(tmp_path) == list(range(6))
