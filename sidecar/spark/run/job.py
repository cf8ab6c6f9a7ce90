"""The driver of `sidecar spark run`: session, query, stop. The executors decide about delivery."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import orjson
import structlog

from sidecar.config.model import Settings
from sidecar.config.spark import Spark
from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_CONFIG, PositionError, SidecarError, UnknownTopicError
from sidecar.ops.admin import AdminServer, open_probes
from sidecar.ops.metrics import Metrics
from sidecar.runtime.lane import refusal_on_spark
from sidecar.spark import driver
from sidecar.spark.driver import LastingQuery, QueryError
from sidecar.spark.failures import AGAIN, failure_of
from sidecar.spark.ranges import broker_of
from sidecar.spark.ranges.broker import (
    START_OVER,
    BrokerRanges,
    LogExtent,
    Places,
    by_topic,
    expired,
    gap,
    lows_of,
    patiently,
)
from sidecar.spark.ranges.shared import write
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.pinned import Checkpoint, begun_at, latest_batch, open_checkpoint, pin_reader, pinned_reader
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.progress import OBSERVED_PASSED, OBSERVED_RANGES, OBSERVED_READ, RunProgress
from sidecar.spark.run.supported import checkpoint_folder
from sidecar.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sidecar.spark.run.range_source import RangePlan


TRIGGER_MS = 100
"""Interval of checks for new messages; without it the broker gets 100 requests a second."""
ARROW_SHARE = 16
"""Spark's record batches have at most 1/16 of the memory budget."""
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"

log = structlog.get_logger()


