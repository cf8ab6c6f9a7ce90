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


class _Units(dict[UnitKey, _Unit]):
    """The open units, and which of them are due, and why: because a limit is reached, or by age.

    Args:
        lane_bytes: Memory of a lane with open messages, without its rows.
    """

    def __init__(self, rules: BatchRules, memory: Memory, lane_bytes: int) -> None:
        super().__init__()
        self.due: dict[UnitKey, str] = {}
        """Units to be cut, each with the reason."""
        self.limits = rules.limits
        """Limits of the next batches: those of the rules, or lower ones."""
        self._rules = rules
        self._memory = memory
        self.lane_bytes = lane_bytes
        self._lingering: list[tuple[float, int, UnitKey]] = []
        self._sequence = 0

    def open(self, key: UnitKey, partition: Partition, lane: Lane, fragment: Fragment, now_ms: float) -> None:
        """Take messages into a lane of a unit."""
        count, nbytes = lane.buffer.add_fragment(fragment)
        self._memory.held_bytes += held_bytes(fragment)
        unit = self.get(key)
        if unit is None:
            unit = self[key] = _Unit(now_ms)
            self._memory.held_bytes += UNIT_BYTES
            self._linger(key, unit)
        owner = partition.tp, lane.group
        if owner not in unit.lanes:
            unit.lanes[owner] = partition, lane
            self._memory.held_bytes += self.lane_bytes
        unit.count += count
        unit.nbytes += nbytes
        if key not in self.due:
            self._check_full(key, unit, lane)

    def _linger(self, key: UnitKey, unit: _Unit) -> None:
        self._sequence += 1
        heapq.heappush(self._lingering, (unit.since_ms + self._rules.linger_ms, self._sequence, key))

    def _check_full(self, key: UnitKey, unit: _Unit, lane: Lane) -> None:
        limits, of = self.limits, lane.buffer if key[1] is None else unit
        if of.count >= limits.max_messages:
            self.due[key] = "count"
        elif of.nbytes >= limits.max_bytes:
            self.due[key] = "bytes"

    def refresh(self, key: UnitKey) -> None:
        """Update a unit from which messages were taken; it ends with its last message."""
        unit = self[key]
        before = len(unit.lanes)
        unit.lanes = {owner: both for owner, both in unit.lanes.items() if both[1].buffer.fragments}
        self._memory.held_bytes -= self.lane_bytes * (before - len(unit.lanes))
        self.due.pop(key, None)
        if not unit.lanes:
            del self[key]
            self._memory.held_bytes -= UNIT_BYTES
            return
        buffers = [lane.buffer for _, lane in unit.lanes.values()]
        unit.count = sum(buffer.count for buffer in buffers)
        unit.nbytes = sum(buffer.nbytes for buffer in buffers)
        unit.since_ms = min(buffer.fragments[0].at_ms for buffer in buffers)
        self._linger(key, unit)
        self._check_full(key, unit, max((lane for _, lane in unit.lanes.values()), key=lambda lane: lane.buffer.count))

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the partition's open messages, which were cut otherwise or are no longer owned."""
        for key, unit in list(self.items()):
            gone = [owner for owner in unit.lanes if owner[0] == tp]
            for owner in gone:
                del unit.lanes[owner]
            self._memory.held_bytes -= self.lane_bytes * len(gone)
            if gone:
                self.refresh(key)

    def change(self, max_bytes: float) -> None:
        """Judge all units again, under changed rules.

        Args:
            max_bytes: The largest body that the destination takes.
        """
        rules = self._rules.limits
        self.limits = Limits(rules.max_messages, int(min(rules.max_bytes, max_bytes)))
        self._lingering.clear()
        for key, unit in self.items():
            self._linger(key, unit)
            for _, lane in unit.lanes.values():
                self._check_full(key, unit, lane)

    def hurry(self, key: UnitKey, reason: str) -> None:
        """Make a unit due now, for a reason that is worth more than its age."""
        if self.due.get(key, "linger") == "linger":
            self.due[key] = reason

    def end_lingering(self, until_ms: float) -> None:
        """Make units due that are open for long enough at this time."""
        while self._lingering and self._lingering[0][0] <= until_ms:
            key = heapq.heappop(self._lingering)[2]
            unit = self.get(key)
            if unit is not None and unit.since_ms + self._rules.linger_ms <= until_ms:
                self.due.setdefault(key, "linger")

    @property
    def next_due_ms(self) -> float:
        """When the next unit is due by its age; infinite if nothing is open."""
        return self._lingering[0][0] if self._lingering else inf


