"""A task on an executor: delivers the rows that Spark passes, or reads the range that a row names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from sidecar.core.records import GetterColumns, Header, Run, TopicPartition
from sidecar.spark.ranges.broker import RangeMessages, patiently
from sidecar.spark.ranges.gathering import RUN_BYTES, gather
from sidecar.spark.ranges.rows import LaneRows, MessageRows, Sieve
from sidecar.spark.ranges.walk import Span
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.table.plan import TABLE
from sidecar.spark.workers import configure_log
from sidecar.zone.table import ROW, table_batch

if TYPE_CHECKING:
    from sidecar.runtime.build import ReadingPlan

BATCH_ID: Final = "batch_id"
_OF_MESSAGES: Final = tuple(name for name in ROW if name != BATCH_ID)


def rows_of(plan: RunPlan, place: TaskRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range, as record batches of `TABLE_SCHEMA`.

    When the last row is taken, the ids of the range are durable, and so are its books in the query of the table; the
    query of the rejects would have the same books. Another attempt, and a replay, return the same rows.

    Args:
        plan: With a query.

    Raises:
        StateError: The folder beside the checkpoint cannot be used.
        PositionError: The topic was created again.
        UnavailableError: The broker does not return the messages.
    """
    sieve = Sieve(plan.reading.tags, plan.reading.dedup, place.found.columns)
    windows = Windows(place.folder.path / "ids" / f"{place.ids_scope}-{place.span.tp.queue}")
    if sieve.window is not None:
        windows.load(sieve.window, place.batch - 1)
    name = f"{place.span.tp.topic}@{place.scope}:{place.span.tp.queue}:{place.span.start}-{place.span.end - 1}"
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
            place.span.tp, books=sieve.books, lane=place.found.told, odd_ids=odd_ids, unwanted=unwanted,
            tags_refused=sieve.tags_refused, expired=place.span.expired,
        )  # fmt: skip
        place.folder.books.put_range(place.batch, outcome)


def _rows(reading: ReadingPlan, place: TaskRange, sieve: Sieve) -> Iterator[pa.RecordBatch]:
    found = place.found
    if found.lane is not None:
        return LaneRows(reading.tags, reading.dedup, sieve, _OF_MESSAGES).batches(
            found.lane, place.span.tp, place.span.start, place.span.end
        )
    return MessageRows(reading.tags, found.columns, _OF_MESSAGES).batches(
        sieve, place.span.tp, (run.messages for run in found.runs)
    )


HELD_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The range of a task, and the scopes of its files.

    Args:
        confirm: Called when the last message was read; raises `PositionError` if the topic was created again meanwhile:
            a client continues at the old offset.
        scope: Identity of the partition in the names of parts.
        ids_scope: Identity of the partition for its message ids.
    """

    span: Span
    """Its offsets are 0 if Spark's connector reads."""
    found: RangeMessages
    confirm: Callable[[], None]
    scope: str
    ids_scope: str
    batch: int
    folder: RunFolder

    def runs(self) -> Iterator[Run]:
        """The messages; `confirm` is called after the last one."""
        yield from self.found.runs
        self.confirm()


def run(plan: RunPlan, batches: Iterator[pa.RecordBatch]) -> Outcome | None:
    """Deliver one offset range; None if none of its rows reached this task."""
    asked = asked_of(batches)
    if asked is None:
        return None
    from sidecar.spark.run.deliver import RangeDelivery, Task  # tasks of tables do not need it

    place = opened(plan, *asked)
    context = TaskContext.get()
    assert context is not None
    again = place.batch == plan.checkpoint.pending or context.attemptNumber() > 0
    attempt = str(context.taskAttemptId())
    task = Task(place.span.tp, place.scope, place.ids_scope, place.batch, attempt, again)
    with ExitStack() as stack:
        delivery = RangeDelivery(plan, task, place.found.columns, stack)
        for part in place.runs():
            delivery.feed(part)
        outcome = delivery.finish()
    outcome.lane, outcome.expired = place.found.told, place.span.expired
    return outcome


