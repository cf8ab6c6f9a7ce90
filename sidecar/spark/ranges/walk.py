"""The walk through logs, for jobs and queries: which ranges come next, and Spark's calls about them. Has no client.

Jobs and queries differ only in the form of their offsets: a job has that of Spark's connector for Kafka, so that either
may read a checkpoint, and keeps the rest in files beside it. The offsets of a query have everything.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.spark.ranges.broker import (
    BrokerRanges,
    LogExtent,
    Logs,
    OnGap,
    ends_of,
    expired,
    gap,
    highs_of,
    lost,
    lows_of,
    patiently,
    report_expired,
)

T = TypeVar("T")

Offsets: TypeAlias = dict[str, Any]
Bounds: TypeAlias = Mapping[TopicPartition, LogExtent]
ASK_EVERY_S = 0.1
"""Interval of requests, in seconds: Spark asks for new messages 100 times a second while there are none."""


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, without `end`.

    Args:
        topic_id: Empty if the reader does not compare ids of topics here.
        is_first: Whether it is the reader's first range of the partition.
        query: Name of the query; empty if it keeps no ids under a name.
        expired: Number of offsets before `start` that expired before they were read.
    """

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    is_first: bool = False
    query: str = ""
    expired: int = 0


class Reached(NamedTuple):
    """Offsets of Spark's checkpoint, in any form.

    Args:
        next: The offset after the last one read, by partition.
        firsts: The offset where reading began, of partitions without a range before this micro-batch at least.
        ids: The id of each topic; None if they are not compared here.
        name: Name of the query; empty if it keeps no ids.
        skipped: Where the micro-batch begins in partitions whose next messages had expired.
    """

    next: Mapping[TopicPartition, int]
    firsts: Mapping[TopicPartition, int] = {}
    ids: Mapping[str, str] | None = None
    name: str = ""
    skipped: Mapping[TopicPartition, int] = {}


class Walk(NamedTuple):
    """The rules of a walk.

    Args:
        topics: The setting that names the topics.
        key: The setting of `on_gap`.
        start_over: The last remedy, within errors: Spark passes on only their text.
        log: Format and level of the log: planning has a process of its own, which must configure it.
    """

    broker: BrokerRanges
    on_gap: OnGap
    topics: str
    key: str
    start_over: str
    offsets_max: int = 0
    log: tuple[str, str] = ("json", "info")

    def advance(self, logs: Logs, at: Reached, bounds: Bounds, most: int | None) -> Reached:
        """The end of the next micro-batch; `at` itself if there is nothing to read.

        Raises:
            PositionError: A topic or partition is gone, was created again, ends below the offset up to which it was
                read, or begins behind it.
        """
        known, ids = at.next, None
        self._refuse_lost(logs, known, bounds)
        if at.ids is not None:
            ids = logs.topic_ids(sorted({tp.topic for tp in bounds}))
            for topic in {tp.topic: None for tp in known}:
                if ids.get(topic, "") != at.ids.get(topic, ""):
                    raise PositionError(f"{topic} was deleted and created again: {self.start_over}")
        begun = {tp: known.get(tp, at.firsts.get(tp, found.low)) for tp, found in bounds.items()}
        skipped = self._behind(begun, bounds)
        begun |= skipped
        ends = ends_of(begun, {tp: max(found.high, begun[tp]) for tp, found in bounds.items()}, most)
        if ends == known:
            return at
        firsts = {tp: offset for tp, offset in begun.items() if tp not in known} | dict(at.firsts)
        return Reached(ends, firsts, ids, at.name, skipped)

    def replay(self, logs: Logs, start: Reached, end: Reached, bounds: Bounds) -> Reached:
        """The end of a micro-batch that an earlier process has planned, without messages that expired meanwhile.

        Raises:
            PositionError: Some expired, and the settings do not allow to go on; or a topic or partition is gone.
        """
        begun = {span.tp: span.start for span in spans(start, end)}
        self._refuse_lost(logs, begun, bounds)
        return end._replace(skipped={**end.skipped, **self._behind(begun, bounds)})

    def _refuse_lost(self, logs: Logs, known: Mapping[TopicPartition, int], bounds: Bounds) -> None:
        for tp, offset in known.items():
            if not logs.is_read(tp.topic):
                raise PositionError(f"{tp.topic} was removed from {self.topics}: add it again, or {self.start_over}")
            if why := lost(tp, offset, bounds[tp].high if tp in bounds else None):
                raise PositionError(f"{why}; restore it or access to it, or {self.start_over}")

    def _behind(self, begun: Mapping[TopicPartition, int], bounds: Bounds) -> dict[TopicPartition, int]:
        found = expired(begun, lows_of(bounds))
        if found and self.on_gap == "stop":
            tp, low = next(iter(found.items()))
            raise PositionError(f"{gap(tp, begun[tp], low, self.key)}; or {self.start_over}")
        return found


