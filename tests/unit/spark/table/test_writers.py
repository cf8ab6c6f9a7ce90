"""Micro-batches that deltalake writes, and the compaction of their table. No Spark."""

from __future__ import annotations

from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from structlog.testing import capture_logs

from sidecar.config.table_layout import UNSET, Maintenance, TableLayout
from sidecar.errors import ConfigError
from sidecar.sinks.table.by_deltalake import PROPERTY
from sidecar.spark.table.plan import Plan
from sidecar.spark.table.writers import COMPACT_EVERY, by_deltalake, extend_by_deltalake


class Frame:
    """A micro-batch.

    Args:
        rows: Its rows.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        """Its rows."""
        return self._rows


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were compacted, each in conflict with another program."""
    tables: list[str] = []

    def optimize(table: DeltaTable, path: str, guard: object) -> None:
        tables.append(path)
        raise CommitFailedError("a concurrent transaction deleted data")

    monkeypatch.setattr("sidecar.sinks.table.by_deltalake.optimize", optimize)
    return tables


ONE: Final = pa.table({"offset": [7]})


def write(path: Path, batch: int, layout: TableLayout = UNSET, rows: pa.Table = ONE) -> None:
    """Write a micro-batch."""
    query_id: Future[str] = Future()
    query_id.set_result("q")
    frame: Any = Frame(rows)
    by_deltalake(str(path), query_id, Plan((), (), layout))(frame, batch)


def extend(path: Path, rows: pa.Table) -> None:
    """Add columns at the start of a job."""
    frame: Any = Frame(rows)
    extend_by_deltalake(str(path), frame, merged=False)


def test_columns_come_at_the_start_alone(tmp_path: Path) -> None:
    """Without rows; a column that is dropped later ends the query by name, and one of the user's own is null."""
    write(tmp_path, 0)
    rows = pa.table({"offset": [8], "data": [{"id": 1}]})
    extend(tmp_path, rows)
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"offset": 7, "data": None}]
    DeltaTable(tmp_path).alter.add_columns(Field("own", PrimitiveType("string")))
    write(tmp_path, 1, rows=rows)
    with pytest.raises(ConfigError, match=r"has lost data\.more, key: new rows would bring back what was dropped"):
        write(tmp_path, 2, rows=pa.table({"offset": [9], "key": [b"k"], "data": [{"id": 1, "more": 2}]}))
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("offset").to_pylist()
    assert found == [{"offset": 7, "data": None, "own": None}, {"offset": 8, "data": {"id": 1}, "own": None}]


def test_a_compaction_that_fails_is_logged(tmp_path: Path, tried: list[str]) -> None:
    """The micro-batch is in the table, and its write succeeds."""
    with capture_logs() as events:
        write(tmp_path, COMPACT_EVERY - 1)
    assert tried == [str(tmp_path)]
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1
    reason = "a concurrent transaction deleted data"
    told = {"event": "table.maintenance_failed", "operation": "optimize", "table": str(tmp_path), "reason": reason}
    assert events == [told | {"log_level": "warning"}]


def test_a_table_with_scheduled_compaction_has_no_other(tmp_path: Path, tried: list[str]) -> None:
    """Where `OPTIMIZE` is on a schedule, the number of micro-batches does not matter."""
    hourly = Maintenance.model_validate({"optimize": "1h"})
    write(tmp_path, COMPACT_EVERY - 1, TableLayout(maintenance=hourly))
    assert tried == []


ODD: Final = [
    ("long", pa.decimal128(20, 0), Decimal((1 << 64) - 1)),
    ("exact", pa.decimal128(18, 4), Decimal("12345678901234.5678")),
    ("short", pa.decimal128(15, 4), Decimal("12345678901.5678")),
    ("endless", pa.float64(), float("inf")),
    ("single", pa.float32(), float("-inf")),
]
"""Columns with a value of which deltalake makes wrong statistics, except of the third."""


@pytest.mark.parametrize("first", ["new", "simple", "other"])
def test_a_reader_that_filters_finds_every_value(tmp_path: Path, first: str) -> None:
    """In a new table, in one that had no such columns before, and in one with properties of its own."""
    rows = pa.table({"offset": [7], **{name: pa.array([value], kind) for name, kind, value in ODD}})
    layout, batch = UNSET, 0
    if first == "simple":
        write(tmp_path, 0)
        extend(tmp_path, rows)
        batch = 1
    if first == "other":
        layout = TableLayout(properties={PROPERTY: "offset,short"})
    with capture_logs() as events:
        write(tmp_path, batch, layout, rows)
        write(tmp_path, batch + 1, layout, rows)
    told = [event["columns"] for event in events if event["event"] == "table.statistics_limited"]
    assert told == (["offset,short"] if first == "simple" else [])
    table = DeltaTable(tmp_path)
    assert table.metadata().configuration[PROPERTY] == "offset,short"
    for _ in range(2):
        for name, kind, value in ODD:
            assert table.to_pyarrow_table(filters=[(name, "=", value)]).num_rows == 2, name
            wanted = polars.Series([value], dtype=polars.Series(pa.array([value], kind)).dtype)
            assert polars.scan_delta(str(tmp_path)).filter(polars.col(name) == wanted).collect().height == 2, name
        table.optimize.compact()


def test_a_table_without_such_columns_has_all_statistics(tmp_path: Path) -> None:
    """Also of fields."""
    write(tmp_path, 0, rows=pa.table({"offset": [7], "data": [{"id": 1}]}))
    assert PROPERTY not in DeltaTable(tmp_path).metadata().configuration


def test_values_inside_count(tmp_path: Path) -> None:
    """A double in a list in a struct limits the statistics, to columns of names that Delta's property can have."""
    kind = pa.struct([("all", pa.list_(pa.float64()))])
    write(tmp_path, 0, rows=pa.table({"offset": [7], "a b": [1], "data": pa.array([{"all": [0.5]}], kind)}))
    assert DeltaTable(tmp_path).metadata().configuration[PROPERTY] == "offset"
