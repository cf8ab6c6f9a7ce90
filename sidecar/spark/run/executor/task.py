"""A task on an executor: delivers the rows that Spark passes, or reads the range that a row names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from sidecar.config.model import Settings
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.ops.log import configure
from sidecar.runtime.lane import refusal
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.sources.kafka.lane.lane import Lane, lane_for
from sidecar.sources.kafka.lane.messages import LaneColumns
from sidecar.spark.ranges.fetch import QUEUE_KBYTES, fetch
from sidecar.spark.run.executor.by_lane import fetch_by_lane
from sidecar.spark.run.executor.columns import ArrowColumns, place_of, runs
from sidecar.spark.run.executor.deliver import Task, deliver
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.run.pinned import Checkpoint
from sidecar.spark.run.topics import claim

if TYPE_CHECKING:
    import pyarrow as pa

HELD_WAIT_S = 0.1
_configured = False


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters of all tasks; sent to the executors with the query.

    Args:
        settings: The configuration, including secrets.
        folder: The run's folder, on shared storage.
        checkpoint: The identity from which names are made.
    """

    settings: Settings
    folder: Path
    checkpoint: Checkpoint


def run(job: Job, batches: Iterator[pa.RecordBatch]) -> Outcome | None:
    """Deliver one Kafka offset range; None if none of its rows reached this task."""
    context = TaskContext.get()
    assert context is not None
    _configure_log(job.settings)
    batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
    folder = RunFolder(job.folder)
    while folder.held(batch):  # the query is being stopped: Spark ends this task before it sends anything
        time.sleep(HELD_WAIT_S)
    first = next((rows for rows in batches if rows.num_rows), None)
    if first is None:
        return None
    tp, columns, read, lane = _source(job, first, batches)
    checkpoint = job.checkpoint
    topic_id = claim(job.settings.source.kafka, checkpoint.cluster_id, folder, tp.topic)
    again = batch == checkpoint.pending or context.attemptNumber() > 0
    task = Task(
        tp, checkpoint.scope(topic_id), checkpoint.ids_scope(topic_id), batch, str(context.taskAttemptId()), again
    )
    outcome = deliver(job.settings, folder, task, columns, read)
    outcome.lane = lane
    return outcome


def _source(
    job: Job, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
) -> tuple[TopicPartition, Columns, Iterator[Run], str | None]:
    """The messages: rows of Spark's connector, or read here by their offset range; and `Outcome.lane`."""
    tp = place_of(first)
    if "end" not in first.schema.names:
        return tp, ArrowColumns(), runs(chain([first], others), tp), None
    (row,) = (row for batch in (first, *others) for row in batch.to_pylist())  # an unread rest ends this Python process
    kafka, start, end = job.settings.source.kafka, row["start"], row["end"]
    lane = lane_for(kafka.lane, refusal(job.settings), QUEUE_KBYTES << 10)
    if isinstance(lane, Lane):
        return tp, LaneColumns(), fetch_by_lane(kafka, lane, tp, start, end), ""
    return tp, KafkaColumns(), fetch(kafka, tp, start, end), None if kafka.lane == "off" else lane


def _configure_log(settings: Settings) -> None:
    """Configure the log, once per worker process."""
    global _configured
    if not _configured:
        configure(settings.log.format, settings.log.level)
        _configured = True
