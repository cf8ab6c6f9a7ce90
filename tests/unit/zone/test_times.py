"""Timestamps of messages in columns: any 64 bits of milliseconds, of which only some years are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sidecar.core.parts import Batch
from sidecar.sinks.table.by_deltalake import steps
from sidecar.spark.ranges import rows
from sidecar.zone.columns import record_batches
from sidecar.zone.schema import times_of
from tests.support.delta import sink
from tests.support.landing import Sent, part

FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
TIMES: Final = {
    None: None,
    -62_135_596_800_001: None,
    -62_135_596_800_000: FIRST,
    -1: datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC),
    1_700_000_000_123: datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
    253_402_300_799_999: LAST,
    253_402_300_800_000: None,
    -(1 << 63): None,
    (1 << 63) - 1: None,
}
"""By milliseconds, what a column has."""


def of_zone(times_ms: list[int | None]) -> pa.Array:
    """The column of landed rows."""
    rows = [Sent(number, None, b"", timestamp_ms=at_ms) for number, at_ms in enumerate(times_ms)]
    (batch,) = record_batches([part(rows)], writer="", sequence=0, batch_id="")
    return batch.column("timestamp")


def of_lane(times_ms: list[int | None]) -> pa.Array:
    """The column of rows that are made in C."""
    table: Any = SimpleNamespace(
        rows=len(times_ms),
        has_time=np.array([at_ms is not None for at_ms in times_ms]).tobytes(),
        times_ms=np.array([at_ms or 0 for at_ms in times_ms], np.int64).tobytes(),
    )
    return rows._lane_times(table)


@pytest.mark.parametrize("column", [of_zone, times_of, of_lane])
def test_times_outside_of_the_years_1_to_9999_are_null(column: Any) -> None:
    """The others are kept to the millisecond, wherever rows are made."""
    assert column(list(TIMES)).to_pylist() == list(TIMES.values())
    assert column([None]).to_pylist() == [None]


def test_every_reader_of_the_daemons_table_has_them(tmp_path: Path) -> None:
    """Before and after its compaction."""
    into = sink(tmp_path)
    for number, at_ms in enumerate(TIMES):
        into.deliver(Batch(number, "", [part([Sent(number, None, b"", timestamp_ms=at_ms)])]))
    into.close()
    wanted = dict(enumerate(TIMES.values()))
    for _ in range(2):
        tables = DeltaTable(tmp_path).to_pyarrow_table(), polars.read_delta(str(tmp_path)).to_arrow()
        for table in tables:
            assert dict(zip(*(table.column(n).to_pylist() for n in ("offset", "timestamp")), strict=True)) == wanted
        steps(str(tmp_path))["optimize"]()
