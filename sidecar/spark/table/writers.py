"""Writing of micro-batches to a table: by Spark's own sinks, or, without Delta in Spark, by deltalake in the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from sidecar.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WAIT_S: Final = 60.0
DELTA_CONF: Final = {
    # Appending needs neither Delta's SQL nor its catalogue, which could only be set before the session is created.
    "spark.databricks.delta.requiredSparkConfsCheck.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "50",
}
"""Settings for Delta, unless the session has others."""
COMPACT_EVERY: Final = 100
"""Number of micro-batches between compactions, if Delta does not compact by itself."""


def has_delta(session: SparkSession) -> bool:
    """Whether Spark has the jars of Delta."""
    try:
        _ = session.read.format("delta").load("/there/is/no/such/table").schema
    except Exception as error:  # noqa: BLE001  # a class that is not found comes as an error of the JVM itself
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def native(frame: DataFrame, form: str, path: str, partitioned_by: Sequence[str]) -> DataStreamWriter:
    """A writer for Spark's own sink; Parquet's log, or Delta's transactions by query and micro-batch, make it exact."""
    if form == "delta":
        for name, value in DELTA_CONF.items():
            if frame.sparkSession.conf.get(name, None) is None:
                frame.sparkSession.conf.set(name, value)
    writer = frame.writeStream.format(form)
    if form == "parquet" or not _is_there(frame.sparkSession, path):
        writer = writer.partitionBy(*partitioned_by)  # a table of Delta that is there keeps to its own
    return writer.option("path", path).option("mergeSchema", "true")


def _is_there(session: SparkSession, path: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        _ = session.read.format("delta").load(path).schema
    except AnalysisException:
        return False
    return True


def by_deltalake(path: str, query_id: Future[str], partitioned_by: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: append a micro-batch, through the driver's memory, unless the table has it.

    A micro-batch is identified by the query's id and its number, as in Delta's own sink, so that each may replace the
    other.

    Args:
        path: The table; created if it is missing.
        query_id: Set once the query has started.
        partitioned_by: Columns by which the table is partitioned if it is created.

    Raises:
        ConfigError: deltalake is not installed.
    """
    try:
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        from sidecar.sinks.delta import CONFIGURATION, sync_commit
    except ImportError as error:
        raise ConfigError(
            "a Delta table needs Delta's jars in Spark, or deltalake, and neither is installed",
            hint="pip install consumer-sidecar[delta], or give Spark the package io.delta:delta-spark_4.2_2.13",
        ) from error

    def opened() -> deltalake.DeltaTable | None:
        try:
            return deltalake.DeltaTable(path)
        except TableNotFoundError:
            return None

    def append(frame: DataFrame, batch: int) -> None:
        app = query_id.result(WAIT_S)
        table = opened()
        known = None if table is None else table.transaction_version(app)
        if known is not None and known >= batch:
            return
        rows = frame.toArrow()
        if table is None:
            deltalake.DeltaTable.create(
                path, deltalake.Schema.from_arrow(rows.schema), mode="ignore", partition_by=list(partitioned_by),
                configuration=dict(CONFIGURATION),
            )  # fmt: skip
            table = deltalake.DeltaTable(path)
        # This fails if another driver commits the same transaction meanwhile.
        properties = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(app, batch)])
        deltalake.write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=properties)
        sync_commit(path, table.version())
        if batch % COMPACT_EVERY == COMPACT_EVERY - 1:
            table.optimize.compact()

    return append
