"""The metric of how long micro-batches take. It uses no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.core.histogram import Distribution
from sidecar.ops.metrics import buckets_of

MICRO_BATCH_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Seconds."""


class MicroBatches(Collector):
    """Durations of micro-batches, in seconds.

    Args:
        found: Returns them by the name of the query; the one query of a job has none.
    """

    def __init__(self, found: Callable[[], Mapping[str, Distribution]]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """The histogram of each query."""
        text = "Time from planning a micro-batch to its commit."
        family = HistogramMetricFamily("sidecar_micro_batch_seconds", text, labels=["query"])
        for query, seconds in self._found().items():
            family.add_metric([query], buckets_of(seconds), seconds.total)
        yield family
