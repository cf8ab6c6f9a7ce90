"""The daemon's mind: takes (event, now), gives effects. No thread, socket, clock, random number, file or logger.

Events are methods: `assign`, `read`, `read_past`, `committed`, `answered`, `stored`, `forget`. `step` cuts, commits and
sends what is due and returns all effects since the last step. Times are monotonic milliseconds.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.core.batching import Limits, body_bytes, held_bytes
from sidecar.core.books import Books
from sidecar.core.delivery import Delivery, DeliveryRules
from sidecar.core.effects import Commit, CommitItem, Effect, Flow, Reload, Report
from sidecar.core.intake import HoleError, Intake, Reading
from sidecar.core.progress import Carried, Intent, Lane, Partition
from sidecar.core.records import (
    PARTS_HEADER_MAX_BYTES,
    PARTS_MAX,
    Answer,
    Fragment,
    Part,
    Run,
    TopicPartition,
)

COMMIT_SPACING_MS = 20
SETTLE_DELAY_MS = 200
COMMIT_RETRY_MS = 100
HIGH, LOW = 0.8, 0.5
PART_HEADER_BYTES = 64
"""A part's entry in the header beyond its topic's name."""

UnitKey = tuple[TopicPartition | None, str | None]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """When open messages become a batch.

    Args:
        by_group: A batch may hold parts of several partitions.
        limits: Upper bounds.
        linger_ms: Longest time a message stays open while a sender is free.
        span_max: Offsets between watermark and position at which a partition pauses.
        held_max_bytes: What may be held; intake pauses at 80 % of it and resumes at 50 %.
    """

    by_group: bool
    limits: Limits
    linger_ms: int
    span_max: int
    held_max_bytes: int


@dataclass(slots=True)
class _Unit:
    """What is cut together: a lane, a group's lanes, or a joint partition."""

    since_ms: float
    count: int = 0
    nbytes: int = 0
    lanes: dict[tuple[TopicPartition, str], tuple[Partition, Lane]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sent:
    """What an outstanding commit makes durable."""

    epoch: int
    carried: Carried
    intents: list[Intent]


class Pipeline:
    """Ties reading, batching, delivery and progress together.

    Args:
        reading: How messages are read.
        batching: When batches are cut.
        rules: How they are delivered.
        jitter: Uniform in [0, 1); where chance comes in.
    """

    def __init__(
        self, reading: Reading, batching: BatchRules, rules: DeliveryRules, jitter: Callable[[], float]
    ) -> None:
        self._rules = batching
        self._concurrency = rules.concurrency
        self._separator = reading.framer.separator
        self.intake = Intake(reading)
        self.delivery = Delivery(rules, self._owner, self._settled, jitter)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.books: dict[TopicPartition, Books] = {}
        self.cuts: Counter[str] = Counter()
        self.draining = False
        self._fenced = self.delivery.fenced
        self._memory_full = False
        self._flow: frozenset[TopicPartition] = frozenset()
        self._epoch = 0
        self._units: dict[UnitKey, _Unit] = {}
        self._due: dict[UnitKey, str] = {}
        self._lingering: list[tuple[float, int, UnitKey]] = []
        self._sequence = 0
        self._dirty: dict[TopicPartition, float] = {}
        self._outstanding: dict[TopicPartition, _Sent] = {}
        self._commit_at_ms = 0.0
        self._now_ms = 0.0
        self._effects: list[Effect] = []

    # Ownership

    def assign(self, tp: TopicPartition, scope: str, carried: Carried) -> None:
        """The partition is ours, from the predecessor's state on."""
        self._epoch += 1
        partition = Partition(tp, scope, self._epoch, carried, self._separator)
        self.partitions[tp] = partition
        self._flow -= {tp}
        self.books.setdefault(tp, Books())
        if carried.lanes or carried.joints or carried.seen > carried.watermark:
            pending = sum(len(lane.intents) for lane in carried.lanes.values()) + len(carried.joints)
            self._report(
                "partition.resumed", topic=tp.topic, partition=tp.partition, watermark=carried.watermark,
                seen=carried.seen, intents=pending,
            )  # fmt: skip

    def fence(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are about to be taken away: cut and send nothing of them any more."""
        self._fenced.update(tps)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more: what is unsettled is released, late answers are dropped."""
        for tp in tps:
            partition = self.partitions.pop(tp, None)
            if partition is None:
                continue
            self.delivery.forget(partition)
            for key, unit in list(self._units.items()):
                for place in [place for place in unit.lanes if place[0] == tp]:
                    del unit.lanes[place]
                self._refresh(key, unit)
            books = self.books[tp]
            books.released += books.in_flight
            books.in_flight = 0
            self.intake.forget(tp)
            self._dirty.pop(tp, None)
            self._outstanding.pop(tp, None)
            self._fenced.discard(tp)

    def _owner(self, part: Part) -> Partition | None:
        partition = self.partitions.get(part.tp)
        return partition if partition is not None and partition.epoch == part.epoch else None

    # Reading

    def read(self, run: Run, now_ms: float) -> None:
        """A run came from the broker."""
        self._now_ms = now_ms
        partition = self.partitions.get(run.tp)
        if partition is None:
            return
        try:
            found = self.intake.sort(partition, run, now_ms)
        except HoleError as hole:
            self._effects.append(Reload(run.tp, f"{hole} was skipped before"))
            return
        books = self.books[run.tp]
        count = len(run.messages)
        books.consumed += count
        books.duplicate += found.duplicate
        books.filtered += found.filtered
        books.in_flight += count - found.duplicate - found.filtered
        self.delivery.held_bytes += sum(map(held_bytes, found.collected))
        for group, fragment in found.opened:
            self._open(partition, group, fragment, now_ms)
        self.read_past(run.tp, run.last + 1, now_ms)

    def read_past(self, tp: TopicPartition, position: int, now_ms: float) -> None:
        """Nothing below `position` is left to read, messages or gaps."""
        self._now_ms = now_ms
        partition = self.partitions.get(tp)
        if partition is None or position <= partition.position:
            return
        for part in partition.read_past(position):
            self.delivery.add([part])
        self._touch(tp, now_ms + SETTLE_DELAY_MS)

    def _open(self, partition: Partition, group: str, fragment: Fragment, now_ms: float) -> None:
        lane = partition.lane(group)
        if not lane.buffer.fragments and not partition.admits(group):
            self._go_joint(partition, now_ms)
        lane.buffer.add(fragment)
        self.delivery.held_bytes += held_bytes(fragment)
        key = self._unit_key(partition, group)
        unit = self._units.get(key)
        if unit is None:
            unit = self._units[key] = _Unit(now_ms)
            self._linger(key, now_ms)
        unit.lanes[partition.tp, group] = partition, lane
        unit.count += fragment.count
        unit.nbytes += body_bytes(fragment)
        if key not in self._due:
            self._check_full(key, unit, lane)

    def _unit_key(self, partition: Partition, group: str) -> UnitKey:
        if partition.joint_from is not None:
            return partition.tp, None
        return (None if self._rules.by_group else partition.tp), group

    def _check_full(self, key: UnitKey, unit: _Unit, lane: Lane) -> None:
        limits = self._rules.limits
        joint = key[1] is None
        count, nbytes = (lane.buffer.count, lane.buffer.nbytes) if joint else (unit.count, unit.nbytes)
        if count >= limits.max_messages:
            self._due[key] = "count"
        elif nbytes >= limits.max_bytes:
            self._due[key] = "bytes"

    def _go_joint(self, partition: Partition, now_ms: float) -> None:
        for part in partition.go_joint():
            self.delivery.add([part])
            self.cuts["groups"] += 1
        for key, unit in list(self._units.items()):
            if any(tp == partition.tp for tp, _ in unit.lanes):
                self._refresh(key, unit)
        self._report("partition.joint", topic=partition.tp.topic, partition=partition.tp.partition)
        self._touch(partition.tp, now_ms)

    def _linger(self, key: UnitKey, since_ms: float) -> None:
        self._sequence += 1
        heapq.heappush(self._lingering, (since_ms + self._rules.linger_ms, self._sequence, key))

    def _refresh(self, key: UnitKey, unit: _Unit) -> None:
        """Count the unit anew after something was taken from it."""
        unit.lanes = {place: both for place, both in unit.lanes.items() if both[1].buffer.fragments}
        self._due.pop(key, None)
        if not unit.lanes:
            del self._units[key]
            return
        lanes = [lane for _, lane in unit.lanes.values()]
        unit.count = sum(lane.buffer.count for lane in lanes)
        unit.nbytes = sum(lane.buffer.nbytes for lane in lanes)
        unit.since_ms = min(lane.buffer.fragments[0].at_ms for lane in lanes)
        self._linger(key, unit.since_ms)
        self._check_full(key, unit, max(lanes, key=lambda lane: lane.buffer.count))

    # Cutting

    def _cut_due(self, now_ms: float) -> None:
        while self._lingering and self._lingering[0][0] <= now_ms:
            key = heapq.heappop(self._lingering)[2]
            unit = self._units.get(key)
            if unit is not None and unit.since_ms + self._rules.linger_ms <= now_ms:
                self._due.setdefault(key, "linger")
        pressure = "shutdown" if self.draining else "memory" if self._memory_full else ""
        if pressure:
            for key in self._units:
                self._due.setdefault(key, pressure)
        self._mark_wide_spans()
        work = deque(self._due)
        while work and self.delivery.healthy < 2 * self._concurrency:
            key = work.popleft()
            if self._cut(key, now_ms) and key in self._due:
                work.append(key)

    def _mark_wide_spans(self) -> None:
        """The group that holds back a partition's watermark goes first when the span above it grows wide."""
        for partition in self.partitions.values():
            if partition.span > self._rules.span_max // 2:
                lanes = [lane for lane in partition.lanes.values() if lane.buffer.fragments]
                if lanes:
                    oldest = min(lanes, key=lambda lane: lane.buffer.fragments[0].first)
                    self._due.setdefault(self._unit_key(partition, oldest.group), "span")

    def _cut(self, key: UnitKey, now_ms: float) -> bool:
        unit = self._units.get(key)
        if unit is None:
            del self._due[key]
            return False
        group = key[1]
        state = self.delivery.groups.get(group) if group is not None else None
        if state is not None and state.failing_since_ms is not None:
            return False
        ways = [w for w in unit.lanes.values() if w[0].tp not in self._fenced and w[0].may_cut(w[1])]
        if not ways:
            return False
        if group is None:
            partition, lane = ways[0]
            batches = [[part] for part in partition.cut(lane, self._rules.limits)]
        else:
            batches = [self._gather(ways)]
        for parts in batches:
            self.delivery.add(parts)
            for part in parts:
                self._touch(part.tp, now_ms)
        self.cuts[self._due[key]] += 1
        self._refresh(key, unit)
        return True

    def _gather(self, ways: list[tuple[Partition, Lane]]) -> list[Part]:
        """One part of each lane, oldest first, within a batch's limits."""
        limits = self._rules.limits
        messages, size, header = limits.max_messages, limits.max_bytes, PARTS_HEADER_MAX_BYTES
        parts: list[Part] = []
        for partition, lane in sorted(ways, key=lambda way: way[1].buffer.fragments[0].at_ms):
            header -= len(partition.tp.topic) + PART_HEADER_BYTES
            smallest = len(lane.buffer.fragments[0].data.split(self._separator, 1)[0]) + 1
            if parts and (len(parts) == PARTS_MAX or header < 0 or messages < 1 or smallest > size):
                break
            part = partition.cut(lane, Limits(messages, max(size, 1)))[0]
            parts.append(part)
            messages -= part.count
            size -= part.nbytes
        return parts

    # Progress

    def _settled(self, part: Part, outcome: str, count: int) -> None:
        books = self.books[part.tp]
        setattr(books, outcome, getattr(books, outcome) + count)
        books.in_flight -= count
        self._touch(part.tp, self._now_ms + SETTLE_DELAY_MS)

    def _touch(self, tp: TopicPartition, due_ms: float) -> None:
        """The partition's state changed and is to be committed at `due_ms`."""
        self._dirty[tp] = min(self._dirty.get(tp, due_ms), due_ms)

    def _commit_due(self, now_ms: float) -> None:
        if self._outstanding or now_ms < self._commit_at_ms:
            return
        soon = self.draining or any(due <= now_ms for due in self._dirty.values())
        items = self.commit([tp for tp in self._dirty if tp not in self._fenced]) if soon else []
        if items:
            self._commit_at_ms = now_ms + COMMIT_SPACING_MS
            self._effects.append(Commit(items))

    def commit(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        """What is to be made durable of these partitions now; `committed` must follow. Empty when nothing changed."""
        items = []
        for tp in list(tps):
            partition = self.partitions[tp]
            self._dirty.pop(tp, None)
            carried = partition.carried()
            if carried == partition.durable:
                continue
            self._outstanding[tp] = _Sent(partition.epoch, carried, list(partition.intents))
            ids = array("q", partition.settled_ids)
            partition.settled_ids.clear()
            items.append(
                CommitItem(
                    tp, partition.scope, carried, self.intake.ids.window(tp).generation if ids else 0, ids or None
                )
            )
        return items

    def committed(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """The outstanding commit ended; what is missing in `results` failed and is tried again."""
        self._now_ms = now_ms
        sent, self._outstanding = self._outstanding, {}
        for tp, state in sent.items():
            partition = self.partitions.get(tp)
            if partition is None or partition.epoch != state.epoch:
                continue
            if not results.get(tp):
                self._touch(tp, now_ms + COMMIT_RETRY_MS)
                continue
            partition.durable = state.carried
            partition.committed = state.carried.watermark
            for intent in state.intents:
                intent.durable = True
        self.delivery.unseal()

    @property
    def committing(self) -> bool:
        """Whether a commit is outstanding."""
        return bool(self._outstanding)

    # The sink and the store

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """The sink answered one send."""
        self._now_ms = now_ms
        self.delivery.answered(batch_id, answer, now_ms, wall_ms)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """The dead letters of one `Store` are durable, or could not be stored."""
        self._now_ms = now_ms
        self.delivery.stored(token, ok=ok, now_ms=now_ms)

    # The clock

    def step(self, now_ms: float) -> list[Effect]:
        """Cut, commit and send what is due; all effects since the last step."""
        self._now_ms = now_ms
        self._watch_memory()
        self._cut_due(now_ms)
        self._commit_due(now_ms)
        self.delivery.step(now_ms)
        self._watch_flow()
        effects = self._effects + self.delivery.effects
        self._effects, self.delivery.effects = [], []
        return effects

    def _watch_memory(self) -> None:
        level = HIGH if not self._memory_full else LOW
        self._memory_full = self.delivery.held_bytes > level * self._rules.held_max_bytes

    @property
    def stops(self) -> list[str]:
        """Why nothing at all is read, in words; empty while reading goes on."""
        reasons = {
            "draining": self.draining,
            "memory budget is used up: the sink takes less than the source gives": self._memory_full,
            f"the sink refuses every request: {self.delivery.halted}": self.delivery.halted,
            "the receiver refused more than a tenth of the last 1,000 messages": self.delivery.guard.tripped,
        }
        return [text for text, holds in reasons.items() if holds]

    def _watch_flow(self) -> None:
        if self.stops:
            paused = frozenset(self.partitions)
        else:
            wide = self._rules.span_max
            paused = frozenset(
                tp for tp, p in self.partitions.items() if p.span > (wide * 3 // 4 if tp in self._flow else wide)
            )
        if paused != self._flow:
            self._flow = paused
            self._effects.append(Flow(paused))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are not read at present."""
        return self._flow

    @property
    def idle(self) -> bool:
        """Whether everything that was read is settled and committed."""
        return self.delivery.idle and not self._units and not self._dirty and not self._outstanding

    def _report(self, event: str, level: str = "info", **fields: object) -> None:
        self._effects.append(Report(event, level, fields))
