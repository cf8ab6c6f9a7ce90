"""What every job does on Spark's driver: take a session, watch its JVM, say what a report with stack traces says."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn, Protocol

from sidecar.errors import EXIT_UNAVAILABLE, SidecarError, extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueryError(SidecarError):
    """A query on Spark does not start, or ended with an error."""

    exit_code = EXIT_UNAVAILABLE


class QueryProgress(Protocol):
    """What of a job's progress is told here."""

    def ended(self, problem: str = "") -> None:
        """It runs no more."""
        ...


def session(stack: ExitStack, name: str, master: str | None) -> SparkSession:
    """The session that this process has, or a new one that ends with the stack.

    Args:
        stack: Stops a new session when it is closed.
        name: A new application's.
        master: Where a new one runs; None under ``spark-submit``.

    Raises:
        ConfigError: PySpark is not installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else `python3` of the path, which lacks our packages
    with extra("spark", "sidecar spark", "pyspark"):
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        builder = SparkSession.builder.appName(name)
        if master:
            builder = builder.master(master)
        spark = builder.getOrCreate()
        stack.callback(quietly, spark.stop)
    else:
        # Spark looks our formats up in the session that is active in this thread of the JVM: none is in a thread of
        # its own, or after a while in a notebook. This makes it so.
        spark.createDataFrame([], "nothing int")
    return spark


def quietly(stop: Callable[[], None]) -> None:
    """Stop a query or a session whose JVM may be gone before us: systemd signals all processes."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        stop()


@contextlib.contextmanager
def serving(progress: QueryProgress, stop_asked: Callable[[], bool]) -> Iterator[None]:
    """Tell how the job ended.

    Raises:
        QueryError: The JVM is gone, and no stop was asked for.
    """
    from py4j.protocol import Py4JError

    try:
        yield
        progress.ended()
    except (Py4JError, OSError) as error:
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
    text = cause_of(str(error))
    progress.ended(text)
    raise QueryError(f"the query ended: {text}", hint="start it again: it resumes where it stopped")


def cause_of(text: str) -> str:
    """Of a report with stack traces, the line that says what happened: that of ours, or of Python, or the first."""
    lines = [line.strip(": \t") for line in text.splitlines() if line.strip(": \t")]
    ours = [line for line in lines if line.startswith("sidecar.")]
    raised = [line for line in lines if line[0].isalpha() and ("Error: " in line or "Exception: " in line)]
    cause = (ours[-1:] or raised or lines or ["no reason given"])[0]
    return cause.removeprefix("sidecar.errors.")
