"""Metrics that jobs and queries have in common. It uses no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.core.books import Distribution
from sidecar.ops.metrics import buckets_of

_COUNTERS: Final = {
    "rows_read": "Rows that were read for the table, each once.",
    "rows_written": "Rows that are in the table.",
    "rows_rejected": "Rows that do not fit the schema, and are in the table of rejects.",
    "micro_batches": "Micro-batches that are committed.",
}


def table_counters(totals: Mapping[str, int]) -> Iterator[CounterMetricFamily]:
    """A counter for each total; a missing one is 0."""
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"sidecar_ingest_{name}", text, value=totals.get(name, 0))


MICRO_BATCH_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds in seconds."""


class MicroBatches(Collector):
    """Durations of micro-batches, in seconds.

    Args:
        found: Returns them by the name of the query; the one query of a job has none.
    """

    def __init__(self, found: Callable[[], Mapping[str, Distribution]]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        text = "Time from planning a micro-batch to its commit."
        family = HistogramMetricFamily("sidecar_micro_batch_seconds", text, labels=["query"])
        for query, seconds in self._found().items():
            family.add_metric([query], buckets_of(seconds), seconds.total)
        yield family
