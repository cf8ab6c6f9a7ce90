"""The driver of `sidecar spark run` with a sink that is a table: tasks sort messages, and Spark writes the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sidecar.config.model import Settings
from sidecar.config.spark import Table
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.ops.metrics import Metrics
from sidecar.spark.driver import own_session
from sidecar.spark.metrics import table_metrics
from sidecar.spark.ranges.broker import LogExtent, patiently
from sidecar.spark.ranges.broker import Places as Offsets
from sidecar.spark.ranges.shared import remove
from sidecar.spark.ranges.windows import restart_all
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.job import TRIGGER_MS, SparkRun
from sidecar.spark.run.plan import RunPlan
from sidecar.spark.run.progress import OBSERVED_ROWS, RunProgress
from sidecar.spark.table.filling import Filling, TableRules
from sidecar.spark.table.plan import TABLE, Target, table_layout
from sidecar.zone.table import DATE, TABLE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DRIVER_OFFSETS_MAX: Final = 100_000
"""Limit of offsets in a micro-batch if all rows go through the driver's memory."""

log = structlog.get_logger()


def job_of(settings: Settings) -> type[SparkRun]:
    """The job for the sink of these settings."""
    return SparkRun if settings.sink.chosen.table is None else TableRun


class TableRun(SparkRun):
    """The pipeline of one configuration on Spark, into a table. See `SparkRun`."""

    query_name = TABLE

    def __init__(self, settings: Settings, stop_asked: Callable[[], bool], *, once: bool = False) -> None:
        super().__init__(settings, stop_asked, once=once)
        assert settings.spark is not None, "checked before"
        target, table = settings.sink.chosen.table, settings.spark.table or Table()
        assert target is not None, "see `job_of`"
        every_ms = max(TRIGGER_MS, table.every_ms)
        layout, default = table_layout(settings), () if table.merge else (DATE,)
        rules = TableRules(
            target.path, target.format, table.schema_, every_ms, default, layout, table.merge, table.resume
        )
        self._filling = Filling(rules, f"file://{self._root}", once=once)
        self._is_delta = rules.format == "delta"

    @property
    def _books(self) -> RunFolder:
        return RunFolder(self._folder.path / TABLE)

    @property
    def _query_paths(self) -> Sequence[Path]:
        return [self._root / target.name for target in self._filling.targets]

    def _metrics(self, progress: RunProgress) -> Metrics:
        rows, maintained = progress.rows, self._filling.maintained
        return Metrics(progress.latest, progress.metrics, lambda: table_metrics(rows, maintained))

    def _session(self, stack: ExitStack) -> SparkSession:
        return own_session(stack, super()._session(stack), is_delta=self._is_delta)

    def _start(self, stack: ExitStack, session: SparkSession, plan: RunPlan) -> Callable[[RunProgress], None]:
        self._filling.check(session, plan.checkpoint.cluster_id, self._first)
        self._resume()
        first, until = self._first(), self._until() if self._once else None
        self._filling.start(
            stack, lambda target: self._rows(session, target, replace(plan, query=target.name), first, until)
        )
        return self._await_queries

    def _resume(self) -> None:
        """Give queries that resume at a table's end the message ids of the query that filled it, if they need them."""
        table = self._settings.spark and self._settings.spark.table
        for name, place in self._filling.beginnings.items():
            log.info("table.resumed", target=name, micro_batch=place.batch, offsets=place.offsets)
            folder = self._folder.path / name
            remove(folder / "books")  # it has another query's micro-batches
            if self._settings.dedup.field is None or (table and table.resume == "from_table_without_ids"):
                remove(folder / "ids")
            elif not restart_all(folder / "ids", place.batch):
                raise ConfigError(
                    f"spark.table.resume is from_table, and {folder / 'ids'} has no message ids of the checkpoint that "
                    "filled the table: repeats of messages that the table has would be appended",
                    hint=f"Copy the folder sidecar of that checkpoint to {self._folder.path}; or, if there are no such "
                    "repeats, set from_table_without_ids",
                )

    def _first(self) -> Offsets:
        """The start offsets of a new checkpoint, the same for both queries."""
        from sidecar.spark.run.range_source import RangePlanner

        planner = RangePlanner(
            self._reader.range_plan(self._folder.path, self._settings.batch.span_max, self._reader.stood)
        )
        try:
            return planner.initialOffset()
        finally:
            planner.stop()

    def _until(self) -> Mapping[TopicPartition, LogExtent]:
        """The end of both queries, which read equally far."""
        with closing(self._broker.logs()) as logs:
            return patiently(logs.bounds)

    def _rows(
        self,
        session: SparkSession,
        target: Target,
        plan: RunPlan,
        first: Offsets,
        until: Mapping[TopicPartition, LogExtent] | None,
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark.run.range_source import NAME, range_source
        from sidecar.spark.run.writer import RowReader

        limit = self._settings.batch.span_max
        if self._filling.through_driver:
            limit = min(limit, DRIVER_OFFSETS_MAX)
        begin = self._filling.beginnings.get(target.name)
        stood = first if begin is None else begin.offsets
        ranges = self._reader.range_plan(self._folder.path / target.name, limit, stood, until)
        name = f"{NAME}_{target.name}"
        session.dataSource.register(range_source(RowReader(ranges, plan), name, TABLE_DDL))
        return session.readStream.format(name).load().observe(OBSERVED_ROWS, F.count(F.lit(1)).alias("rows"))

    def _await_queries(self, progress: RunProgress) -> None:
        self._filling.queries.await_end(progress, self._stop_asked, progress.settle, self._draining)
        progress.settle(last=True)
