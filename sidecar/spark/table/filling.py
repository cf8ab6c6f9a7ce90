"""The queries that fill a table and its rejects: their start, their end, a stop. It does not know what they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar.config.spark import Merge, Resume
from sidecar.config.table_layout import DERIVED, UNSET, TableLayout
from sidecar.errors import ConfigError
from sidecar.sinks.table.constraints import Constraint
from sidecar.sinks.table.layout import Column, SmallFiles
from sidecar.sinks.table.upkeep import Upkeep, no_counts
from sidecar.spark import driver
from sidecar.spark.driver import LastingQuery, QueryProgress, not_started, quietly
from sidecar.spark.table.plan import (
    REJECTS,
    TABLE,
    Existing,
    Plan,
    Target,
    fields_of,
    plan_of,
    plan_of_rejects,
    schema_text,
    targets,
)
from sidecar.zone.table import LABELS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from sidecar.spark.table.delta import OwnDelta
    from sidecar.spark.table.registry import Beginning, Registry

FILES: Final = "files"
"""Name of the number of partitions in the observation of rows."""

log = structlog.get_logger()


WRITTEN: Final = "sidecar_written"
"""Name of Spark's observation that counts the rows of a table."""


@dataclass(frozen=True, slots=True)
class TableRules:
    """The settings of a table.

    Args:
        schema: Schema of the JSON values: its text or its file; None if values are not parsed.
        partitioned_by: Columns by which a new table is partitioned if its layout names none.
        merge: Rule by which rows replace others of their key; None if they are appended.
        resume: The behavior of a new checkpoint with a table that has the same messages.
    """

    path: str
    format: str
    schema: str | None
    every_ms: int
    partitioned_by: tuple[str, ...]
    layout: TableLayout = UNSET
    merge: Merge | None = None
    resume: Resume = "stop"


class TableQueries:
    """The running queries of a table and its rejects; with `once`, they end with the present data."""

    def __init__(self, table: TableRules, *, once: bool) -> None:
        self._every_ms = table.every_ms
        self._once = once
        self._small_files = SmallFiles(table.path)
        self._queries: list[LastingQuery] = []

    def start(self, writer: DataStreamWriter) -> LastingQuery:
        """Start the next query; the table's is the first."""
        if self._once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._every_ms} milliseconds")
        self._queries.append(LastingQuery(writer.start))
        return self._queries[-1]

    def await_end(
        self,
        progress: QueryProgress,
        stop_asked: Callable[[], bool],
        turn: Callable[[], None],
        stop: Callable[[], float],
    ) -> None:
        """Wait until the queries have ended, or until a stop, whose limit in seconds `stop` returns before it."""
        for error in driver.await_end(
            self._queries, stop_asked, partial(self._hear, progress), turn, lambda: self._stop(stop())
        ):
            driver.fail(progress, error)

    def _hear(self, progress: QueryProgress, reports: list[Mapping[str, Any]]) -> None:
        progress.heard(reports)
        for report in () if self._small_files.reported else reports:
            for observed in (report.get("observedMetrics") or {}).values():
                if FILES in observed:
                    self._small_files.look(int(observed["rows"]), int(observed[FILES]))

    def _stop(self, patience_s: float) -> None:
        """Let running micro-batches end; one that is cut short is undone, and repeated."""
        deadline_s = time.monotonic() + patience_s
        begun = {query.id: _last_batch(query) for query in self._queries}
        waiting = list(self._queries)
        while waiting and time.monotonic() < deadline_s:
            waiting = [query for query in waiting if _is_busy(query) and _last_batch(query) == begun[query.id]]
            time.sleep(driver.TURN_S / 2)
        for query in self._queries:
            query.stop()


