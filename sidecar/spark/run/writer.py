"""The stream writer that Spark calls: a task delivers its range, the commit writes the books. It decides nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from sidecar.config.model import Settings
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.ops.log import configure
from sidecar.sources.kafka_columns import KafkaColumns
from sidecar.spark.run.columns import ArrowColumns, place_of, runs
from sidecar.spark.run.deliver import Outcome, Task, deliver
from sidecar.spark.run.fetch import fetch
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.frozen import Checkpoint
from sidecar.spark.run.topics import claim

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "sidecar_run"
HELD_WAIT_S = 0.1
_configured = False


@dataclass(frozen=True, slots=True)
class Job:
    """What a task has to know; it travels to the executors with the query.

    Args:
        settings: The configuration, secrets and all.
        folder: The run's folder, on shared storage.
        checkpoint: What names are made of.
    """

    settings: Settings
    folder: Path
    checkpoint: Checkpoint


@dataclass(slots=True)
class Delivered(WriterCommitMessage):
    """A task's report; None where no row of its range came as far as the task."""

    outcome: Outcome | None


class RangeWriter(DataSourceStreamArrowWriter):
    """Delivers ranges.

    Args:
        job: What a task has to know.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Delivered:
        """Deliver what one Kafka offset range has; returns when all of it is settled."""
        job, context = self._job, TaskContext.get()
        assert context is not None
        _configure_log(job.settings)
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        folder = RunFolder(job.folder)
        while folder.held(batch):  # the query is being stopped: Spark ends this task before it has sent anything
            time.sleep(HELD_WAIT_S)
        first = next((found for found in iterator if found.num_rows), None)
        if first is None:
            return Delivered(None)
        tp, columns, found = self._source(first, iterator)
        checkpoint = job.checkpoint
        topic_id = claim(job.settings.source.kafka, checkpoint.cluster_id, folder, tp.topic)
        again = batch == checkpoint.pending or context.attemptNumber() > 0
        task = Task(
            tp, checkpoint.scope(topic_id), checkpoint.ids_scope(topic_id), batch, str(context.taskAttemptId()), again
        )
        return Delivered(deliver(job.settings, folder, task, columns, found))

    def _source(
        self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> tuple[TopicPartition, Columns, Iterator[Run]]:
        """The messages themselves, from Spark's connector, or their offset range, to be read here."""
        tp = place_of(first)
        if "end" not in first.schema.names:
            return tp, ArrowColumns(), runs(chain([first], others), tp)
        ((start, end),) = zip(first.column("start").to_pylist(), first.column("end").to_pylist(), strict=True)
        return tp, KafkaColumns(), fetch(self._job.settings.source.kafka, tp, start, end)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of a micro-batch are done: keep its books, for the driver's own process to read."""
        folder = RunFolder(self._job.folder)
        outcomes = [m.outcome for m in messages if isinstance(m, Delivered) and m.outcome is not None]
        folder.put_books(batchId, books_of(outcomes))
        folder.add_answers(sum(one.books.delivered for one in outcomes), sum(one.refused for one in outcomes))
        folder.forget_halved(batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A micro-batch failed; what of it was sent is sent again under the same names."""


def books_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a micro-batch came to, as JSON has it."""
    return {
        "partitions": [[one.tp.topic, one.tp.partition, asdict(one.books)] for one in outcomes],
        "cuts": _sum([one.cuts for one in outcomes]),
        "sends": [[*pair, count] for pair, count in _sum([one.sends for one in outcomes]).items()],
        "batches": [[*pair, count] for pair, count in _sum([one.batches for one in outcomes]).items()],
        "letters": [name for one in outcomes for name in one.letters],
    }


def _sum(counts: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _configure_log(settings: Settings) -> None:
    """Once a worker process."""
    global _configured
    if not _configured:
        configure(settings.log.format, settings.log.level)
        _configured = True


def data_source(job: Job) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with the job in it."""

    class SidecarRun(DataSource):
        """The pipeline's sink."""

        @classmethod
        def name(cls) -> str:
            """As it is asked for."""
            return NAME

        def streamWriter(self, schema: StructType, overwrite: bool) -> RangeWriter:  # noqa: ARG002, N802
            """The writer of the job."""
            return RangeWriter(job)

    return SidecarRun