def asked_of(batches: Iterator[pa.RecordBatch]) -> tuple[Span, RangeMessages | None] | None:
    """The range that Spark's rows name, or their partition and they themselves as messages; None without rows."""
    first = next((rows for rows in batches if rows.num_rows), None)
    if first is None:
        return None
    tp = place_of(first)
    if "end" not in first.schema.names:  # rows of Spark's connector
        return Span(tp, "", 0, 0), RangeMessages(ARROW_COLUMNS, runs(chain([first], batches), tp), None)
    (row,) = (row for part in (first, *batches) for row in part.to_pylist())  # an unread rest ends this process
    tp = TopicPartition(row["topic"], row["partition"], row["broker"])
    return Span(tp, "", row["start"], row["end"], expired=row["expired"]), None


def opened(plan: RunPlan, span: Span, found: RangeMessages | None = None) -> TaskRange:
    """The range of this task, read by the job's own client unless its messages are given in `found`."""
    context = TaskContext.get()
    assert context is not None
    configure_log(plan.log)
    number = context.getLocalProperty("streaming.sql.batchId")
    assert number is not None, "a task of a stream"
    batch, folder = int(number), RunFolder(plan.folder / plan.query)
    while folder.held(batch):  # the query is being stopped: Spark ends this task before it sends anything
        time.sleep(HELD_WAIT_S)
    broker, checkpoint = plan.broker, plan.checkpoint
    if found is None:
        found = broker.read(plan.folder, span.tp, span.start, span.end)
    claim = partial(broker.claim, checkpoint.cluster_id, plan.folder, span.tp.topic)
    topic_id = claim()

    def confirm() -> None:
        patiently(partial(claim, refresh=True))

    scope, ids_scope = checkpoint.scope(topic_id), checkpoint.ids_scope(topic_id)
    return TaskRange(span, found, confirm, scope, ids_scope, batch, folder)


# Rows that Spark passes, as the core reads messages: tuples by column, in runs

SLICE_ROWS = 2_000
"""Number of rows that become Python objects at a time."""


MessageRow = tuple[int, int | None, bytes | None, Sequence[Header] | None, bytes | None]
"""One message: offset, timestamp in milliseconds, key, headers, value; fields that no setting needs are None."""
_MESSAGE_FIELDS = ("offset", "timestamp_ms", "key", "headers", "value")


ARROW_COLUMNS = GetterColumns(*map(itemgetter, range(len(_MESSAGE_FIELDS))))
"""Reads `MessageRow`s."""


def place_of(batch: pa.RecordBatch) -> TopicPartition:
    """Topic and partition of a batch with rows."""
    names = [name for name in TopicPartition._fields if name in batch.schema.names]  # Kafka's connector has no broker
    found = [batch.column(name).unique() for name in names]
    if any(len(values) != 1 for values in found):
        raise ValueError("a task has rows of several partitions: no shuffle is allowed between source and sink")
    return TopicPartition(*(values[0].as_py() for values in found))


def runs(batches: Iterable[pa.RecordBatch], tp: TopicPartition) -> Iterator[Run]:
    """All rows of one offset range as runs."""
    return gather(tp, _arrow_rows(batches, tp), lambda rows: (len(row[-1] or b"") for row in rows), itemgetter(0))


def _arrow_rows(batches: Iterable[pa.RecordBatch], tp: TopicPartition) -> Iterator[list[MessageRow]]:
    for batch in batches:
        if not batch.num_rows:
            continue
        if place_of(batch) != tp:
            raise ValueError(
                f"rows of {place_of(batch)} are among those of {tp}: no shuffle is allowed before the sink"
            )
        # 2,000 rows of 1 MB would be 2 GB
        step = max(1, min(SLICE_ROWS, RUN_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            yield list(zip(*_columns(batch.slice(start, step)), strict=True))


def _columns(batch: pa.RecordBatch) -> Iterator[Iterable[Any]]:
    none = [None] * batch.num_rows
    names = set(batch.schema.names)
    for name in _MESSAGE_FIELDS:
        if name not in names:
            yield none
        elif name == "headers":
            yield _headers(batch.column(name))
        else:
            yield batch.column(name).to_pylist()


def _headers(column: pa.ListArray) -> Iterable[Sequence[Header] | None]:
    """Headers, converted all at once: a dictionary per header, as in `to_pylist`, takes five times as long."""
    pairs, lengths = column.flatten(), column.value_lengths().to_pylist()
    headers = zip(*(pairs.field(i).to_pylist() for i in (0, 1)), strict=True)
    if lengths.count(1) == len(lengths):  # the usual case
        return zip(headers)
    return [None if length is None else list(islice(headers, length)) for length in lengths]
