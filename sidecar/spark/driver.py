"""Common parts of jobs on Spark's driver: session, watching its JVM, and its end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import structlog

from sidecar.errors import EXIT_UNAVAILABLE, SidecarError, extra
from sidecar.spark.failures import cause_of, failure_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAR_EVERY_S: Final = 1.0
"""Interval of reading Spark's reports: it returns the last 100 each time, as JSON; there are at most 10 a second."""

log = structlog.get_logger()


class QueryError(SidecarError):
    """A query on Spark does not start, or ended with an error."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = EXIT_UNAVAILABLE) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class QueryProgress(Protocol):
    """Interface for the progress of a job."""

    def ended(self, problem: str = "") -> None:
        """Record that the job has ended."""
        ...


def session(stack: ExitStack, name: str, master: str | None) -> SparkSession:
    """The session of this process, or a new one that ends with the stack.

    Args:
        stack: Stops a new session when it is closed.
        name: Name of a new application.
        master: Master of a new session; None under ``spark-submit``.

    Raises:
        ConfigError: PySpark is not installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise `python3` of the path, which lacks our packages
    with extra("spark", "sidecar spark", "pyspark"):
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:  # there is no session
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

    There is none in a separate thread, or after a while in a notebook.
    """
    spark.createDataFrame([], "nothing int")


def quietly(stop: Callable[[], None]) -> None:
    """Stop a query or a session whose JVM may already have ended: systemd signals all processes."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        stop()


@contextlib.contextmanager
def serving(progress: QueryProgress, stop_asked: Callable[[], bool]) -> Iterator[None]:
    """Report how the job ended.

    Raises:
        QueryError: The JVM is gone, and no stop was asked for.
    """
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


def fail(progress: QueryProgress, error: Exception) -> NoReturn:
    """End a job with the error of its query.

    Raises:
        QueryError: Always.
    """
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
