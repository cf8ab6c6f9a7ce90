"""A task that fills a table: reads one range, sorts its messages, and returns the rows of those wanted. No sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sidecar.spark.ranges.windows import Windows
from sidecar.spark.rows.by_lane import LaneRows
from sidecar.spark.rows.columns import Rows
from sidecar.spark.rows.sieve import Sieve
from sidecar.spark.run.executor.task import TaskRange, opened_range
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.table.targets import TABLE
from sidecar.zone.table import ROW, table_batch

if TYPE_CHECKING:
    from sidecar.runtime.build import ReadingPlan
    from sidecar.spark.run.plan import RunPlan
    from sidecar.spark.run.range_source import Range

BATCH_ID: Final = "batch_id"
_OF_MESSAGES: Final = tuple(name for name in ROW if name != BATCH_ID)


def rows_of_range(plan: RunPlan, span: Range) -> Iterator[pa.RecordBatch]:
    """The rows of the range of this task, as record batches of `TABLE_SCHEMA`.

    When the last one is taken, the ids of the range are durable, and so are its books in the query of the table; those
    of the rejects would be the same. Another attempt, and a replay, return the same rows.

    Args:
        plan: With a query.

    Raises:
        StateError: The folder beside the checkpoint cannot be used.
        PositionError: The topic was created again.
        UnavailableError: The broker does not return the messages.
    """
    yield from rows_of_place(plan, opened_range(plan, span))


def rows_of_place(plan: RunPlan, place: TaskRange) -> Iterator[pa.RecordBatch]:
    """See `rows_of_range`."""
    sieve = Sieve(plan.reading.tags, plan.reading.dedup, place.found.columns)
    windows = Windows(place.folder.path / "ids" / f"{place.ids_scope}-{place.tp.queue}")
    if sieve.window is not None:
        windows.load(sieve.window, place.batch - 1)
    name = f"{place.tp.topic}@{place.scope}:{place.tp.queue}:{place.start}-{place.end - 1}"
    for batch in _rows(plan.reading, place, sieve):
        yield table_batch(batch.append_column(BATCH_ID, pa.repeat(name, batch.num_rows)))
    place.confirm()
    if sieve.window is not None:
        windows.save(sieve.window, place.batch)
    if plan.query == TABLE:
        sieve.books.settle("delivered", sieve.books.in_flight)
        odd_ids = sieve.odd_ids.count if sieve.odd_ids is not None else 0
        unwanted = list(sieve.filter.unwanted)
        outcome = Outcome(
            place.tp, books=sieve.books, lane=place.found.told, odd_ids=odd_ids, unwanted=unwanted,
            tags_refused=sieve.tags_refused, expired=place.expired,
        )  # fmt: skip
        place.folder.books.put_range(place.batch, outcome)


def _rows(reading: ReadingPlan, place: TaskRange, sieve: Sieve) -> Iterator[pa.RecordBatch]:
    found = place.found
    if found.lane is not None:
        return LaneRows(reading.tags, reading.dedup, sieve, _OF_MESSAGES).batches(
            found.lane, place.tp, place.start, place.end
        )
    return Rows(reading.tags, found.columns, _OF_MESSAGES).batches(
        sieve, place.tp, (run.messages for run in found.runs)
    )