class Cutter:
    """Cuts open messages when they are due.

    A due unit is cut as late as possible, when a sender is about to be free, so that batches grow until then. A batch
    is sent only after a commit, so as many are cut before a commit as keep the senders busy while it lasts. Nothing is
    cut of a failing group, of a fenced partition, or beyond the room for intents.

    Args:
        rules: Rules by which they become due.
        lingers_ms: How long messages of a group stay open at a monotonic time, if its parts are parked and not sent.
        ids: Whether rows keep their message ids.
    """

    def __init__(
        self,
        rules: BatchRules,
        owned: Ownerships,
        groups: Groups,
        memory: Memory,
        lingers_ms: Callable[[str, float], float | None],
        *,
        ids: bool = False,
    ) -> None:
        self._rules = rules
        self._ahead_max = 0
        """Limit of outstanding batches without failing groups."""
        self._times = 1
        """Multiple of `_ahead_max` that may be outstanding at present, while commits take longer than sends."""
        self._body_max_bytes = inf
        self._is_limited = False
        """Whether due units were left because as many batches were outstanding."""
        self._owned = owned
        self._groups = groups
        self._lingers_ms = lingers_ms
        self.cuts: Counter[str] = Counter()
        """Batches that were cut, by reason."""
        self.units = _Units(rules, memory, LANE_BYTES + (LANE_IDS_BYTES if ids else 0))

    def committed(self, *, starved: bool) -> None:
        """Cut twice as much before the next commit if due units waited for this one beside a free sender; else half."""
        if self._is_limited:
            self._times = 2 * self._times if starved else max(1, self._times // 2)

    def change(self) -> None:
        """Continue under changed rules."""
        self.units.change(self._body_max_bytes)

    def fit(self, body_max_bytes: float, concurrency: int) -> None:
        """Set what the destination takes, before each step.

        Args:
            body_max_bytes: The largest body; infinite if that is unknown.
            concurrency: Concurrent sends; twice as many batches are cut ahead.
        """
        self._ahead_max = 2 * concurrency
        if body_max_bytes != self._body_max_bytes:
            self._body_max_bytes = body_max_bytes
            self.units.change(body_max_bytes)

    def open(self, partition: Partition, opened: Sequence[tuple[str, Fragment]], now_ms: float) -> list[Part] | None:
        """Take messages of a partition.

        Returns:
            None, or the parts that were cut because the groups of the partition share intents from now on, for lack of
            room.
        """
        parts = None
        if not partition.promises.admits({group for group, _ in opened}, partition.lanes):
            parts = partition.share(self.units.limits)
            self.cuts["groups"] += len(parts)
            self.units.forget_partition(partition.tp)
        for group, fragment in opened:
            self.units.open(self._key(partition, group), partition, partition.lanes.of(group), fragment, now_ms)
        return parts

    def _key(self, partition: Partition, group: str) -> UnitKey:
        if partition.promises.shared_from is not None:
            return partition.tp, None
        return (None if self._rules.by_group else partition.tp), group

    def held_up(self, now_ms: float) -> list[tuple[UnitKey, float]]:
        """The units that are due, or would be at a step, each with the time since which it is open.

        Those of failing groups are left out.
        """
        failing, until_ms = self._groups.failing_since_ms, now_ms - self._rules.linger_ms
        due = ((key, unit) for key, unit in self.units.items() if key in self.units.due or unit.since_ms <= until_ms)
        return [(key, unit.since_ms) for key, unit in due if key[1] is None or failing(key[1]) is None]

    def patience_ms(self, now_ms: float) -> float:
        """How long nothing need be read or cut: until open messages are due, and for a quarter of `linger_ms`."""
        return min(self.units.next_due_ms - now_ms, max(READ_MS, self._rules.linger_ms / 4))

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
        self.units.end_lingering(now_ms)
        if pressure:
            for key in self.units:
                self.units.hurry(key, pressure)
        for partition in wide:  # priority for the group that holds back the watermark
            lanes = partition.lanes.open()
            if lanes:
                oldest = min(lanes, key=lambda lane: lane.buffer.fragments[0].first)
                self.units.hurry(self._key(partition, oldest.group), "span")
        for key, unit in self.units.items() if leaving else ():
            if any(tp in leaving for tp, _ in unit.lanes):
                self.units.hurry(key, "handover")
        has_cut = False
        for parts in self._cut_due(now_ms):
            has_cut = True
            yield parts
        if has_cut:
            self.units.end_lingering(now_ms + ahead_ms)
            yield from self._cut_due(now_ms)

    def _cut_due(self, now_ms: float) -> Iterator[list[Part]]:
        # Round robin, one batch for each group: a group that is far behind must not take all senders.
        work = deque(self.units.due)
        while work and self._groups.healthy < self._ahead_max * self._times:
            key = work.popleft()
            batches = self._cut(key, now_ms)
            yield from batches
            if batches and key in self.units.due:
                work.append(key)
        self._is_limited = bool(work)

    def _cut(self, key: UnitKey, now_ms: float) -> list[list[Part]]:
        unit, group, reason, limits = self.units[key], key[1], self.units.due[key], self.units.limits
        if group is not None:
            lingers_ms = self._lingers_ms(group, now_ms)
            if lingers_ms is None:
                is_time = self._groups.failing_since_ms(group) is None
            else:  # for the store, only when it is full, or when room is needed
                is_full = unit.count >= limits.max_messages or unit.nbytes >= limits.max_bytes
                is_time = reason != "linger" or now_ms - unit.since_ms >= lingers_ms or is_full
            if not is_time:
                return []
        fenced = self._owned.fenced
        # A unit that may not be cut stays open and due: the next step that finds it free cuts it.
        ways = [way for way in unit.lanes.values() if way[0].tp not in fenced and way[0].promises.may_cut(way[1])]
        if not ways:
            return []
        partition, lane = ways[0]
        if group is None:
            batches = [[part] for part in partition.cut_shared(limits)]
        else:
            batches = [self._gather(ways) if len(ways) > 1 else [partition.cut(lane, limits)]]
        self.cuts[reason] += 1
        self.units.refresh(key)
        return batches

    def _gather(self, ways: list[tuple[Partition, Lane]]) -> list[Part]:
        """One part of each lane, oldest first, within a batch's limits."""
        limits = self.units.limits
        messages, size, header = limits.max_messages, limits.max_bytes, PARTS_HEADER_MAX_BYTES
        parts: list[Part] = []
        for partition, lane in sorted(ways, key=lambda way: way[1].buffer.fragments[0].at_ms):
            header -= len(partition.tp.topic) + len(partition.tp.queue) + PART_HEADER_BYTES
            if parts and (len(parts) == PARTS_MAX or header < 0 or messages < 1 or lane.buffer.first_row_bytes > size):
                break
            part = partition.cut(lane, Limits(messages, max(size, 1)))
            parts.append(part)
            messages -= part.count
            size -= part.nbytes
        return parts
