"""Micro-batches that deltalake writes, and the compaction of their table. No Spark."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from structlog.testing import capture_logs

from sidecar.config.table.layout import UNSET, Maintenance, TableLayout
from sidecar.spark.table.plan import Plan
from sidecar.spark.table.writers import COMPACT_EVERY, by_deltalake


class Frame:
    """A micro-batch of one row."""

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        """Its rows."""
        return pa.table({"offset": [7]})


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were compacted, each in conflict with another program."""
    tables: list[str] = []

    def optimize(table: DeltaTable, path: str, guard: object) -> None:
        tables.append(path)
        raise CommitFailedError("a concurrent transaction deleted data")

    monkeypatch.setattr("sidecar.sinks.table.by_deltalake.optimize", optimize)
    return tables


def write(path: Path, batch: int, layout: TableLayout = UNSET) -> None:
    """Write a micro-batch."""
    query_id: Future[str] = Future()
    query_id.set_result("q")
    frame: Any = Frame()
    by_deltalake(str(path), query_id, Plan((), (), layout))(frame, batch)


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
