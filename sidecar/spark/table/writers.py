"""Writing of micro-batches to a table: by Spark's own sinks, or, without Delta in Spark, by deltalake in the driver."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from sidecar.errors import ConfigError
from sidecar.spark.driver import QueryError
from sidecar.spark.table.delta import WAIT_S
from sidecar.spark.table.merging import LATER, ON, last_of_each
from sidecar.spark.table.plan import Existing, Plan, comments_of, fields_of

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def rows_of(frame: DataFrame) -> pa.Table:
    """The last change of each key in a micro-batch, with times in UTC, as in Delta."""
    import deltalake
    import pyarrow as pa

    rows = last_of_each(frame).toArrow()
    return rows.cast(pa.schema(deltalake.Schema.from_arrow(rows.schema).to_arrow()))


def columns_of(rows: pa.Table, frame: DataFrame) -> deltalake.Schema:
    """Columns for a new table of these rows, with the comments of the frame, which Arrow does not have."""
    import deltalake

    return deltalake.Schema(
        [
            deltalake.Field(field.name, field.type, nullable=field.nullable, metadata=frame.schema[field.name].metadata)
            for field in deltalake.Schema.from_arrow(rows.schema).fields
        ]
    )


COMPACT_EVERY: Final = 100
"""Number of micro-batches between compactions, if neither Delta nor a schedule compacts the table."""


def has_delta(session: SparkSession) -> bool:
    """Whether Spark has the jars of Delta."""
    try:
        _ = session.read.format("delta").load("/there/is/no/such/table").schema
    except Exception as error:  # noqa: BLE001  # a class that is not found comes as an error of the JVM itself
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def existing_by_deltalake(path: str) -> Existing | None:
    """The Delta table at a path; None if there is none."""
    table = opened(path)
    if table is None:
        return None
    import pyarrow as pa

    from sidecar.sinks.table.by_deltalake import refuse_features, refuse_unknown
    from sidecar.sinks.table.constraints import constraints_of

    refuse_features(table, path, "give Spark the package io.delta:delta-spark_4.2_2.13, which may know it")
    found = table.metadata()
    schema = table.schema()
    comments, fields = comments_of(schema.fields), fields_of(schema.to_json())
    constraints = constraints_of(found.configuration, schema.fields)
    refuse_unknown(pa.schema(schema.to_arrow()).empty_table(), constraints, path)
    return Existing(found.partition_columns, (), found.configuration, comments, fields, path, constraints)


def last_by_deltalake(path: str, query: str) -> int | None:
    """The result of `OwnDelta.last`, by deltalake."""
    table = opened(path)
    return None if table is None else _last(table, query)


def _last(table: deltalake.DeltaTable, query: str) -> int:
    last = table.transaction_version(query)
    return -1 if last is None else last


def tell_int96(path: str, *, merged: bool) -> None:
    """Log if a table of Delta has timestamps as INT96.

    Raises:
        ConfigError: The table is merged, which rewrites its files: timestamps would change.
    """
    from sidecar.sinks.table import by_deltalake

    table = opened(path)
    if table is not None:
        by_deltalake.tell_int96(path, table)
        if merged:
            by_deltalake.Int96Guard().check(table)


def opened(path: str) -> deltalake.DeltaTable | None:
    """The table by deltalake, None if there is none; raises `ConfigError` without deltalake, or `QueryError`."""
    try:
        import deltalake
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as error:
        raise ConfigError(
            "a Delta table needs Delta's jars in Spark, or deltalake, and neither is installed",
            hint="pip install consumer-sidecar[delta], or give Spark the package io.delta:delta-spark_4.2_2.13",
        ) from error
    try:
        return deltalake.DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise QueryError(f"cannot open the Delta table {path}: {' '.join(str(error).split())[:300]}") from error


def extend_by_deltalake(path: str, frame: DataFrame, *, merged: bool) -> None:
    """Add the columns of a frame without rows to a table."""
    import deltalake
    from deltalake.exceptions import DeltaError

    from sidecar.sinks.table.commits import sync_commit

    rows, table = rows_of(frame) if merged else frame.toArrow(), deltalake.DeltaTable(path)
    try:
        deltalake.write_deltalake(table, rows.slice(0, 0), mode="append", schema_mode="merge")
    except DeltaError as error:
        raise ConfigError(
            f"deltalake does not add columns to the table {path}: {' '.join(str(error).split())[:300]}",
            hint="Add them with ALTER TABLE ... ADD COLUMNS, or give Spark the package "
            "io.delta:delta-spark_4.2_2.13, whose Delta adds them",
        ) from error
    sync_commit(path, table.version())


def by_deltalake(
    path: str, query_id: Future[str], plan: Plan, *, merged: bool = False
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: write a micro-batch, through the driver's memory, unless the table has it.

    A micro-batch is identified by the query's id and its number, as in Delta's own sink, so that each may replace the
    other.

    Args:
        query_id: Set once the query has started.
        merged: Whether rows replace others of their keys; otherwise they are appended.
    """
    import deltalake

    from sidecar.sinks.table.by_deltalake import CONFIGURATION, Int96Guard, exact_statistics, keep_exact, optimize
    from sidecar.sinks.table.commits import sync_commit
    from sidecar.sinks.table.layout import dropped
    from sidecar.sinks.table.upkeep import failed

    compacts = plan.layout.maintenance.optimize_ms is None
    guard = Int96Guard()

    def write(frame: DataFrame, batch: int) -> None:
        app = query_id.result(WAIT_S)
        table = opened(path)
        known = -1 if table is None else _last(table, app)
        if known > batch:
            raise QueryError(f"the table {path} has micro-batch {known} of this query, which begins number {batch}")
        if known == batch:
            return
        rows = rows_of(frame) if merged else frame.toArrow()
        if table is None:
            columns = columns_of(rows, frame) if merged else deltalake.Schema.from_arrow(rows.schema)
            deltalake.DeltaTable.create(
                path, columns, mode="ignore", partition_by=list(plan.partitioned_by),
                configuration={**CONFIGURATION, **exact_statistics(rows.schema), **plan.layout.properties},
            )  # fmt: skip
            table = deltalake.DeltaTable(path)
        if gone := fields_of(deltalake.Schema.from_arrow(rows.schema).to_json()) - fields_of(table.schema().to_json()):
            raise dropped(path, gone, plan.layout.place("columns"))
        keep_exact(table, path, rows.schema)
        # This fails if another driver commits the same transaction meanwhile.
        commit = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(app, batch)])
        if merged:
            guard.check(table)
            merger = table.merge(rows, ON, "s", "t", commit_properties=commit)
            merger.when_matched_update_all(LATER).when_not_matched_insert_all().execute()
        else:
            deltalake.write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=commit)
        sync_commit(path, table.version())
        if compacts and batch % COMPACT_EVERY == COMPACT_EVERY - 1:
            try:
                optimize(table, path, guard)
            except Exception as error:  # noqa: BLE001  # as in `Upkeep`; for example, a conflict with the user's own
                failed("optimize", path, error)

    return write
