"""The stream writer that Spark calls: a task delivers its range, the commit writes the books. It decides nothing.

Spark starts Python processes that only unpickle these classes, for its plan and for each commit: settings and clients
are imported only where a task runs.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, InputPartition, WriterCommitMessage

from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome, TwinFiles, books_of
from sidecar.spark.run.range_source import RangePlan, RangePlanner
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sidecar.spark.run.plan import RunPlan

NAME = "sidecar_run"


@dataclass(slots=True)
class TaskReport(WriterCommitMessage):
    """A task's report; None if no row of its range reached the task."""

    outcome: Outcome | None


class RangeWriter(DataSourceStreamArrowWriter):
    """Delivers ranges."""

    def __init__(self, plan: RunPlan) -> None:
        self._path = plan.folder
        self._packed = pickle.dumps(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Deliver one offset range; return when all of it is settled."""
        from sidecar.spark.run import task

        delivered = TaskReport(task.run(pickle.loads(self._packed), iterator))
        freeze_modules()
        return delivered

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Store the books of a micro-batch whose tasks are done; the driver's own process reads them."""
        folder = RunFolder(self._path)
        outcomes = [m.outcome for m in messages if isinstance(m, TaskReport) and m.outcome is not None]
        TwinFiles(self._path).put(batchId, outcomes)  # first: where books exist, all files beside them do
        folder.books.put(batchId, books_of(outcomes))
        folder.add_answers(
            sum(outcome.books.delivered for outcome in outcomes), sum(outcome.refused for outcome in outcomes)
        )
        folder.halves.forget_batch(batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: parts that a failed micro-batch has sent are sent again under the same names."""


class RowReader(RangePlanner):
    """Plans ranges, and reads them."""

    def __init__(self, ranges: RangePlan, plan: RunPlan) -> None:
        super().__init__(ranges)
        self._packed_plan = pickle.dumps(plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from sidecar.spark.run import task

        plan = pickle.loads(self._packed_plan)
        yield from task.rows_of(plan, task.opened(plan, partition.value))
        freeze_modules()


def data_source(writer: RangeWriter) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with the writer."""

    class SidecarRun(DataSource):
        """The pipeline's sink."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def streamWriter(self, schema: StructType, overwrite: bool) -> RangeWriter:  # noqa: ARG002, N802
            return writer

    return SidecarRun
