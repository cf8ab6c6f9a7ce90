"""A streaming source of ranges of offsets: each task reads one with the daemon's own client.

Spark plans the range of each task, stores it in its checkpoint and retries it; no message goes through its JVM. Offsets
are JSON: topic, queue, next offset. For Kafka that is the form of Spark's connector.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from sidecar.core.records import TopicPartition
from sidecar.spark.ranges.broker import (
    START_OVER,
    BrokerRanges,
    LogExtent,
    OnGap,
    Places,
    by_partition,
    by_topic,
    firsts_of,
    lows_of,
)
from sidecar.spark.ranges.shared import read_if_there, read_or_make, write
from sidecar.spark.ranges.walk import Offsets, RangeReader, Reached, Walk
from sidecar.spark.workers import freeze_modules

NAME = "sidecar_ranges"
SCHEMA = "topic string, partition int, start bigint, end bigint, broker string, expired bigint"


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Parameters of the source.

    Args:
        folder: The run's folder, which keeps the start offsets of a new checkpoint and of partitions added to it.
        stood: The offsets of the daemon's consumer group, if it ever existed.
        until: The bounds of the logs up to which a query that ends by itself reads; None for those at its start.
    """

    walk: Walk
    folder: Path
    stood: Places | None
    until: Mapping[TopicPartition, LogExtent] | None = None


def job_walk(
    broker: BrokerRanges, offsets_max: int, on_gap: OnGap = "stop", log: tuple[str, str] = ("json", "info")
) -> Walk:
    """The rules of a job's walk."""
    return Walk(broker, on_gap, broker.topics_key, "spark.on_gap", START_OVER, offsets_max, log)


class RangePlanner(RangeReader):
    """Plans the ranges of a job.

    Beside the checkpoint it keeps where partitions that were added to it begin, and where a micro-batch begins in
    partitions whose messages had expired: durable before Spark's log has the micro-batch's end.
    """

    def __init__(self, plan: RangePlan) -> None:
        super().__init__()
        self._packed = pickle.dumps(plan)  # code that only passes ranges on need not import settings and client

    @cached_property
    def _plan(self) -> RangePlan:
        return pickle.loads(self._packed)  # type: ignore[no-any-return]

    @property
    @override
    def _walk(self) -> Walk:
        return self._plan.walk

    @override
    def _parsed(self, offsets: Offsets) -> Reached:
        reached = by_partition(offsets)
        firsts = {tp: at for tp, at in self._stored("added").items() if tp in reached}  # others were never planned
        return Reached(reached, firsts, skipped=self._stored("skipped"))

    @override
    def _kept(self, reached: Reached) -> Offsets:
        for name, places in (("added", reached.firsts), ("skipped", reached.skipped)):
            if places and places != self._stored(name):
                write(self._plan.folder / name, orjson.dumps(by_topic(places)))
        return by_topic(reached.next)

    def _stored(self, name: str) -> dict[TopicPartition, int]:
        stored = read_if_there(self._plan.folder / name)
        return {} if stored is None else by_partition(orjson.loads(stored))

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's names, here and below
        """The start offsets of the checkpoint, the same at every start once its first micro-batch is planned."""
        first = read_or_make(self._plan.folder / "first", lambda: orjson.dumps(by_topic(self._patiently(self._first))))
        return orjson.loads(first)  # type: ignore[no-any-return]

    def _first(self) -> dict[TopicPartition, int]:
        from sidecar.sources.rocketmq.wire.requests import RETRY

        bounds, stood = self._logs.bounds(), self._plan.stood
        lows = lows_of(bounds)
        if stood is not None:
            return lows | {tp: at for tp, at in by_partition(stood).items() if tp in lows and at >= 0}
        # As in the daemon, the start offset does not apply to handed-back messages.
        chosen = {tp: found for tp, found in bounds.items() if not tp.topic.startswith(RETRY)}
        return lows | firsts_of(self._logs, chosen, self._walk.broker.start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave messages that arrive from now on to the next run; several queries of a run may have one end."""
        self._target = self._plan.until
        if self._target is None:
            super().prepareForTriggerAvailableNow()

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The range itself, as a row."""
        span = partition.value
        yield span.tp.topic, span.tp.partition, span.start, span.end, span.tp.broker, span.expired
        freeze_modules()


def range_source(planner: RangePlanner, format_name: str = NAME, ddl: str = SCHEMA) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with the planner."""

    class SidecarRanges(DataSource):
        """A source, by ranges."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return ddl

        def streamReader(self, schema: StructType) -> RangePlanner:  # noqa: ARG002, N802
            return planner

    return SidecarRanges
