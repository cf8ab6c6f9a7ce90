"""Open messages, and their cutting into parts: late, and within limits and room. Knows no answer and no commit."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from sidecar.core.batching import Limits, held_bytes
from sidecar.core.groups import Groups
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.parts import Lane, Memory, Part
from sidecar.core.records import PARTS_HEADER_MAX_BYTES, PARTS_MAX, Fragment, TopicPartition

LANE_BYTES, UNIT_BYTES = 900, 450
"""Memory of a lane with open messages, without its rows, and of a unit, without its lanes; by RSS."""
LANE_IDS_BYTES = 120
"""Memory of the array of a lane's message ids, without the ids; measured."""
READ_MS = 5
"""With a short `linger_ms`, messages are read this often."""
PART_HEADER_BYTES = 64
"""Size of a part's entry in the header, without the names of topic and queue."""

UnitKey = tuple[TopicPartition | None, str | None]


@dataclass(slots=True)
class BatchRules:
    """Rules by which open messages become a batch; `Pipeline.change` may change them in place.

    Args:
        by_group: A batch may hold parts of several partitions.
        linger_ms: Longest time that a message stays open while a sender is free.
        span_max: Offsets between watermark and position at which a partition pauses.
        held_max_bytes: Memory for held messages; intake pauses at 80 % of it and resumes at 50 %.
    """

    by_group: bool
    limits: Limits
    linger_ms: int
    span_max: int
    held_max_bytes: int


@dataclass(slots=True)
class _Unit:
    """Lanes that are cut together: one lane, a group's lanes, or a partition whose groups share intents."""

    since_ms: float
    count: int = 0
    nbytes: int = 0
    lanes: dict[tuple[TopicPartition, str], tuple[Partition, Lane]] = field(default_factory=dict)


