"""Metrics that jobs and queries have in common. It uses no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from sidecar.core.books import Distribution
from sidecar.ops.metrics import buckets_of, maintenance

_COUNTERS: Final = {
    "rows_read": "Rows that were read for the table, each once.",
    "rows_written": "Rows that are in the table.",
    "rows_rejected": "Rows that do not fit the schema, and are in the table of rejects.",
    "micro_batches": "Micro-batches that are committed.",
}


def table_metrics(totals: Mapping[str, int], maintained: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """The rows of a table, each total 0 if it is missing, and the runs of its maintenance."""
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"sidecar_ingest_{name}", text, value=totals.get(name, 0))
    yield from maintenance(maintained)


MICRO_BATCH_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds in seconds."""


def micro_batches(found: Mapping[str, Distribution]) -> Metric:
    """Durations of micro-batches by the name of the query, in seconds; the one query of a job has none."""
    text = "Time from planning a micro-batch to its commit."
    family = HistogramMetricFamily("sidecar_micro_batch_seconds", text, labels=["query"])
    for query, seconds in found.items():
        family.add_metric([query], buckets_of(seconds), seconds.total)
    return family
