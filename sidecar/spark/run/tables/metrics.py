"""The metrics of the pipeline on Spark with a sink that is a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.registry import Collector

from sidecar.ops.metrics import Metrics, maintenance
from sidecar.spark.micro_batches import MicroBatches
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.table.metrics import table_counters


class TableMetrics(Metrics):
    """The metrics of the daemon, and those of a job that fills a table.

    Args:
        progress: Read once per scrape.
        maintained: Maintenance by operation and result; the keys do not change.
    """

    def __init__(self, progress: RunProgress, maintained: Mapping[tuple[str, str], int]) -> None:
        super().__init__(progress.latest, _TableCollector(progress, maintained), MicroBatches(progress.micro_batches))


class _TableCollector(Collector):
    def __init__(self, progress: RunProgress, maintained: Mapping[tuple[str, str], int]) -> None:
        self._progress = progress
        self._maintained = maintained

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield from table_counters(self._progress.rows)
        yield from maintenance(self._maintained)