class RunReader:
    """Reads messages in Spark: with its connector, or as ranges whose messages tasks read themselves."""

    def __init__(
        self, settings: Settings, spark: Spark, broker: BrokerRanges, query: Path, folder: Path, *, once: bool
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._broker = broker
        self._query_path = query
        self._folder = folder
        self._once = once
        self.by_connector = True
        """Known once there is a frame."""

    def frame(self, session: SparkSession, pending: int) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark.run.pushdown import prefilter

        columns = needed(self._settings)
        wants_connector = self._settings.source.rocketmq is None and self._spark.reader == "connector"
        gap = wants_connector and self.leaves_connector(pending)
        wants_connector &= not gap
        frame = self._connector(session, columns) if wants_connector else None
        self.by_connector = frame is not None
        reader = "connector" if self.by_connector else "client"
        missing = _package(session) if wants_connector and frame is None else ""
        pin_reader(self._folder, reader, -1 if gap else pending, missing)
        if frame is None:
            return self._ranges(session).observe(OBSERVED_RANGES, F.count(F.lit(1)).alias("rows"))
        frame = frame.observe(OBSERVED_READ, F.count(F.lit(1)).alias("rows"))
        condition = prefilter(self._settings.tags)
        if condition is not None:
            frame = frame.where(condition).observe(OBSERVED_PASSED, F.count(F.lit(1)).alias("rows"))
        return frame.select("topic", "partition", "offset", *columns)

    def _connector(self, session: SparkSession, columns: list[str]) -> DataFrame | None:
        """Spark's own source; None without its jar."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark.run.kafka_options import source_options

        options = source_options(self._settings, once=self._once, headers="headers" in columns, stood=self.stood)
        try:
            frame = session.readStream.format("kafka").options(**options).load()
        except AnalysisException as error:
            if "Failed to find data source: kafka" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
                log.warning("connector.missing", wanted=_package(session))
                return None
            raise
        at_ms = F.when(F.col("timestampType") >= 0, F.unix_millis(F.col("timestamp")))
        return frame.withColumn("timestamp_ms", at_ms)

    def _ranges(self, session: SparkSession) -> DataFrame:
        """A source of ranges only, whose messages tasks read themselves."""
        from sidecar.spark.run.range_source import NAME, RangePlanner, range_source

        plan = self.range_plan(self._folder, self._settings.batch.span_max, self.stood)
        session.dataSource.register(range_source(RangePlanner(plan)))
        return session.readStream.format(NAME).load()

    def range_plan(
        self, folder: Path, limit: int, stood: Places | None, until: Mapping[TopicPartition, LogExtent] | None = None
    ) -> RangePlan:
        from sidecar.spark.run.range_source import RangePlan, job_walk

        told = self._settings.log.format, self._settings.log.level
        return RangePlan(job_walk(self._broker, limit, self._spark.on_gap, told), folder, stood, until)

    def first_gap(self) -> tuple[TopicPartition, str] | None:
        """The first partition that was read up to an offset before the start of its log, with the text about it."""
        begun = begun_at(self._query_path)
        if not begun:
            return None
        with closing(self._broker.logs()) as logs:
            lows = lows_of(patiently(logs.bounds))
        behind = min(expired(begun, lows).items(), default=None)
        if behind is None:
            return None
        tp, low = behind
        text = gap(tp, begun[tp], low, "spark.on_gap")
        if self._spark.on_gap == "stop":
            raise PositionError(text, hint=f"set it, or {START_OVER}")
        return tp, text

    def leaves_connector(self, pending: int) -> bool:
        """Whether this run reads as with `client`; the same reader finishes micro-batches that it began.

        Args:
            pending: The micro-batch that an earlier process did not finish; -1 for none.
        """
        found = self.first_gap()
        if found is None:
            return self._spark.on_gap == "log_start" and pending >= 0 and pinned_reader(self._folder) == "client"
        log.warning("connector.not_used", **found[0].fields(), reason="messages expired before they were read")
        if pending == 0:  # the connector keeps the start of a checkpoint elsewhere
            write(self._folder / "first", orjson.dumps(by_topic(begun_at(self._query_path))))
        return True

    @cached_property
    def stood(self) -> Places | None:
        new = latest_batch(self._query_path, "offsets") < 0
        return self._broker.group_offsets() if new else None


def _package(session: SparkSession) -> str:
    """The package that has Spark's connector."""
    return f"{CONNECTOR}:{session.version}"


def needed(settings: Settings) -> list[str]:
    """The columns that any setting needs, in the order of `columns.MessageRow`."""
    kinds = {field.kind for field in (settings.tags.field, settings.dedup.field) if field is not None}
    whole = settings.sink.chosen.row_format == "envelope"
    wanted = {
        "timestamp_ms": whole,
        "key": whole or "key" in kinds,
        "headers": whole or "header" in kinds,
        "value": True,
    }
    return [name for name, asked in wanted.items() if asked]


class SparkRun:
    """The pipeline of one configuration, accepted by `refusals`, on Spark."""

    query_name = "query"

    def __init__(self, settings: Settings, stop_asked: Callable[[], bool], *, once: bool = False) -> None:
        assert settings.spark is not None, "checked before"
        self._settings = settings
        self._stop_asked = stop_asked
        self._once = once
        self._master = settings.spark.master
        self._broker = broker_of(settings, refusal_on_spark(settings), retried=True)
        root = checkpoint_folder(settings.spark.checkpoint)
        assert root is not None, "checked before"
        self._root = root
        self._query_path = root / self.query_name
        self._folder = folder = RunFolder(root / "sidecar")
        self._reader = RunReader(settings, settings.spark, self._broker, self._query_path, folder.path, once=once)

    def run(self) -> None:
        """Deliver until a stop is requested, or with `once` until the present messages are delivered.

        Raises:
            SidecarError: A problem that needs a person.
        """
        settings = self._settings
        with ExitStack() as stack:
            state = stack.enter_context(closing(Store(settings.state.dir)))
            checkpoint = self._open_checkpoint()
            plan = RunPlan.of(settings, self._broker, self._folder.path, checkpoint)
            progress = RunProgress(plan, self._books, self._query_path, state, settings.memory.budget_bytes)
            progress.open()
            stack.callback(progress.close)
            if settings.admin.listen:
                metrics = self._metrics(progress)
                folder, names = Path(settings.state.dir), settings.admin.names
                admin = AdminServer(settings.admin.listen, progress.latest, metrics.render, folder, names=names)
                admin.open()
                stack.callback(admin.close)
            open_probes(stack, settings.admin.probes, progress.latest)
            session = self._session(stack)
            await_end = self._start(stack, session, plan)
            log.info("query.started", group_id=settings.source.group_id, pending=checkpoint.pending)
            with driver.serving(progress, self._stop_asked):
                await_end(progress)
            log.info("query.stopped")

    @property
    def _books(self) -> RunFolder:
        return self._folder

    @property
    def _query_paths(self) -> Sequence[Path]:
        return [self._query_path]

    def _metrics(self, progress: RunProgress) -> Metrics:
        return Metrics(progress.latest, progress.metrics)

    def _open_checkpoint(self) -> Checkpoint:
        cluster_id = self._await_cluster()
        self._broker.refuse_members()
        checkpoint = open_checkpoint(self._query_paths, self._folder.path, self._settings, cluster_id)
        for topic in self._folder.known_topics():
            self._broker.claim(cluster_id, self._folder.path, topic)
        self._folder.hold_from(None)
        self._folder.notes.clear()
        return checkpoint

    def _await_cluster(self) -> str:
        """The id of the cluster, once it knows all topics.

        Raises:
            PositionError: It does not know a topic that this checkpoint has read.
        """
        try:
            return self._broker.await_cluster()
        except UnknownTopicError as error:
            if gone := [topic for topic in error.topics if topic in self._folder.known_topics()]:
                raise PositionError(
                    f"{error}, and this checkpoint has read {', '.join(gone)}: it was deleted, or may not be read",
                    hint=f"restore the topic or access to it, take it out of the file, or {START_OVER}",
                ) from error
            raise

    # Starting

    def _session(self, stack: ExitStack) -> SparkSession:
        session = driver.session(stack, f"sidecar {self._settings.source.group_id}", self._master)
        held_bytes = self._settings.memory.budget_bytes // ARROW_SHARE
        session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", f"{held_bytes}b")
        return session

    def _start(self, stack: ExitStack, session: SparkSession, plan: RunPlan) -> Callable[[RunProgress], None]:
        """Start all queries, which end with the stack; return a function that waits for their end."""
        from pyspark.errors import PySparkException

        from sidecar.spark.run.writer import RangeWriter, data_source

        session.dataSource.register(data_source(RangeWriter(plan)))
        try:
            query = LastingQuery(self._writer(self._reader.frame(session, plan.checkpoint.pending)).start)
        except PySparkException as error:
            raise driver.not_started(error) from error
        stack.callback(driver.quietly, query.stop)
        return partial(self._await_end, query)

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        from sidecar.spark.run.writer import NAME

        location = f"file://{self._query_path}"  # Spark's default file system would apply to a bare path
        writer = frame.writeStream.format(NAME).option("checkpointLocation", location)
        if self._once:
            return writer.trigger(availableNow=True)
        # The connector itself waits for a batch's worth of messages, and begins early when it has arrived.
        every_ms = TRIGGER_MS if self._reader.by_connector else max(TRIGGER_MS, self._settings.batch.linger_ms)
        return writer.trigger(processingTime=f"{every_ms} milliseconds")

    # Running

    def _await_end(self, query: LastingQuery, progress: RunProgress) -> None:
        stop, turn = partial(self._stop, query), progress.settle
        errors = driver.await_end([query], self._stop_asked, progress.heard, turn, stop)
        progress.settle(last=not errors)
        while not (errors or progress.at_rest or self._stop_asked()):
            time.sleep(driver.TURN_S)
            progress.settle(last=True)
        for error in errors:
            self._fail(progress, error)

    def _fail(self, progress: RunProgress, error: Exception) -> NoReturn:
        """Raise the error of the query; the error of Spark's connector does not say where a log begins."""
        found = None
        if self._reader.by_connector and failure_of(str(error)).exit_code == EXIT_CONFIG:
            try:
                found = self._reader.first_gap()
            except PositionError as stopped:
                progress.ended(str(stopped))
                raise
        if found is None:
            driver.fail(progress, error)
        _, text = found
        progress.ended(text)
        raise QueryError(f"the query ended: {text}", hint=AGAIN) from error

    def _stop(self, query: LastingQuery) -> None:
        """Let the running micro-batch end, and no other begin."""
        deadline_s = time.monotonic() + self._draining()
        with contextlib.suppress(SidecarError):  # without the hold the next is cut short and sent again, same names
            latest = -2
            while latest != (begun := latest_batch(self._query_path, "offsets")):
                latest = begun  # it may have begun before it could see the hold
                self._folder.hold_from(latest + 1)
            _await(lambda: latest_batch(self._query_path, "commits") >= latest or not query.isActive, deadline_s)
        query.stop()

    def _draining(self) -> float:
        """Report that a stop begins; return its time limit in seconds."""
        timeout_s = self._settings.drain_timeout_ms / 1000
        log.info("query.draining", timeout_seconds=timeout_s)
        return timeout_s


def _await(condition: Callable[[], bool], deadline_s: float) -> None:
    """Wait until the condition holds or the time is over."""
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(driver.TURN_S / 2)
