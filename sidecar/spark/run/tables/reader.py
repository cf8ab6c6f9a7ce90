"""The source of a table: each task reads a range, and returns the rows of the wanted messages."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from sidecar.spark.run.range_source import Range, RangePlan, RangePlanner
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from sidecar.spark.run.plan import RunPlan


class RowReader(RangePlanner):
    """Plans ranges, and reads them.

    Args:
        reading: The parameters of the source.
        plan: With a query.
    """

    def __init__(self, ranges: RangePlan, plan: RunPlan) -> None:
        super().__init__(ranges)
        self._packed_plan = pickle.dumps(plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range, see `rows_of_range`."""
        from sidecar.spark.run.executor.rows import rows_of_range

        assert isinstance(partition, Range)
        yield from rows_of_range(pickle.loads(self._packed_plan), partition)
        freeze_modules()
