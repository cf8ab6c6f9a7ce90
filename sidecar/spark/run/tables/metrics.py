"""The metrics of the pipeline on Spark with a sink that is a table."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from sidecar.ops.metrics import Metrics
from sidecar.spark.run.progress import RunProgress
from sidecar.spark.table.metrics import table_counters


class TableMetrics(Metrics):
    """The metrics of the daemon, and those of a job that fills a table.

    Args:
        progress: Read once per scrape.
    """

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(progress.latest)
        self._registry.register(_TableCollector(progress))


class _TableCollector(Collector):
    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield from table_counters(self._progress.rows)