class Cutter:
    """Holds open messages until they are due.

    A due unit is cut as late as possible, when a sender is about to be free, so that batches grow until then. A batch
    is sent only after a commit, so as many are cut before a commit as keep the senders busy while it lasts. Nothing is
    cut of a failing group, of a fenced partition, or beyond the room for intents.

    Args:
        rules: Rules by which they become due.
        concurrency: Concurrent sends; without failing groups, at most twice as many batches are outstanding, or more
            while commits take longer than these.
        lingers_ms: How long messages of a group stay open at a monotonic time, if its parts are parked and not sent.
        ids: Whether rows keep their message ids.
    """

    def __init__(
        self,
        rules: BatchRules,
        concurrency: int,
        owned: Ownerships,
        groups: Groups,
        memory: Memory,
        lingers_ms: Callable[[str, float], float | None],
        *,
        ids: bool = False,
    ) -> None:
        self._rules = rules
        self._ahead_max = 2 * concurrency
        self._times = 1
        """Multiple of `_ahead_max` that may be outstanding at present."""
        self._is_limited = False
        """Whether due units were left because as many batches were outstanding."""
        self._owned = owned
        self._groups = groups
        self._memory = memory
        self._lingers_ms = lingers_ms
        self.lane_bytes = LANE_BYTES + (LANE_IDS_BYTES if ids else 0)
        self.cuts: Counter[str] = Counter()
        self._units: dict[UnitKey, _Unit] = {}
        self._due: dict[UnitKey, str] = {}
        self._lingering: list[tuple[float, int, UnitKey]] = []
        self._sequence = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is open."""
        return not self._units

    def committed(self, *, starved: bool) -> None:
        """Cut twice as much before the next commit if due units waited for this one beside a free sender; else half."""
        if self._is_limited:
            self._times = 2 * self._times if starved else max(1, self._times // 2)

    def change(self, concurrency: int) -> None:
        """Continue under changed rules."""
        self._ahead_max = 2 * concurrency
        self._lingering.clear()
        for key, unit in self._units.items():
            self._linger(key, unit.since_ms)
            for _, lane in unit.lanes.values():
                self._check_full(key, unit, lane)

    # Opening

    def open(self, partition: Partition, opened: Sequence[tuple[str, Fragment]], now_ms: float) -> list[Part] | None:
        """Take messages of a partition.

        Returns:
            None, or the parts that were cut because the groups of the partition share intents from now on, for lack of
            room.
        """
        parts = None
        if not partition.promises.admits({group for group, _ in opened}, partition.lanes):
            parts = partition.opening.share(self._rules.limits)
            self.cuts["groups"] += len(parts)
            self.forget(partition.tp)
        for group, fragment in opened:
            self._open(partition, group, fragment, now_ms)
        return parts

    def _open(self, partition: Partition, group: str, fragment: Fragment, now_ms: float) -> None:
        lane = partition.lanes.of(group)
        count, nbytes = lane.buffer.add(fragment)
        self._memory.held_bytes += held_bytes(fragment)
        key = self._key(partition, group)
        unit = self._units.get(key)
        if unit is None:
            unit = self._units[key] = _Unit(now_ms)
            self._memory.held_bytes += UNIT_BYTES
            self._linger(key, now_ms)
        owner = partition.tp, group
        if owner not in unit.lanes:
            unit.lanes[owner] = partition, lane
            self._memory.held_bytes += self.lane_bytes
        unit.count += count
        unit.nbytes += nbytes
        if key not in self._due:
            self._check_full(key, unit, lane)

    def _key(self, partition: Partition, group: str) -> UnitKey:
        if partition.promises.shared_from is not None:
            return partition.tp, None
        return (None if self._rules.by_group else partition.tp), group

    def _linger(self, key: UnitKey, since_ms: float) -> None:
        self._sequence += 1
        heapq.heappush(self._lingering, (since_ms + self._rules.linger_ms, self._sequence, key))

    def _check_full(self, key: UnitKey, unit: _Unit, lane: Lane) -> None:
        limits = self._rules.limits
        shared = key[1] is None
        count, nbytes = (lane.buffer.count, lane.buffer.nbytes) if shared else (unit.count, unit.nbytes)
        if count >= limits.max_messages:
            self._due[key] = "count"
        elif nbytes >= limits.max_bytes:
            self._due[key] = "bytes"

    def _refresh(self, key: UnitKey, unit: _Unit) -> None:
        """Update the unit after messages were taken from it."""
        before = len(unit.lanes)
        unit.lanes = {lane_key: both for lane_key, both in unit.lanes.items() if both[1].buffer.fragments}
        self._memory.held_bytes -= self.lane_bytes * (before - len(unit.lanes))
        self._due.pop(key, None)
        if not unit.lanes:
            del self._units[key]
            self._memory.held_bytes -= UNIT_BYTES
            return
        lanes = [lane for _, lane in unit.lanes.values()]
        unit.count = sum(lane.buffer.count for lane in lanes)
        unit.nbytes = sum(lane.buffer.nbytes for lane in lanes)
        unit.since_ms = min(lane.buffer.fragments[0].at_ms for lane in lanes)
        self._linger(key, unit.since_ms)
        self._check_full(key, unit, max(lanes, key=lambda lane: lane.buffer.count))

    def forget(self, tp: TopicPartition) -> None:
        """Drop the partition's open messages, which were cut otherwise or are no longer owned."""
        for key, unit in list(self._units.items()):
            gone = [lane_key for lane_key in unit.lanes if lane_key[0] == tp]
            for lane_key in gone:
                del unit.lanes[lane_key]
            self._memory.held_bytes -= self.lane_bytes * len(gone)
            if gone:
                self._refresh(key, unit)

    def held_up(self, now_ms: float) -> list[tuple[UnitKey, float]]:
        """The units that are due, or would be at a step, each with the time since which it is open.

        Those of failing groups are left out.
        """
        failing, until_ms = self._groups.failing, now_ms - self._rules.linger_ms
        due = ((key, unit) for key, unit in self._units.items() if key in self._due or unit.since_ms <= until_ms)
        return [(key, unit.since_ms) for key, unit in due if not (key[1] and failing(key[1]))]

    # Cutting

    def patience_ms(self, now_ms: float) -> float:
        """How long nothing need be read or cut: until open messages are due, and for a quarter of `linger_ms`."""
        due_ms = self._lingering[0][0] - now_ms if self._lingering else inf
        return min(due_ms, max(READ_MS, self._rules.linger_ms / 4))

    def step(
        self,
        now_ms: float,
        ahead_ms: float,
        pressure: str,
        wide: Iterable[Partition],
        leaving: Collection[TopicPartition],
    ) -> Iterator[list[Part]]:
        """Cut due units, batch by batch: each cut depends on what is outstanding by then.

        Args:
            now_ms: Monotonic time.
            ahead_ms: Time after a cut in which no other cut is possible; units due within it are cut now.
            pressure: The reason to cut everything that is open; empty if there is none.
            wide: Partitions with more than half of `span_max` between watermark and position.
            leaving: Partitions in which nothing may stay open.

        Yields:
            The parts of a batch; they must be outstanding before the next batch is requested.
        """
        self._end_lingering(now_ms)
        if pressure:
            for key in self._units:
                self._hurry(key, pressure)
        for partition in wide:
            self._free_span(partition)
        for key, unit in self._units.items() if leaving else ():
            if any(tp in leaving for tp, _ in unit.lanes):
                self._hurry(key, "handover")
        has_cut = False
        for parts in self._cut_due(now_ms):
            has_cut = True
            yield parts
        if has_cut:
            self._end_lingering(now_ms + ahead_ms)
            yield from self._cut_due(now_ms)

    def _end_lingering(self, until_ms: float) -> None:
        while self._lingering and self._lingering[0][0] <= until_ms:
            key = heapq.heappop(self._lingering)[2]
            unit = self._units.get(key)
            if unit is not None and unit.since_ms + self._rules.linger_ms <= until_ms:
                self._due.setdefault(key, "linger")

    def _cut_due(self, now_ms: float) -> Iterator[list[Part]]:
        # Round robin, one batch for each group: a group that is far behind must not take all senders.
        work = deque(self._due)
        while work and self._groups.healthy < self._ahead_max * self._times:
            key = work.popleft()
            batches = self._cut(key, now_ms)
            yield from batches
            if batches and key in self._due:
                work.append(key)
        self._is_limited = bool(work)

    def _hurry(self, key: UnitKey, reason: str) -> None:
        if self._due.get(key, "linger") == "linger":
            self._due[key] = reason

    def _free_span(self, partition: Partition) -> None:
        """Give priority to the group that holds back a partition's watermark, when the span above it grows wide."""
        lanes = partition.lanes.open()
        if lanes:
            oldest = min(lanes, key=lambda lane: lane.buffer.fragments[0].first)
            self._hurry(self._key(partition, oldest.group), "span")

    def _may_be_cut(self, key: UnitKey, unit: _Unit, now_ms: float) -> bool:
        """Whether a due unit is cut now: for the store only when it is full, or when room is needed."""
        group = key[1]
        if group is None:
            return True
        lingers_ms = self._lingers_ms(group, now_ms)
        if lingers_ms is None:
            return not self._groups.failing(group)
        if self._due[key] != "linger" or now_ms - unit.since_ms >= lingers_ms:
            return True
        return unit.count >= self._rules.limits.max_messages or unit.nbytes >= self._rules.limits.max_bytes

    def _cut(self, key: UnitKey, now_ms: float) -> list[list[Part]]:
        unit, group = self._units[key], key[1]
        if not self._may_be_cut(key, unit, now_ms):
            return []
        fenced = self._owned.fenced
        # A unit that may not be cut stays open and due: the next step that finds it free cuts it.
        ways = [way for way in unit.lanes.values() if way[0].tp not in fenced and way[0].promises.may_cut(way[1])]
        if not ways:
            return []
        if group is None:
            partition, lane = ways[0]
            batches = [[part] for part in partition.opening.cut(lane, self._rules.limits)]
        else:
            batches = [self._gather(ways)]
        self.cuts[self._due[key]] += 1
        self._refresh(key, unit)
        return batches

    def _gather(self, ways: list[tuple[Partition, Lane]]) -> list[Part]:
        """One part of each lane, oldest first, within a batch's limits."""
        limits = self._rules.limits
        messages, size, header = limits.max_messages, limits.max_bytes, PARTS_HEADER_MAX_BYTES
        parts: list[Part] = []
        for partition, lane in sorted(ways, key=lambda way: way[1].buffer.fragments[0].at_ms):
            header -= len(partition.tp.topic) + len(partition.tp.queue) + PART_HEADER_BYTES
            is_full = len(parts) == PARTS_MAX or header < 0 or messages < 1 or lane.buffer.first_row_bytes > size
            if parts and is_full:
                break
            part = partition.opening.cut(lane, Limits(messages, max(size, 1)))[0]
            parts.append(part)
            messages -= part.count
            size -= part.nbytes
        return parts
