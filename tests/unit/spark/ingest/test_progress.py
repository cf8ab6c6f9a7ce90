"""The progress of the ingest job from Spark's reports, and what is left to read. No Spark runs."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.ops.health import Problem
from sidecar.ops.metrics import Metrics
from sidecar.spark.ingest.progress import READ, Behind, IngestProgress, Lag
from sidecar.spark.metrics import table_metrics
from sidecar.spark.table.filling import WRITTEN


class Zone:
    """What is left in a zone."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []
        self.left: Behind | None = Behind(7, 700)

    def behind(self, read: dict[str, int]) -> Behind | None:
        """See `Lag`."""
        self.asked.append(dict(read))
        return self.left


def report(batch: int, read: int, written: int, end: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """Spark's report of a micro-batch."""
    observed = {READ: {"rows": read}, WRITTEN: {"rows": written}}
    source = {"endOffset": end or {"w": batch}}
    durations = {"addBatch": 5, "triggerExecution": 2_000}
    return {"batchId": batch, "durationMs": durations, "sources": [source], "observedMetrics": observed, **more}


@pytest.fixture
def zone() -> Zone:
    """A zone with rows to read."""
    return Zone()


@pytest.fixture
def progress(zone: Zone) -> IngestProgress:
    """A job that begins."""
    return IngestProgress("g", cast(Lag, zone))


def test_rows_are_counted_by_micro_batch(progress: IngestProgress, zone: Zone) -> None:
    """What was read and not written is rejected; the end of each writer's log is what was read."""
    progress.heard([report(0, 10, 8), report(1, 5, 5, {"w": 4, "v": 2})])
    assert progress.totals == {"rows_read": 15, "rows_written": 13, "rows_rejected": 2, "micro_batches": 2}
    assert zone.asked == [{"w": 0}, {"w": 4, "v": 2}]
    assert next(progress.metrics()).samples[-1].value == 4.0


def test_a_report_counts_once(progress: IngestProgress) -> None:
    """Spark repeats them; one of a trigger without data, or that was not ended, is none."""
    idle = report(3, 9, 9) | {"durationMs": {"triggerExecution": 1}}
    progress.heard([report(0, 10, 8), report(0, 10, 8), idle, report(3, 9, 9) | {"durationMs": None}])
    assert progress.totals["micro_batches"] == 1
    progress.heard([report(3, 1, 1)])
    assert progress.totals["rows_read"] == 11


def test_a_report_without_observations_has_no_rows(progress: IngestProgress) -> None:
    """It is still a micro-batch."""
    progress.heard([report(0, 0, 0) | {"observedMetrics": {}}])
    assert progress.totals == {"rows_read": 0, "rows_written": 0, "rows_rejected": 0, "micro_batches": 1}


def test_the_status_has_lag_and_end(progress: IngestProgress, zone: Zone) -> None:
    """A job that has ended is a problem, with its reason if there is one; lag is unknown where the zone is not read."""
    assert (progress.latest().live, progress.latest().problems, progress.latest().lag) == (True, (), None)
    progress.look()
    assert (progress.latest().group_id, progress.latest().lag) == ("g", 7)
    progress.ended()
    assert progress.latest().problems == (Problem("ended", "the queries have ended"),)
    assert not progress.latest().live
    progress.ended("no zone")
    zone.left = None
    progress.look()
    assert (progress.latest().problems, progress.latest().lag) == ((Problem("ended", "no zone"),), None)


def test_metrics_have_rows_and_lag(progress: IngestProgress) -> None:
    """The lag is missing before it is known."""

    def values() -> dict[str, float]:
        text = (
            Metrics(None, progress.metrics, lambda: table_metrics(progress.totals, {("optimize", "ok"): 3}))
            .render()
            .decode()
        )
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {sample.name: sample.value for sample in samples if sample.name.startswith("sidecar_")}

    assert "sidecar_ingest_lag_rows" not in values()
    progress.heard([report(0, 10, 8)])
    found = values()
    assert (found["sidecar_ingest_lag_rows"], found["sidecar_ingest_lag_bytes"]) == (7, 700)
    assert 10 in found.values() and 2 in found.values() and 3 in found.values()
