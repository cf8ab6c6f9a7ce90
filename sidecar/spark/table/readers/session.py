"""The session in which the queries of a table run: a copy of the user's, so that its settings are Sidecar's alone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from sidecar.errors import ConfigError
from sidecar.spark.driver import activate, quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Setting for files whose timestamps every reader reads alike: with Spark's default, INT96, other programs overflow."""

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
        is_delta: Whether the table is one of Delta.

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
        if listener.getClass().getName() not in there:  # Spark gives each session those of its settings
            java.streams().addListener(listener)
    own = SparkSession(session.sparkContext, java)
    own.conf.set(*TIMES)
    stack.callback(quietly, lambda: activate(session))
    activate(own)
    return own