def spans(start: Reached, end: Reached) -> list[Span]:
    """The ranges of a micro-batch, of partitions with new offsets."""
    found: list[Span] = []
    for tp, last in sorted(end.next.items()):
        begun = start.next.get(tp, end.firsts.get(tp, 0))
        if last > begun:
            first = max(begun, min(last, end.skipped.get(tp, begun)))
            topic_id, is_first = (end.ids or {}).get(tp.topic, ""), begun == end.firsts.get(tp)
            found.append(Span(tp, topic_id, first, last, is_first, end.name, first - begun))
    return found


class RangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of ranges, as Spark asks for them."""

    def __init__(self) -> None:
        self._target: Bounds | None = None
        self._ends: Offsets | None = None
        """The ends of the logs when they were last asked for."""
        self._planned: Offsets | None = None
        """The end that was planned last; a micro-batch with another end is a replay of an earlier process's."""
        self._asked_at_s = -ASK_EVERY_S
        self._has_planned = False

    @property
    @abstractmethod
    def _walk(self) -> Walk: ...

    @abstractmethod
    def _parsed(self, offsets: Offsets) -> Reached: ...

    @abstractmethod
    def _kept(self, reached: Reached) -> Offsets:
        """These offsets in the reader's own form; what has no room there is durable."""

    @cached_property
    def _logs(self) -> Logs:
        return self._walk.broker.logs()

    def _patiently(self, plan: Callable[[], T]) -> T:
        found = patiently(plan, None if self._has_planned else self._walk.broker.start_timeout_s)
        self._has_planned = True
        return found

    def _bounds(self) -> Bounds:
        time.sleep(max(0.0, self._asked_at_s + ASK_EVERY_S - time.monotonic()))
        self._asked_at_s = time.monotonic()
        return self._logs.bounds()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's names, here and below
        return ReadMaxRows(self._walk.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave messages that arrive from now on to the next run."""
        self._target = self._patiently(self._bounds)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """The latest offsets that are known, for the lag."""
        return self._ends

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next micro-batch; partitions with more lag get more of it.

        Raises:
            SidecarError: A topic was lost or created again, or messages expired; or the cluster does not answer for
                30 s, or for the start-up time if it has not answered yet.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._planned = self._kept(self._patiently(lambda: self._next(self._parsed(start), most)))
        return self._planned

    def _next(self, at: Reached, most: int | None) -> Reached:
        bounds = self._bounds()
        if self._target is not None:
            ends = self._target.items()
            bounds = {tp: LogExtent(bounds[tp].low, found.high) for tp, found in ends if tp in bounds}
        self._ends = self._kept(Reached(highs_of(bounds), ids=at.ids and {}))
        return self._walk.advance(self._logs, at, bounds, most)

    def _spans(self, start: Offsets, end: Offsets) -> list[Span]:
        """The ranges of a micro-batch; what expired unread is logged.

        Raises:
            SidecarError: Some of their messages, which an earlier process has planned, expired meanwhile.
        """
        before, after = self._parsed(start), self._parsed(end)
        if end != self._planned:
            after = self._patiently(lambda: self._walk.replay(self._logs, before, after, self._bounds()))
            self._kept(after)
        found = spans(before, after)
        for span in found:
            if span.expired:
                report_expired(span.tp, span.start - span.expired, span.start, self._walk.log)
        return found

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """A partition for each range with new offsets; raises like `latestOffset`."""
        return [InputPartition(span) for span in self._spans(start, end)]

    def stop(self) -> None:
        self._logs.close()
