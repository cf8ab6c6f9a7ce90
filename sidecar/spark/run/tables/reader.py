"""The source of a table: each task reads a range, and returns the rows of the wanted messages."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from sidecar.spark.run.range_source import Range, RangePlanner, Reading
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from sidecar.spark.run.executor.task import Job


class RowReader(RangePlanner):
    """Plans ranges, and reads them.

    Args:
        reading: The parameters of the source.
        job: The parameters of tasks, with a query.
    """

    def __init__(self, reading: Reading, job: Job) -> None:
        super().__init__(reading)
        self._job = pickle.dumps(job)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range, see `rows_of_range`."""
        from sidecar.spark.run.executor.rows import rows_of_range

        assert isinstance(partition, Range)
        yield from rows_of_range(pickle.loads(self._job), partition)
        freeze_modules()
