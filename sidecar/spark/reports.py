"""What Spark's report of a micro-batch tells, and what it leaves out. No Spark may come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def offsets_in(offsets: Any) -> dict[str, Any]:
    """A source's offsets, which Spark tells as JSON, as text of JSON, or not at all.

    Raises:
        ValueError: The text is no JSON.
    """
    return (json.loads(offsets) if isinstance(offsets, str) else offsets) or {}


def observed_rows(report: Mapping[str, Any], name: str) -> int | None:
    """The rows that an observation of this name counted; None where it is not in the report."""
    observed = report.get("observedMetrics") or {}
    return int(observed[name]["rows"]) if name in observed else None


def seconds(report: Mapping[str, Any]) -> float:
    """How long the micro-batch took, to the millisecond."""
    return round(int((report.get("durationMs") or {}).get("triggerExecution", 0)) / 1000, 3)
