"""Parsing of Spark's reports of micro-batches. It uses no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.spark.ranges.broker import by_partition


def offsets_in(offsets: Any) -> dict[str, Any]:
    """A source's offsets, which Spark reports as JSON, as JSON text, or not at all.

    Raises:
        ValueError: The text is not JSON.
    """
    return (loads(offsets) if isinstance(offsets, str) else offsets) or {}


def places_in(offsets: Any) -> dict[TopicPartition, int]:
    """Offsets by partition, in the form of Spark's connector or of Sidecar's sources; empty for any other form."""
    try:
        found = offsets_in(offsets)
        by_topic = found["next"] if found.keys() >= {"next", "from", "ids"} else found
        return by_partition(by_topic)
    except (ValueError, TypeError, AttributeError):
        return {}


def observed_rows(report: Mapping[str, Any], name: str) -> int | None:
    """The rows counted by the observation of this name; None if it is not in the report."""
    observed = report.get("observedMetrics") or {}
    return int(observed[name]["rows"]) if name in observed else None


def seconds(report: Mapping[str, Any]) -> float:
    """Duration of the micro-batch, to the millisecond."""
    return round(int((report.get("durationMs") or {}).get("triggerExecution", 0)) / 1000, 3)
