"""The metrics of a job that fills a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily

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
