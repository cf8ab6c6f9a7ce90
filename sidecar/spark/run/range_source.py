"""A streaming source of ranges of offsets: each task reads one with the daemon's own client.

Spark plans the range of each task, stores it in its checkpoint and retries it; no message goes through its JVM. Offsets
are JSON: topic, queue, next offset. For Kafka that is the form of Spark's connector.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.spark.ranges.broker import (
    ANEW,
    BrokerRanges,
    LogExtent,
    Logs,
    OnGap,
    Places,
    by_partition,
    by_topic,
    ends_of,
    expired,
    firsts_of,
    gap,
    highs_of,
    lost,
    lows_of,
    patiently,
    report_expired,
)
from sidecar.spark.ranges.shared import read_if_there, read_or_make, write
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    pass


NAME = "sidecar_ranges"
SCHEMA = "topic string, partition int, start bigint, end bigint, broker string, expired bigint"


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Parameters of the source.

    Args:
        folder: The run's folder, which keeps the start offsets of a new checkpoint and of partitions added to it.
        offsets_max: Limit of offsets in a micro-batch.
        stood: The offsets of the daemon's consumer group, if it ever existed.
        until: The bounds of the logs up to which a query that ends by itself reads; None for those at its start.
        on_gap: Behavior where messages expired before they were read.
    """

    broker: BrokerRanges
    folder: Path
    offsets_max: int
    stood: Places | None
    until: Mapping[TopicPartition, LogExtent] | None = None
    on_gap: OnGap = "stop"
    log: tuple[str, str] = ("json", "info")
    """Format and level of the log, which planning writes in a process of its own."""


@dataclass
class Range(InputPartition):
    """Offsets of one partition, without `end`; before them, some that expired before they were read."""

    topic: str
    partition: int
    start: int
    end: int
    broker: str = ""
    expired: int = 0


class RangePlanner(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges."""

    def __init__(self, plan: RangePlan) -> None:
        self._packed = pickle.dumps(plan)  # code that only passes ranges on need not import settings and client
        self._target: Mapping[TopicPartition, LogExtent] | None = None
        self._planned: Places | None = None
        """The end that was planned last; a micro-batch with another end is a replay of an earlier process's."""

    @cached_property
    def _plan(self) -> RangePlan:
        return pickle.loads(self._packed)  # type: ignore[no-any-return]

    @cached_property
    def _logs(self) -> Logs:
        return self._plan.broker.logs()

    # On the driver

    def initialOffset(self) -> Places:  # noqa: N802  # Spark's names, here and below
        """The start offsets of the checkpoint, the same at every start once its first micro-batch is planned."""
        first = read_or_make(self._plan.folder / "first", lambda: orjson.dumps(by_topic(patiently(self._first))))
        return orjson.loads(first)  # type: ignore[no-any-return]

    def _first(self) -> dict[TopicPartition, int]:
        from sidecar.sources.rocketmq.wire.requests import RETRY

        bounds, stood = self._logs.bounds(), self._plan.stood
        lows = lows_of(bounds)
        if stood is not None:
            return lows | {tp: at for tp, at in by_partition(stood).items() if tp in lows and at >= 0}
        # As in the daemon, the start offset does not apply to handed-back messages.
        chosen = {tp: found for tp, found in bounds.items() if not tp.topic.startswith(RETRY)}
        return lows | firsts_of(self._logs, chosen, self._plan.broker.start)

    def _bounds(self) -> Mapping[TopicPartition, LogExtent]:
        return patiently(self._logs.bounds)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._plan.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave messages that arrive from now on to the next run."""
        self._target = self._plan.until or self._bounds()

    def reportLatestOffset(self) -> Places:  # noqa: N802
        """The latest offsets, for the lag."""
        return by_topic(highs_of(self._bounds()))

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:  # noqa: N802
        """The end of the next micro-batch; partitions with more lag get more of it.

        Raises:
            PositionError: A topic or partition is gone, ends below the offset up to which it was read, or begins
                behind it.
        """
        there = self._bounds()
        bounds = self._target or there
        known, ends = by_partition(start), highs_of(bounds)
        self._refuse_lost(known, ends)
        self._keep_added({tp: found.low for tp, found in bounds.items() if tp not in known})
        begun = self._begun(known)
        begun |= self._skipped(begun, there)
        most = None if isinstance(limit, ReadAllAvailable) else self._plan.offsets_max
        ends = {tp: max(end, begun[tp]) for tp, end in ends.items()}
        self._planned = by_topic(ends_of(begun, ends, most))
        return self._planned

    def _refuse_lost(self, known: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        for tp, offset in known.items():
            if not self._logs.is_read(tp.topic):
                raise PositionError(
                    f"{tp.topic} was removed from {self._plan.broker.topics_key}: add it again, or {ANEW}"
                )
            if why := lost(tp, offset, ends.get(tp)):
                raise PositionError(f"{why}; restore it or access to it, or {ANEW}")

    def _skipped(
        self, begun: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, LogExtent]
    ) -> dict[TopicPartition, int]:
        """The offsets to resume partitions whose messages expired unread: durable before anything is read there.

        Raises:
            PositionError: There are such partitions, and the settings do not allow to go on.
        """
        behind = expired(begun, lows_of(bounds))
        for tp, low in behind.items():
            if self._plan.on_gap == "stop":
                raise PositionError(f"{gap(tp, begun[tp], low, 'spark.on_gap')}; or {ANEW}")
        if behind:
            write(self._plan.folder / "skipped", orjson.dumps(by_topic(behind)))
        return behind

    def _keep_added(self, lows: Mapping[TopicPartition, int]) -> None:
        """Store the start offsets of partitions new to the checkpoint: durable before Spark's log has their ends."""
        if lows:
            write(self._plan.folder / "added", orjson.dumps(by_topic(lows)))

    def _begun(self, known: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {**self._stored("added"), **known}

    def _stored(self, name: str) -> dict[TopicPartition, int]:
        stored = read_if_there(self._plan.folder / name)
        return {} if stored is None else by_partition(orjson.loads(stored))

    def partitions(self, start: Places, end: Places) -> Sequence[Range]:
        """A range for each partition with new offsets; a new partition begins at the planned start of its log.

        Raises:
            PositionError: Some of their messages, which an earlier process has planned, expired meanwhile.
        """
        begun, ends = self._begun(by_partition(start)), by_partition(end)
        if end != self._planned:
            bounds = self._bounds()
            going = {tp: begun.get(tp, 0) for tp, last in ends.items() if last > begun.get(tp, 0)}
            self._refuse_lost(going, highs_of(bounds))
            self._skipped(going, bounds)
        skipped = self._stored("skipped")
        ranges = []
        for tp, last in sorted(ends.items()):
            first = begun.get(tp, 0)
            start_at = max(first, min(skipped.get(tp, first), last))
            ranges.append(Range(tp.topic, tp.partition, start_at, last, tp.broker, start_at - first))
            if start_at > first:
                report_expired(tp, first, start_at, self._plan.log)
        return [span for span in ranges if span.end > span.start or span.expired]

    def stop(self) -> None:
        self._logs.close()

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The range itself, as a row."""
        assert isinstance(partition, Range)
        span = partition
        yield span.topic, span.partition, span.start, span.end, span.broker, span.expired
        freeze_modules()


def range_source(planner: RangePlanner, format_name: str = NAME, ddl: str = SCHEMA) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with the planner.

    Args:
        planner: Plans the ranges, and reads them as rows.
        ddl: The columns of the rows.
    """

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
