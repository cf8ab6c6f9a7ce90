"""A task on an executor: delivers the rows that Spark passes, or reads the range that a row names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext

from sidecar.core.records import Run, TopicPartition
from sidecar.spark.ranges.broker import RangeMessages, patiently
from sidecar.spark.run.executor.columns import ArrowColumns, place_of, runs
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.range_source import Range
from sidecar.spark.workers import configure_log

if TYPE_CHECKING:
    import pyarrow as pa

HELD_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The range of a task, and where its files lie.

    Args:
        confirm: Called when the last of them was read; raises like `opened` if the topic was created again meanwhile:
            a client reads on at the old offset.
        start: Its first offset; 0 if Spark's connector reads.
        end: The offset behind it; 0 if Spark's connector reads.
        scope: Identity of the partition in the names of parts.
        ids_scope: Identity of the partition for its message ids.
        expired: Number of offsets before it that expired before they were read.
    """

    tp: TopicPartition
    found: RangeMessages
    confirm: Callable[[], None]
    start: int
    end: int
    scope: str
    ids_scope: str
    batch: int
    folder: RunFolder
    expired: int = 0

    def runs(self) -> Iterator[Run]:
        """The messages, confirmed behind the last."""
        yield from self.found.runs
        self.confirm()


def run(plan: RunPlan, batches: Iterator[pa.RecordBatch]) -> Outcome | None:
    """Deliver one offset range; None if none of its rows reached this task."""
    place = opened(plan, batches)
    if place is None:
        return None
    from sidecar.spark.run.executor.deliver import Task, deliver  # tasks of tables need none of it

    context = TaskContext.get()
    assert context is not None
    again = place.batch == plan.checkpoint.pending or context.attemptNumber() > 0
    attempt = str(context.taskAttemptId())
    task = Task(place.tp, place.scope, place.ids_scope, place.batch, attempt, again)
    outcome = deliver(plan, task, place.found.columns, place.runs())
    outcome.lane, outcome.expired = place.found.told, place.expired
    return outcome


def opened(plan: RunPlan, batches: Iterator[pa.RecordBatch]) -> TaskRange | None:
    """The range of this task; None if none of its rows reached it.

    Raises:
        StateError: The folder beside the checkpoint cannot be used.
        PositionError: The topic was created again.
        UnavailableError: The broker does not answer.
    """
    batch, folder = _begin(plan)
    first = next((rows for rows in batches if rows.num_rows), None)
    if first is None:
        return None
    tp = place_of(first)
    if "end" not in first.schema.names:  # rows of Spark's connector
        found = RangeMessages(ArrowColumns(), runs(chain([first], batches), tp), None)
        return _place(plan, batch, folder, Range(tp.topic, tp.partition, 0, 0), found)
    (row,) = (row for part in (first, *batches) for row in part.to_pylist())  # an unread rest ends this process
    return _place(plan, batch, folder, Range(**row))


def opened_range(plan: RunPlan, span: Range) -> TaskRange:
    """The range of this task, for a source that reads by itself.

    Raises:
        SidecarError: Like `opened`.
    """
    return _place(plan, *_begin(plan), span)


def _begin(plan: RunPlan) -> tuple[int, RunFolder]:
    """The micro-batch, and the query's folder."""
    context = TaskContext.get()
    assert context is not None
    configure_log(plan.log)
    number = context.getLocalProperty("streaming.sql.batchId")
    assert number is not None, "a task of a stream"
    batch, folder = int(number), RunFolder(plan.folder / plan.query)
    while folder.held(batch):  # the query is being stopped: Spark ends this task before it sends anything
        time.sleep(HELD_WAIT_S)
    return batch, folder


def _place(plan: RunPlan, batch: int, folder: RunFolder, span: Range, found: RangeMessages | None = None) -> TaskRange:
    """The range, read by the job's own client unless its messages were found."""
    tp = TopicPartition(span.topic, span.partition, span.broker)
    broker, checkpoint = plan.broker, plan.checkpoint
    if found is None:
        found = broker.read(plan.folder, tp, span.start, span.end)
    claim = partial(broker.claim, checkpoint.cluster_id, plan.folder, tp.topic)
    topic_id = claim()

    def confirm() -> None:
        patiently(partial(claim, anew=True))

    scope, ids_scope = checkpoint.scope(topic_id), checkpoint.ids_scope(topic_id)
    return TaskRange(tp, found, confirm, span.start, span.end, scope, ids_scope, batch, folder, span.expired)
