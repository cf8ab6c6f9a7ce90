"""The books of a session's queries, from Spark's reports: snapshot and metrics. No Spark call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar.core.books import Books
from sidecar.core.histogram import Distribution, Histogram
from sidecar.core.records import TopicPartition
from sidecar.ops.health import Problem
from sidecar.ops.snapshot import PartitionStatus, StatusSnapshot
from sidecar.spark.micro_batches import MICRO_BATCH_BOUNDS
from sidecar.spark.reports import places_in, seconds
from sidecar.version import VERSION

ENDED_MAX: Final = 20
"""Limit of queries that have ended and are still told; of earlier ones, only the sums of the status remain."""


class MicroBatch(NamedTuple):
    """A micro-batch that has ended.

    Args:
        books: What became of messages, where tasks told it.
    """

    query: str
    seconds: float
    books: Mapping[TopicPartition, Books]


@dataclass(slots=True)
class _Query:
    name: str
    last: int = -1
    """Number of the last micro-batch."""
    partitions: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
    rows: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(MICRO_BATCH_BOUNDS))
    problem: str = ""
    is_active: bool = True

    def status_of(self, tp: TopicPartition) -> PartitionStatus:
        new = PartitionStatus(topic=tp.topic, partition=tp.partition, broker=tp.broker, query=self.name)
        return self.partitions.setdefault(tp, new)

    def place(self, source: Mapping[str, Any]) -> None:
        """Take the offsets in Spark's report of a source."""
        ends = places_in(source.get("latestOffset"))
        for tp, offset in places_in(source.get("endOffset")).items():
            status = self.status_of(tp)
            status.watermark = status.position = offset
            status.lag = max(0, ends[tp] - offset) if tp in ends else None


class Queries:
    """Takes Spark's events, from any threads: a start comes in the thread that starts the query, the others do not."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._queries: dict[str, _Query] = {}
        self._closed = Books()
        self._lock = Lock()
        self._snapshot = self._build()

    # Events

    def started(self, query_id: str, name: str | None) -> None:
        """Take a query that starts, also one that starts again."""
        with self._lock:
            name = name or query_id
            for old, one in list(self._queries.items()):
                # Under another name it is another series; of another checkpoint, one with the same labels is an error.
                if (old == query_id) != (one.name == name):
                    self._close(old)
            query = self._queries.pop(query_id, None) or _Query(name)
            query.is_active, query.problem = True, ""
            self._queries[query_id] = query
            self._snapshot = self._build()

    def progressed(
        self,
        report: Mapping[str, Any],
        books: Mapping[TopicPartition, Books],
        expired: Mapping[TopicPartition, int] = {},
    ) -> MicroBatch | None:
        """Take Spark's report of a micro-batch.

        Args:
            books: What became of messages, where tasks told it.
            expired: Offsets that expired before they were read.

        Returns:
            The micro-batch; None if it was told before, or the report is of none.
        """
        with self._lock:
            query_id, batch = str(report["id"]), int(report["batchId"])
            query = self._queries.setdefault(query_id, _Query(report.get("name") or query_id))
            for source in report["sources"]:
                query.place(source)
            done = None
            if batch > query.last and "addBatch" in (report.get("durationMs") or {}):
                query.last = batch
                query.rows += int(report.get("numInputRows") or 0)
                query.seconds.observe(seconds(report))
                for tp, counted in books.items():
                    status = query.status_of(tp)
                    status += counted
                    status.expired = (status.expired or 0) + expired.get(tp, 0)
                done = MicroBatch(query.name, seconds(report), books)
            self._snapshot = self._build()
            return done

    def ended(self, query_id: str, problem: str) -> None:
        """Take the end of a query.

        Args:
            problem: Why it failed; empty if it was stopped or is done.
        """
        with self._lock:
            query = self._queries.setdefault(query_id, _Query(query_id))
            query.is_active, query.problem = False, problem
            for status in query.partitions.values():
                status.lag = None
            ended = [found for found, one in self._queries.items() if not one.is_active]
            for old in ended[:-ENDED_MAX]:
                self._close(old)
            self._snapshot = self._build()

    def _close(self, query_id: str) -> None:
        for status in self._queries.pop(query_id).partitions.values():
            self._closed += status

    # Status

    def latest(self) -> StatusSnapshot:
        """The last snapshot; from any thread."""
        return self._snapshot

    def micro_batches(self) -> Mapping[str, Distribution]:
        """Durations of micro-batches by query; from any thread."""
        return {query.name: query.seconds.read() for query in list(self._queries.values())}

    def rows(self) -> Mapping[str, int]:
        """Rows that sources gave, by query; from any thread."""
        return {query.name: query.rows for query in list(self._queries.values())}

    def _build(self) -> StatusSnapshot:
        # Copies: other threads read the status while events are taken.
        partitions = tuple(
            replace(query.partitions[tp]) for query in self._queries.values() for tp in sorted(query.partitions)
        )
        lags = [status.lag for status in partitions if status.lag is not None]
        totals = replace(self._closed)
        for status in partitions:
            totals += status
        failed = [query for query in self._queries.values() if query.problem]
        return StatusSnapshot(
            group_id=self._application,
            started_at=self._started_at,
            version=VERSION,
            live=True,
            totals=totals,
            lag=sum(lags) if lags else None,
            partitions=partitions,
            problems=tuple(Problem("ended", f"query {query.name}: {query.problem}") for query in failed),
        )


class QueryRows(Collector):
    """The metric of rows by query.

    Args:
        queries: Read once per scrape.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def collect(self) -> Iterator[Metric]:
        """A counter for each query."""
        family = CounterMetricFamily("sidecar_query_rows", "Rows that sources gave to a query.", labels=["query"])
        for query, rows in self._queries.rows().items():
            family.add_metric([query], rows)
        yield family
