"""Reports the progress of a session's queries: metrics, status and health over HTTP, and OpenTelemetry's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, Metric
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sidecar.config.base import address
from sidecar.core.books import Books, Histogram
from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.ops.admin import AdminServer
from sidecar.ops.health import problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.snapshot import PartitionStatus, StatusSnapshot
from sidecar.spark.driver import quietly
from sidecar.spark.failures import cause_of
from sidecar.spark.metrics import MICRO_BATCH_BOUNDS, micro_batches
from sidecar.spark.query.task import Counted, count, count_no_more, take_counts
from sidecar.spark.reports import places_in, seconds
from sidecar.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.util.types import Attributes
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

ENDED_MAX: Final = 20
"""Limit of queries that have ended and are still reported; of earlier ones, only the sums of the status remain."""


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
    """Takes Spark's events, from any threads: only a start comes in the thread that starts the query."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._queries: dict[str, _Query] = {}
        self._closed = Books()
        self._lock = Lock()
        self._snapshot = self._build()

    # Events

    def started(self, query_id: str, name: str | None) -> None:
        """Take the start of a query, also a repeated one."""
        with self._lock:
            name = name or query_id
            for old, one in list(self._queries.items()):
                # A new name is a new series; two series with the same labels would be an error.
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
    ) -> str | None:
        """Take Spark's report of a micro-batch.

        Args:
            books: The outcomes of messages, where tasks reported them.
            expired: Offsets that expired before they were read.

        Returns:
            Name of the query; None if the micro-batch was reported before, or the report is about none.
        """
        with self._lock:
            query_id, batch = str(report["id"]), int(report["batchId"])
            query = self._queries.setdefault(query_id, _Query(report.get("name") or query_id))
            for source in report["sources"]:
                query.place(source)
            is_new = batch > query.last and "addBatch" in (report.get("durationMs") or {})
            if is_new:
                query.last = batch
                query.rows += int(report.get("numInputRows") or 0)
                query.seconds.observe(seconds(report))
                for tp, counted in books.items():
                    status = query.status_of(tp)
                    status += counted
                    status.expired = (status.expired or 0) + expired.get(tp, 0)
            self._snapshot = self._build()
            return query.name if is_new else None

    def ended(self, query_id: str, problem: str) -> None:
        """Take the end of a query, and the reason of a failure; empty if the query was stopped or is done."""
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
        return self._snapshot

    def metrics(self) -> Iterator[Metric]:
        """Durations of micro-batches, and rows that sources gave, by query; from any thread."""
        queries = list(self._queries.values())
        yield micro_batches({query.name: query.seconds.read() for query in queries})
        rows = CounterMetricFamily("sidecar_query_rows", "Rows that sources gave to a query.", labels=["query"])
        for query in queries:
            rows.add_metric([query.name], query.rows)
        yield rows

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
            problems=tuple(problem("ended", reason=f"query {query.name}: {query.problem}") for query in failed),
        )


class Telemetry:
    """Records micro-batches."""

    def __init__(self, meter: Meter) -> None:
        names = {
            "delivered": "messaging.client.consumed.messages",
            "duplicate": "sidecar.messages.duplicate",
            "filtered": "sidecar.messages.filtered",
        }
        self._counters = {outcome: meter.create_counter(name, "{message}") for outcome, name in names.items()}
        self._seconds = meter.create_histogram("messaging.process.duration", "s")
        self._lag = meter.create_gauge("sidecar.partition.lag", "{message}")

    def tell(
        self,
        query: str,
        seconds: float,
        books: Mapping[TopicPartition, Books],
        partitions: Iterable[PartitionStatus],
    ) -> None:
        """Record a micro-batch with its outcomes, where tasks reported them, and the lag of its query."""
        own = [status for status in partitions if status.query == query]
        systems = {_system(status.broker) for status in own}
        more = {"messaging.system": systems.pop()} if len(systems) == 1 else {}
        self._seconds.record(seconds, {"messaging.operation.name": "process", "sidecar.query": query, **more})
        for tp, counted in books.items():
            for outcome, counter in self._counters.items():
                counter.add(getattr(counted, outcome), _attributes(query, tp))
        for status in own:
            if status.lag is not None:
                tp = TopicPartition(status.topic, status.partition, status.broker)
                self._lag.set(status.lag, _attributes(query, tp))


def _attributes(query: str, tp: TopicPartition) -> Attributes:
    return {
        "messaging.operation.name": "poll",
        "messaging.system": _system(tp.broker),
        "messaging.destination.name": tp.topic,
        "messaging.destination.partition.id": tp.queue,
        "sidecar.query": query,
    }


def _system(broker: str) -> str:
    return "rocketmq" if broker else "kafka"


class QueryListener(StreamingQueryListener):
    """Listens to all queries of a session from `open` to `close`, at a port (0: any); see `sidecar.spark.listen`."""

    def __init__(self, spark: SparkSession, listen: str, telemetry: Telemetry | None = None) -> None:
        self._session = spark
        self._telemetry = telemetry
        self._queries = Queries(spark.conf.get("spark.app.name", "") or "spark")
        try:
            place = address(listen, "127.0.0.1:9464", port_min=0)
        except ValueError as error:
            raise ConfigError(f"the address of listen, {listen!r}, {error}") from None
        metrics = Metrics(self._queries.latest, self._queries.metrics)
        self._server = AdminServer(place, self._queries.latest, metrics.render, key="the address of listen")
        self._counted: Accumulator[Counted] | None = None

    @property
    def url(self) -> str:
        """The server's address, such as ``http://127.0.0.1:9464``, once it is open."""
        return self._server.url

    def open(self) -> None:
        """Begin to listen."""
        self._server.open()
        self._counted = count(self._session)
        self._session.streams.addListener(self)

    def close(self) -> None:
        """A second call does nothing."""
        quietly(lambda: self._session.streams.removeListener(self))
        count_no_more(self._counted)
        self._server.close()

    # Spark's events

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        self._queries.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        report = loads(event.progress.json)
        waiting = {} if self._counted is None else self._counted.value
        books, expired = take_counts(waiting, report["id"], report["batchId"])
        query = self._queries.progressed(report, books, expired)
        if query is not None and self._telemetry is not None:
            self._telemetry.tell(query, seconds(report), books, self._queries.latest().partitions)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._queries.ended(str(event.id), cause_of(event.exception) if event.exception else "")


def telemetry() -> Telemetry | None:
    """Instruments of the application's meter provider; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError:
        return None
    return Telemetry(metrics.get_meter("sidecar"))
