"""The driver of `sidecar spark ingest`: session, queries, stop. The module `columns` maps rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import structlog

from sidecar.config.address import Address
from sidecar.config.model import Settings
from sidecar.errors import ConfigError, UnavailableError, ZoneError
from sidecar.ops.admin import AdminServer, open_probes
from sidecar.spark import driver
from sidecar.spark.driver import QueryError, cause_of, quietly
from sidecar.spark.ingest.lag import Lag
from sidecar.spark.ingest.progress import READ, WRITTEN, IngestMetrics, IngestProgress
from sidecar.spark.ingest.supported import REJECTS, Target, schema_text, targets
from sidecar.zone import Tail
from sidecar.zone.table import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

TURN_S: Final = 0.2
LOOK_EVERY_S: Final = 2.0
BATCH_BYTES_MAX: Final = 256 << 20
"""Compressed files of a micro-batch, about five times that in memory, spread over tasks."""
DRIVER_BATCH_BYTES_MAX: Final = 16 << 20
"""The same limit if all rows go through the driver."""

log = structlog.get_logger()


class SparkIngest:
    """Fills the table of one configuration from its zone.

    Args:
        settings: The result of `load_for_ingest`.
        stop_asked: Returns whether to stop.
        once: Read the present data and end.
    """

    def __init__(self, settings: Settings, stop_asked: Callable[[], bool], *, once: bool = False) -> None:
        assert settings.spark is not None, "checked before"
        assert settings.spark.table is not None, "checked before"
        assert settings.sink.spark is not None, "checked before"
        self._settings = settings
        self._spark, self._table, self._zone = settings.spark, settings.spark.table, settings.sink.spark.landing
        self._stop_asked = stop_asked
        self._once = once

    def run(self) -> None:
        """Fill until a stop is requested, or with `once` until all present data is in the table.

        Raises:
            SidecarError: A problem that needs a person.
        """
        schema = None if self._table.schema_ is None else schema_text(self._table.schema_)
        wanted = targets(self._spark, self._table)
        with ExitStack() as stack:
            progress = IngestProgress(self._settings.source.group_id, Lag(self._zone, wanted[0].consumer))
            if self._settings.admin.listen:
                stack.callback(_serve_metrics(self._settings.admin.listen, progress).close)
            open_probes(stack, self._settings.admin.probes, progress.latest)
            session = driver.session(stack, f"sidecar ingest {self._table.path}", self._spark.master)
            _refuse_connect(session)
            queries = self._start(stack, session, wanted, schema)
            log.info("ingest.started", table=self._table.path, zone=str(self._zone), format=self._table.format)
            with driver.serving(progress, self._stop_asked):
                self._await_end(queries, progress)
            log.info("ingest.stopped")

    # Starting

    def _start(
        self, stack: ExitStack, session: SparkSession, wanted: list[Target], schema: str | None
    ) -> list[StreamingQuery]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from sidecar.spark.ingest.columns import schema_of
        from sidecar.spark.ingest.pinned import SparkStorage, pin_schema, refuse_table_of_another
        from sidecar.spark.ingest.writers import has_delta

        parsed = schema_of(schema) if schema is not None else None
        through_driver = self._table.format == "delta" and not has_delta(session)
        queries: list[StreamingQuery] = []
        try:
            storage = SparkStorage(session)
            if self._table.format == "parquet":
                refuse_table_of_another(storage, wanted)
            pin_schema(storage, self._spark.checkpoint, parsed.json() if parsed is not None else "")
            until = self._heads() if self._once else None
            for target in wanted:
                frame = self._frame(session, target, parsed, until, through_driver)
                queries.append(self._query(frame, target, through_driver))
                stack.callback(quietly, queries[-1].stop)
        except (PySparkException, Py4JJavaError) as error:
            raise QueryError(f"the query does not start: {cause_of(str(error))}") from error
        return queries

    def _heads(self) -> dict[str, int] | None:
        """The ends of both queries, so that they read equally far; None if the zone is unreadable: they report that."""
        try:
            return Tail(self._zone).heads()
        except (ZoneError, OSError):
            return None

    def _frame(
        self,
        session: SparkSession,
        target: Target,
        schema: StructType | None,
        until: Mapping[str, int] | None,
        through_driver: bool,
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark import read_stream
        from sidecar.spark.ingest.columns import fitting, parsed, rejected, with_partitions

        size = DRIVER_BATCH_BYTES_MAX if through_driver else BATCH_BYTES_MAX
        frame = read_stream(session, self._zone, columns=ROW, consumer=target.consumer, max_bytes=size, until=until)
        count = F.count(F.lit(1)).alias("rows")
        frame = frame.observe(READ, count)
        if schema is not None:
            frame = parsed(frame, schema)
            frame = rejected(frame) if target.name == REJECTS else fitting(frame, schema)
        return with_partitions(frame).observe(WRITTEN, count)

    def _query(self, frame: DataFrame, target: Target, through_driver: bool) -> StreamingQuery:
        from sidecar.spark.ingest.writers import by_deltalake, native

        query_id: Future[str] = Future()
        if through_driver:
            writer = frame.writeStream.foreachBatch(by_deltalake(target.path, query_id))
        else:
            writer = native(frame, self._table.format, target.path)
        query = self._trigger(writer.queryName(target.name)).option("checkpointLocation", target.checkpoint).start()
        query_id.set_result(query.id)
        return query

    def _trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self._once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self._table.every_ms} milliseconds")

    # Running

    def _await_end(self, queries: list[StreamingQuery], progress: IngestProgress) -> None:
        self._stop_asked()
        look_at_s = 0.0
        while any(query.isActive for query in queries) and not _failed(queries):
            if self._stop_asked():
                self._stop(queries)
                break
            progress.heard(_reports(queries[0]))
            if time.monotonic() >= look_at_s:
                progress.look()
                look_at_s = time.monotonic() + LOOK_EVERY_S
            time.sleep(TURN_S)
        progress.heard(_reports(queries[0]))
        if _failed(queries) and not self._stop_asked():
            driver.fail(progress, next(error for query in queries if (error := query.exception())))

    def _stop(self, queries: list[StreamingQuery]) -> None:
        """Let running micro-batches end; one that is cut short is undone, and repeated."""
        deadline_s = time.monotonic() + self._settings.drain_timeout_ms / 1000
        log.info("ingest.draining", timeout_seconds=self._settings.drain_timeout_ms / 1000)
        begun = {query.id: _last_batch(query) for query in queries}
        waiting = list(queries)
        while waiting and time.monotonic() < deadline_s:
            waiting = [query for query in waiting if _is_busy(query) and _last_batch(query) == begun[query.id]]
            time.sleep(TURN_S / 4)
        for query in queries:
            query.stop()


def _refuse_connect(session: SparkSession) -> None:
    if not hasattr(session, "_jvm"):
        raise ConfigError(
            "the session is one of Spark Connect, and ingest needs one with a JVM of its own, to check the files of "
            "table and checkpoint",
            hint="Run it with spark-submit, or in a process without a session of Spark Connect; or write a query with "
            "sidecar.spark.read_stream, which needs no JVM",
        )


def _serve_metrics(listen: Address, progress: IngestProgress) -> AdminServer:
    """Serve at the configured address, or at a free port if the daemon of the same file uses that."""
    metrics = IngestMetrics(progress)
    try:
        server = AdminServer(listen, progress.latest, metrics)
        server.open()
    except UnavailableError:
        server = AdminServer((listen.host, 0), progress.latest, metrics)
        server.open()
        log.warning("ingest.moved", wanted=f"{listen.host}:{listen.port}", url=server.url)
    return server


def _failed(queries: list[StreamingQuery]) -> bool:
    return any(not query.isActive and query.exception() is not None for query in queries)


def _reports(query: StreamingQuery) -> list[Mapping[str, object]]:
    return list(query.recentProgress)


def _last_batch(query: StreamingQuery) -> int:
    report = query.lastProgress
    return -1 if report is None else int(report["batchId"])


def _is_busy(query: StreamingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])
