"""Tells the progress of a session's queries: metrics, status and health over HTTP, and OpenTelemetry's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sidecar.config.address import address
from sidecar.core.json_text import loads
from sidecar.errors import ConfigError
from sidecar.ops.admin import AdminServer
from sidecar.ops.metrics import Metrics
from sidecar.spark.driver import quietly
from sidecar.spark.failures import cause_of
from sidecar.spark.micro_batches import MicroBatches
from sidecar.spark.queries import Queries, QueryRows
from sidecar.spark.query.counts import Counts, count
from sidecar.spark.telemetry import Telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Listener(StreamingQueryListener):
    """Listens to all queries of a session between `open` and `close`; see `sidecar.spark.listen`.

    Args:
        spark: The session, classic or Connect.
        listen: Host and port; port 0 takes a free one.
        telemetry: Records micro-batches too; None for none.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, spark: SparkSession, listen: str, telemetry: Telemetry | None = None) -> None:
        self._session = spark
        self._telemetry = telemetry
        self._queries = Queries(spark.conf.get("spark.app.name", "") or "spark")
        try:
            place = address(listen, "127.0.0.1:9464", port_min=0)
        except ValueError as error:
            raise ConfigError(f"the address of listen, {listen!r}, {error}") from None
        metrics = Metrics(self._queries.latest, MicroBatches(self._queries.micro_batches), QueryRows(self._queries))
        self._server = AdminServer(place, self._queries.latest, metrics.render, key="the address of listen")
        self._counts: Counts | None = None

    @property
    def url(self) -> str:
        """The server's address, such as ``http://127.0.0.1:9464``, once it is open."""
        return self._server.url

    def open(self) -> None:
        """Begin to listen.

        Raises:
            UnavailableError: The address cannot be listened on.
        """
        self._server.open()
        self._counts = count(self._session)
        self._session.streams.addListener(self)

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        quietly(lambda: self._session.streams.removeListener(self))
        if self._counts is not None:
            self._counts.close()
        self._server.close()

    # Spark's events

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Take the start of a query."""
        self._queries.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take a report."""
        report = loads(event.progress.json)
        books, expired = self._counts.take(report["id"], report["batchId"]) if self._counts else ({}, {})
        done = self._queries.progressed(report, books, expired)
        if done is not None and self._telemetry is not None:
            self._telemetry.tell(done, self._queries.latest().partitions)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Take the end of a query."""
        self._queries.ended(str(event.id), cause_of(event.exception) if event.exception else "")


def telemetry() -> Telemetry | None:
    """Instruments of the application's meter provider; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError:
        return None
    return Telemetry(metrics.get_meter("sidecar"))
