"""Progress of the queries: a log line per micro-batch, metrics, the snapshot. No Spark call."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric

from sidecar.core.books import Histogram
from sidecar.errors import ZoneError
from sidecar.ops.health import problem
from sidecar.ops.snapshot import StatusSnapshot
from sidecar.spark.metrics import MICRO_BATCH_BOUNDS, micro_batches
from sidecar.spark.reports import observed_rows, offsets_in, seconds
from sidecar.spark.table.filling import WRITTEN
from sidecar.storage import Root
from sidecar.version import VERSION
from sidecar.zone import Tail, acknowledged


class Behind(NamedTuple):
    """The data that is left to read; rows that are duplicates are included."""

    rows: int
    bytes: int


class Lag:
    """Follows the manifests beside the query, which does not report data that it has not planned.

    Args:
        root: The zone; it may not exist yet.
        consumer: The consumer whose acknowledgements are the beginning.
    """

    def __init__(self, root: Root, consumer: str) -> None:
        self._root = root
        self._consumer = consumer
        self._tail: Tail | None = None
        self._read: dict[str, int] = {}
        self._unread: dict[str, deque[tuple[int, int, int]]] = {}
        self._rows = self._bytes = 0

    def behind(self, read: Mapping[str, int]) -> Behind | None:
        """The data landed after these numbers; None if the zone cannot be read, which the query will report.

        Args:
            read: The last number read, by writer; earlier numbers stay valid.
        """
        try:
            self._take_in()
        except (ZoneError, OSError):
            self._tail = None
            return None
        for writer, seq in read.items():
            self._read[writer] = max(seq, self._read.get(writer, -1))
        for writer, seq in self._read.items():
            self._forget(writer, seq)
        return Behind(self._rows, self._bytes)

    def _take_in(self) -> None:
        if self._tail is None:
            self._read |= acknowledged(self._root).get(self._consumer, {})
            self._tail = Tail(self._root, {**self._read})
            self._unread, self._rows, self._bytes = {}, 0, 0
        while new := self._tail.poll():
            for writer, entries in new.items():
                waiting = self._unread.setdefault(writer, deque())
                for entry in entries:
                    waiting.append((entry.seq, entry.rows, entry.bytes))
                    self._rows += entry.rows
                    self._bytes += entry.bytes

    def _forget(self, writer: str, upto: int) -> None:
        waiting = self._unread.get(writer)
        while waiting and waiting[0][0] <= upto:
            _, rows, size = waiting.popleft()
            self._rows -= rows
            self._bytes -= size


READ: Final = "sidecar_read"
"""Name of Spark's observation that counts the rows of the zone."""

log = structlog.get_logger()


class IngestProgress:
    """Progress of the query that fills the table; the rows that it does not write are the rejects."""

    def __init__(self, group_id: str, lag: Lag) -> None:
        self._group_id = group_id
        self._lag = lag
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._last = -1
        self._read: dict[str, int] = {}
        self.totals: Counter[str] = Counter()
        self.behind: Behind | None = None
        self._seconds = Histogram(MICRO_BATCH_BOUNDS)
        self._problem = ""
        self._live = True

    def heard(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take Spark's reports, in their order; those seen before are ignored."""
        for report in reports:
            if int(report["batchId"]) > self._last and "addBatch" in (report.get("durationMs") or {}):
                self._last = int(report["batchId"])
                self._enter(report)

    def _enter(self, report: Mapping[str, Any]) -> None:
        self._read |= {writer: int(seq) for writer, seq in offsets_in(report["sources"][0].get("endOffset")).items()}
        read, written = (observed_rows(report, name) or 0 for name in (READ, WRITTEN))
        self.totals.update(rows_read=read, rows_written=written, rows_rejected=read - written, micro_batches=1)
        self._seconds.observe(seconds(report))
        self.look()
        log.info(
            "ingest.committed", batch=self._last, rows_read=read, rows_written=written, rows_rejected=read - written,
            lag_rows=self.behind and self.behind.rows, lag_bytes=self.behind and self.behind.bytes,
            seconds=seconds(report),
        )  # fmt: skip

    def look(self) -> None:
        """Update `behind`."""
        self.behind = self._lag.behind(self._read)

    def metrics(self) -> Iterator[Metric]:
        yield micro_batches({"": self._seconds.read()})
        if (behind := self.behind) is not None:
            yield GaugeMetricFamily("sidecar_ingest_lag_rows", "Rows in the zone that are not read.", value=behind.rows)
            yield GaugeMetricFamily("sidecar_ingest_lag_bytes", "Bytes of their files.", value=behind.bytes)

    def ended(self, problem: str = "") -> None:
        self._live, self._problem = False, problem

    def latest(self) -> StatusSnapshot:
        """The snapshot for health and status; from any thread."""
        return StatusSnapshot(
            group_id=self._group_id,
            started_at=self._started,
            version=VERSION,
            live=self._live,
            lag=self.behind.rows if self.behind else None,
            problems=() if self._live else (problem("ended", reason=self._problem or "the queries have ended"),),
        )
