"""Common parts of jobs on Spark's driver: session, watching its JVM, and its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import structlog

from sidecar.errors import EXIT_UNAVAILABLE, ConfigError, SidecarError, extra
from sidecar.spark.failures import cause_of, failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NOT_CONNECTED: Final = "Python worker failed to connect back"
"""Spark's text."""
AGAIN_MAX: Final = 5
"""Limit of restarts of a query in a row, until it reports something."""

REPORTS_MAX: Final = 100
"""Limit of reports of earlier starts; Spark keeps as many."""


class LastingQuery:
    """A `StreamingQuery` that is started again, from the same checkpoint, if its Python process did not connect."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()
        self._heard: list[Any] = []
        self._left = AGAIN_MAX

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's names, here and below
        """True also while it can be started again."""
        if self._query.isActive:
            return True
        error = self._query.exception()
        if error is None or NOT_CONNECTED not in str(error):
            return False
        reports = self._query.recentProgress
        self._left = AGAIN_MAX if reports else self._left
        if not self._left:
            return False
        self._left -= 1
        self._heard = [*self._heard, *reports][-REPORTS_MAX:]
        log.warning("query.started_again", reason=cause_of(str(error)), attempts_left=self._left)
        self._query = self._start()
        return True

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        """The last reports of Spark, including those before a restart."""
        return [*self._heard, *self._query.recentProgress]


TURN_S: Final = 0.1
HEAR_EVERY_S: Final = 1.0
"""Interval of reading Spark's reports: each call returns the last 100, as JSON; there are at most 10/s."""

log = structlog.get_logger()


class QueryError(SidecarError):
    """A query on Spark does not start, or ended with an error."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = EXIT_UNAVAILABLE) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class QueryProgress(Protocol):
    """Interface for the progress of a job."""

    def heard(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take Spark's reports of the query for the table, in their order, also those seen before."""
        ...

    def ended(self, problem: str = "") -> None: ...


def session(stack: ExitStack, name: str, master: str | None) -> SparkSession:
    """The session of this process, or a new one that ends with the stack; raises `ConfigError` without PySpark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise `python3` of the path, which lacks our packages
    with extra("spark", "sidecar spark", "pyspark"):
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:  # no session exists
        builder = SparkSession.builder.appName(name)
        if master:
            builder = builder.master(master)
        spark = builder.getOrCreate()
        stack.callback(quietly, spark.stop)
    else:
        activate(spark)
    return spark


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread of the JVM, where Spark looks up Python data sources.

    A new thread has none, and a notebook loses it after a while.
    """
    spark.createDataFrame([], "nothing int")


def quietly(stop: Callable[[], None]) -> None:
    """Stop a query or a session whose JVM may already have ended: systemd signals all processes."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        stop()


@contextlib.contextmanager
def serving(progress: QueryProgress, stop_asked: Callable[[], bool]) -> Iterator[None]:
    """Report how the job ended; raises `QueryError` if the JVM is gone, and no stop was asked for."""
    from py4j.protocol import Py4JError

    try:
        yield
        progress.ended()
    except (Py4JError, ConnectionError) as error:
        progress.ended("the JVM of the driver is gone")
        if not stop_asked():
            raise QueryError(
                "the JVM of the driver ended", hint="see its log for the reason, and start again"
            ) from error


def await_end(
    queries: Sequence[LastingQuery],
    stop_asked: Callable[[], bool],
    hear: Callable[[list[Mapping[str, Any]]], object],
    turn: Callable[[], object],
    stop: Callable[[], object],
) -> list[Exception]:
    """Wait until all queries have ended, one with an error, or by `stop`; `hear` takes the first one's reports."""
    stop_asked()  # until its first call, a signal ends the process at once
    hear_at_s = time.monotonic()
    while any(query.isActive for query in queries) and not any(
        query.exception() for query in queries if not query.isActive
    ):
        if stop_asked():
            stop()
            break
        if time.monotonic() >= hear_at_s:
            hear(queries[0].recentProgress)
            hear_at_s = time.monotonic() + HEAR_EVERY_S
        turn()
        time.sleep(TURN_S)
    hear(queries[0].recentProgress)
    errors = [error for query in queries if (error := query.exception()) is not None]
    if not stop_asked():
        return errors
    for error in errors:
        failed_in_stop(error)
    return []


def fail(progress: QueryProgress, error: Exception) -> NoReturn:
    """Raise the error of a job's query, a `QueryError`."""
    failure = failure_of(str(error))
    progress.ended(failure.cause)
    raise QueryError(f"the query ended: {failure.cause}", hint=failure.hint, exit_code=failure.exit_code)


def not_started(error: Exception) -> QueryError:
    """The error of a query that Spark does not start."""
    failure = failure_of(str(error))
    return QueryError(f"the query does not start: {failure.cause}", hint=failure.hint, exit_code=failure.exit_code)


def failed_in_stop(error: Exception) -> None:
    """Log the error of a query that fails while a stop waits for it; the next start repeats its micro-batch."""
    log.warning("query.failed", reason=cause_of(str(error)))


TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Setting for files whose timestamps every reader reads alike: Spark's default, INT96, overflows in other programs."""

DELTA_CONF: Final = {
    # Appending needs neither Delta's SQL nor its catalogue, which could only be set before the session is created.
    "spark.databricks.delta.requiredSparkConfsCheck.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "50",
    # Tasks that read the table's log, at each commit: Delta's 50 cost more than a micro-batch of 250,000 messages.
    "spark.databricks.delta.snapshotPartitions": "4",
}
"""Settings for Delta, unless the session has others; the user's gets them too, and can read the table."""


def own_session(stack: ExitStack, session: SparkSession, *, is_delta: bool) -> SparkSession:
    """Copy the user's session and make the copy the active one of this thread; the user's listeners hear its queries.

    Spark's file sink reads the settings of its session at each micro-batch, so they must not change after the start.

    Args:
        stack: Makes the user's session the active one again when it is closed.

    Raises:
        ConfigError: The session is one of Spark Connect.
    """
    from pyspark.sql import SparkSession

    if not hasattr(session, "_jvm"):
        raise ConfigError(
            "the session is one of Spark Connect, and this job needs one with a JVM of its own, to check the files of "
            "table and checkpoint",
            hint="Run it with spark-submit, or in a process without a session of Spark Connect; or write a query with "
            "sidecar.spark.read_stream, which needs no JVM",
        )
    for name, value in DELTA_CONF.items() if is_delta else ():
        if session.conf.get(name, None) is None:
            session.conf.set(name, value)
    theirs: Any = session._jsparkSession
    java = theirs.cloneSession()
    there = {listener.getClass().getName() for listener in java.streams().listListeners()}
    for listener in theirs.streams().listListeners():
        if listener.getClass().getName() not in there:  # Spark gives each session the listeners of its settings
            java.streams().addListener(listener)
    own = SparkSession(session.sparkContext, java)
    own.conf.set(*TIMES)
    stack.callback(quietly, lambda: activate(session))
    activate(own)
    return own