class Filling:
    """The queries of one table; the job's checkpoint contains theirs, and the schema."""

    def __init__(self, table: TableRules, checkpoint: str, *, once: bool) -> None:
        self._table = table
        self._checkpoint = checkpoint
        self.queries = TableQueries(table, once=once)
        self._schema_text = None if table.schema is None else schema_text(table.schema)
        self.targets = targets(checkpoint, table.path, table.schema, table.merge)
        self._schema: StructType | None = None
        self._delta: OwnDelta | None = None
        """Spark's Delta, if it fills the table."""
        self._plans: dict[str, Plan] = {}
        """By the target's name; set by `check`."""
        self._constraints: Sequence[Constraint] = ()
        """The table's constraints; set by `check`."""
        self._registries: dict[str, Registry] = {}
        """By the target's name; set by `check` for Delta tables."""
        self.beginnings: Mapping[str, Beginning] = {}
        """The offsets at which new queries resume, by the target's name; set by `check`."""
        self.maintained = no_counts(table.layout.maintenance)
        """Maintenance by operation and result."""

    @property
    def through_driver(self) -> bool:
        """Whether all rows go through the memory of the driver; known after `check`."""
        return self._table.format == "delta" and self._delta is None

    def check(self, session: SparkSession, source: str, first: Callable[[], Mapping[str, Any]]) -> None:
        """Check that table and checkpoint belong together, and that schema and layout may follow those before."""
        from sidecar.spark.table.columns import schema_of
        from sidecar.spark.table.delta import OwnDelta
        from sidecar.spark.table.merging import refuse_other_rule
        from sidecar.spark.table.pinned import (
            SparkStorage,
            in_parquet,
            pin_constraints,
            pin_layout,
            pin_schema,
            query_of,
            refuse_layout,
            refuse_other_progress,
        )
        from sidecar.spark.table.registry import Registry, beginnings
        from sidecar.spark.table.writers import existing_by_deltalake, has_delta, last_by_deltalake
        from sidecar.zone.table import TABLE_DDL

        self._schema = schema_of(self._schema_text) if self._schema_text is not None else None
        is_delta = self._table.format == "delta"
        is_own = is_delta and has_delta(session)
        if is_delta and not is_own and self._table.layout.cluster_by:
            raise ConfigError(
                "spark.table.cluster_by needs Delta's jars in Spark: deltalake does not cluster",
                hint="Give Spark the package io.delta:delta-spark_4.2_2.13, or use spark.table.partition_by",
            )
        with _reported():
            storage = SparkStorage(session)
            if is_own:
                self._delta = OwnDelta(session)
                for target in self.targets:
                    self._delta.check_features(target.path)
            last_of = last_by_deltalake if self._delta is None else self._delta.last
            for target in self.targets:
                query = query_of(storage, target)
                last = last_of(target.path, query) if is_delta else in_parquet(storage, target)
                refuse_other_progress(storage, target, last)
                if is_delta:
                    self._registries[target.name] = Registry(storage, target, source)
                    if last is not None and last >= 0:
                        self._registries[target.name].check(query, last)
            if is_delta:
                self.beginnings = beginnings(storage, self.targets, source, first, last_of, self._table.resume)
            find = existing_by_deltalake if self._delta is None else self._delta.existing
            found = {target.name: find(target.path) if is_delta else None for target in self.targets}
            for target in self.targets:
                self._plans[target.name] = self._plan(target, found[target.name])
            plan, there = self._plans[TABLE], found[TABLE]
            self._constraints = there.constraints if there is not None else ()
            empty = session.createDataFrame([], TABLE_DDL)  # refuses a wrong merge rule before a query starts
            frames = {target.name: self._fitted(empty, target) for target in self.targets}
            fields = {name: fields_of(frame.schema.json()) for name, frame in frames.items()}
            refuse_other_rule(self._table.path, there and there.comments, self._table.merge)
            refuse_layout(storage, self._checkpoint, plan, found, fields, is_parquet=not is_delta)
            for target in self.targets:
                self._tell_int96(session, target)
            pin_schema(storage, self._checkpoint, self._schema.json() if self._schema is not None else "")
            for target in self.targets:
                there = found[target.name]
                if there is not None and not fields[target.name] <= there.fields:
                    self._extend(target, frames[target.name])
            pin_layout(storage, self._checkpoint, plan, fields)
            if len(self.targets) > 1:
                pin_constraints(storage, self._checkpoint, [constraint.name for constraint in self._constraints])

    def _extend(self, target: Target, frame: DataFrame) -> None:
        """Add columns to a Delta table before they are pinned: a pinned column that is missing counts as dropped."""
        from sidecar.spark.table.writers import extend_by_deltalake

        if self._delta is not None:
            self._delta.extend(target.path, frame)
        else:
            extend_by_deltalake(target.path, frame, merged=self._table.merge is not None and target.name == TABLE)

    def _tell_int96(self, session: SparkSession, target: Target) -> None:
        from sidecar.spark.table import delta, writers

        if self.through_driver:
            writers.tell_int96(target.path, merged=self._table.merge is not None and target.name == TABLE)
        elif self._delta is not None:
            delta.tell_int96(session, target.path, self._delta.ends(target.path))
        else:
            delta.tell_int96(session, target.path, delta.oldest_of_sink(session, target.path))

    def _plan(self, target: Target, found: Existing | None) -> Plan:
        default, layout = self._table.partitioned_by, self._table.layout
        if target.name == REJECTS:
            return plan_of_rejects(layout, default, target.path, found)
        fields = None if self._schema is None else self._schema.names
        plan = plan_of(layout, default, target.path, fields, found)
        if self._table.merge is None:
            return plan
        from sidecar.spark.table.merging import DELETED, KEY, ORDER

        return plan._replace(columns=(*plan.columns, *(Column(name, name) for name in (KEY, ORDER, DELETED))))

    def start(self, stack: ExitStack, frame_of: Callable[[Target], DataFrame]) -> None:
        """Start the query of each target on its rows, in the zone's columns; the stack stops them."""
        with _reported():
            for target in self.targets:
                stack.callback(quietly, self._query(self._fitted(frame_of(target), target), target).stop)

    def _fitted(self, frame: DataFrame, target: Target) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark.table import columns
        from sidecar.spark.table.merging import KEY, ORDER, keyed, lacking, with_deleted

        plan, schema, merge, fault = self._plans[target.name], self._schema, self._table.merge, F.lit(None)
        frame = columns.with_partitions(frame, self._derived(target.name))
        if schema is not None:
            frame = columns.parsed(frame, schema)
        if merge is not None:
            frame, fault = keyed(frame, merge), lacking(merge)
        if target.name == REJECTS and self._constraints:
            written = [*self._plans[TABLE].columns, Column(columns.RAW, columns.RAW)]

            def rows(held: DataFrame) -> DataFrame:
                held = columns.with_data(columns.with_partitions(held, self._derived(TABLE)), schema)
                return columns.kept(held if merge is None else with_deleted(held, merge), written)

            frame = columns.rejected_too(frame, columns.misfit(schema, fault), rows, self._constraints).drop(KEY, ORDER)
        elif target.name == REJECTS:
            frame = columns.rejected(frame, schema, fault).drop(KEY, ORDER)
        else:
            frame = columns.fitting(frame, schema, fault)
            frame = columns.kept(frame if merge is None else with_deleted(frame, merge), plan.columns)
            columns.refuse_unresolved(frame, self._constraints, target.path)
            if self._constraints and len(self.targets) > 1:
                frame = frame.where(columns.violation(self._constraints).isNull())
        counts = [F.count(F.lit(1)).alias("rows")]
        if plan.layout.partition_by and LABELS.keys() & {*plan.partitioned_by}:
            counts.append(F.approx_count_distinct(F.struct(*plan.partitioned_by)).alias(FILES))
        return frame.observe(WRITTEN, *counts)

    def _derived(self, name: str) -> list[str]:
        """The columns of a target that follow from others."""
        return [column.source for column in self._plans[name].columns if column.source in DERIVED]

    def _query(self, frame: DataFrame, target: Target) -> LastingQuery:
        from sidecar.spark.table.delta import WAIT_S, appending, replacing
        from sidecar.spark.table.writers import by_deltalake

        query_id: Future[str] = Future()
        path, plan = target.path, self._plans[target.name]
        merged = self._table.merge is not None and target.name == TABLE
        if self._delta is not None:
            self._delta.create(frame, path, plan)
        upkeep = self._upkeep(frame.sparkSession, target)
        if self.through_driver:
            write = by_deltalake(path, query_id, plan, merged=merged)
        elif merged:
            write = replacing(path, query_id)
        else:
            write = appending(path, query_id)
        if target.name in self._registries:
            claim = self._registries[target.name].claim

            def write_and_tend(rows: DataFrame, batch: int) -> None:
                """Spark begins no micro-batch before the end; one that is cut short comes again, and is recognized."""
                claim(query_id.result(WAIT_S), batch)
                write(rows, batch)
                if upkeep is not None:
                    upkeep.tend()

            writer = frame.writeStream.foreachBatch(write_and_tend)
        else:  # the log of Spark's own sink makes it exact
            writer = frame.writeStream.format("parquet").partitionBy(*plan.partitioned_by).option("path", path)
        query = self.queries.start(writer.queryName(target.name).option("checkpointLocation", target.checkpoint))
        query_id.set_result(str(query.id))
        return query

    def _upkeep(self, session: SparkSession, target: Target) -> Upkeep | None:
        from sidecar.spark.table.pinned import SparkStorage

        maintenance = self._table.layout.maintenance
        if not maintenance.is_on:
            return None
        if self._delta is None:
            from sidecar.sinks.table.by_deltalake import steps

            operations = steps(target.path)
        else:
            operations = self._delta.steps(target.path)
        storage, path = SparkStorage(session), f"{self._checkpoint}/maintenance/{target.name}.json"
        read, write = partial(storage.find, path), partial(storage.write, path)
        return Upkeep(target.path, maintenance, operations, read, write, self.maintained)


@contextmanager
def _reported() -> Iterator[None]:
    """Raise errors of Spark in the block as `QueryError`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise not_started(error) from error


def _last_batch(query: LastingQuery) -> int:
    report = query.lastProgress
    return -1 if report is None else int(report["batchId"])


def _is_busy(query: LastingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])
