"""The queries that fill a table and its rejects: their start, their end, a stop. It does not know what they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sidecar.errors import ConfigError
from sidecar.spark import driver
from sidecar.spark.driver import QueryError, QueryProgress, cause_of, quietly
from sidecar.spark.table.targets import REJECTS, Target, schema_text, targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

TURN_S: Final = 0.2
WRITTEN: Final = "sidecar_written"
"""Name of Spark's observation that counts the rows of a table."""


class TableProgress(QueryProgress, Protocol):
    """Interface for the progress of a job that fills a table."""

    def heard(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take Spark's reports of the query for the table, in their order, also those seen before."""
        ...


@dataclass(frozen=True, slots=True)
class TableRules:
    """A table, as the settings have it.

    Args:
        path: Folder or URL.
        format: `parquet` or `delta`.
        schema: Of the JSON values: its text or its file; None if values are not parsed.
        every_ms: Shortest interval of additions.
        partitioned_by: Columns by which a new table is partitioned.
    """

    path: str
    format: str
    schema: str | None
    every_ms: int
    partitioned_by: tuple[str, ...]


class Filling:
    """The queries of one table.

    Args:
        table: The table.
        checkpoint: Of the job; it has the checkpoints of the queries, and the schema.
        once: Whether the queries end with the present data.

    Raises:
        ConfigError: The file of the schema cannot be read.
    """

    def __init__(self, table: TableRules, checkpoint: str, *, once: bool) -> None:
        self._table = table
        self._checkpoint = checkpoint
        self._once = once
        self._schema_text = None if table.schema is None else schema_text(table.schema)
        self.targets = targets(checkpoint, table.path, rejects=table.schema is not None)
        self.through_driver = False
        """Whether all rows go through the memory of the driver; known after `check`."""
        self._schema: StructType | None = None
        self._queries: list[StreamingQuery] = []

    # Starting

    def check(self, session: SparkSession) -> None:
        """Check that table and checkpoint belong together, and that the schema may follow the one before.

        Raises:
            ConfigError: They do not, or it may not; or the session is one of Spark Connect.
        """
        from sidecar.spark.table.columns import schema_of
        from sidecar.spark.table.pinned import SparkStorage, pin_schema, refuse_table_of_another
        from sidecar.spark.table.writers import has_delta

        _refuse_connect(session)
        self._schema = schema_of(self._schema_text) if self._schema_text is not None else None
        self.through_driver = self._table.format == "delta" and not has_delta(session)
        with _reported():
            storage = SparkStorage(session)
            if self._table.format == "parquet":
                refuse_table_of_another(storage, self.targets)
            pin_schema(storage, self._checkpoint, self._schema.json() if self._schema is not None else "")

    def start(self, stack: ExitStack, frame_of: Callable[[Target], DataFrame]) -> None:
        """Start the query of each target.

        Args:
            stack: Stops them when it is closed.
            frame_of: The rows for a target, with the columns of the zone.

        Raises:
            QueryError: Spark refuses a query.
        """
        with _reported():
            for target in self.targets:
                self._queries.append(self._query(self._fitted(frame_of(target), target), target))
                stack.callback(quietly, self._queries[-1].stop)

    def _fitted(self, frame: DataFrame, target: Target) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark.table.columns import fitting, parsed, rejected

        if self._schema is not None:
            frame = parsed(frame, self._schema)
            frame = rejected(frame) if target.name == REJECTS else fitting(frame, self._schema)
        return frame.observe(WRITTEN, F.count(F.lit(1)).alias("rows"))

    def _query(self, frame: DataFrame, target: Target) -> StreamingQuery:
        from sidecar.spark.table.writers import by_deltalake, native

        query_id: Future[str] = Future()
        partitioned_by = self._table.partitioned_by
        if self.through_driver:
            writer = frame.writeStream.foreachBatch(by_deltalake(target.path, query_id, partitioned_by))
        else:
            writer = native(frame, self._table.format, target.path, partitioned_by)
        query = self._trigger(writer.queryName(target.name)).option("checkpointLocation", target.checkpoint).start()
        query_id.set_result(str(query.id))
        return query

    def _trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self._once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self._table.every_ms} milliseconds")

    # Running

    def await_end(
        self,
        progress: TableProgress,
        stop_asked: Callable[[], bool],
        turn: Callable[[], None],
        stop: Callable[[], float],
    ) -> None:
        """Wait until the queries have ended, or a stop is requested.

        Args:
            progress: Takes the reports of the query for the table.
            stop_asked: Returns whether to stop.
            turn: Called every `TURN_S`.
            stop: Called before a stop; returns the time limit of running micro-batches, in seconds.

        Raises:
            QueryError: A query ended with an error.
        """
        stop_asked()
        while any(query.isActive for query in self._queries) and not self._failed():
            if stop_asked():
                self._stop(stop())
                break
            progress.heard(_reports(self._queries[0]))
            turn()
            time.sleep(TURN_S)
        progress.heard(_reports(self._queries[0]))
        if self._failed() and not stop_asked():
            driver.fail(progress, next(error for query in self._queries if (error := query.exception())))

    def _failed(self) -> bool:
        return any(not query.isActive and query.exception() is not None for query in self._queries)

    def _stop(self, patience_s: float) -> None:
        """Let running micro-batches end; one that is cut short is undone, and repeated."""
        deadline_s = time.monotonic() + patience_s
        begun = {query.id: _last_batch(query) for query in self._queries}
        waiting = list(self._queries)
        while waiting and time.monotonic() < deadline_s:
            waiting = [query for query in waiting if _is_busy(query) and _last_batch(query) == begun[query.id]]
            time.sleep(TURN_S / 4)
        for query in self._queries:
            query.stop()


@contextmanager
def _reported() -> Iterator[None]:
    """Report what Spark refuses in the block as `QueryError`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise QueryError(f"the query does not start: {cause_of(str(error))}") from error


def _refuse_connect(session: SparkSession) -> None:
    if not hasattr(session, "_jvm"):
        raise ConfigError(
            "the session is one of Spark Connect, and this job needs one with a JVM of its own, to check the files of "
            "table and checkpoint",
            hint="Run it with spark-submit, or in a process without a session of Spark Connect; or write a query with "
            "sidecar.spark.read_stream, which needs no JVM",
        )


def _reports(query: StreamingQuery) -> list[Mapping[str, object]]:
    return list(query.recentProgress)


def _last_batch(query: StreamingQuery) -> int:
    report = query.lastProgress
    return -1 if report is None else int(report["batchId"])


def _is_busy(query: StreamingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])
