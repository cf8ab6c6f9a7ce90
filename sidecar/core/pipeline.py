"""The daemon's mind: takes (event, now), gives effects. No thread, socket, clock, random number, file or logger.

Events are methods: `assign`, `read`, `read_past`, `committed`, `claimed`, `answered`, `stored`, `forget`. `step` cuts,
commits and sends what is due and returns all effects since the last step. Times are monotonic milliseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sidecar.core.batching import PART_BYTES
from sidecar.core.books import Books
from sidecar.core.cutting import BatchRules, Cutter
from sidecar.core.delivery import Delivery, DeliveryRules
from sidecar.core.effects import Commit, CommitItem, Effect, Flow, Reload, Report
from sidecar.core.intake import HoleError, Intake, Reading
from sidecar.core.intents import Intent, Seal
from sidecar.core.lineage import Fingerprint, Lineage
from sidecar.core.partition.state import PartitionState
from sidecar.core.progress import Partition
from sidecar.core.records import Answer, Part, Run, TopicPartition
from sidecar.core.room import Room

COMMIT_SPACING_MS = 20
SETTLE_DELAY_MS = 200
COMMIT_RETRY_MS = 100
HIGH, LOW = 0.8, 0.5


@dataclass(slots=True)
class _Sent:
    """What an outstanding commit makes durable."""

    epoch: int
    state: PartitionState
    intents: list[Intent | Seal]
    errors: int
    """How many of the partition's `errors` the ledger is to be told then."""


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
        self._digest = reading.digest
        self.room = Room()
        """What the state may take of partitions that are assigned from now on."""
        self._separator = reading.framer.separator
        self.intake = Intake(reading)
        self._has_copies = reading.copies is not None
        self.delivery = Delivery(rules, self._owner, self._settled, jitter, self._give_up)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.books: dict[TopicPartition, Books] = {}
        self.closed_books = Books()
        """The sum of the books of partitions that were revoked and closed."""
        self._cutter = Cutter(
            batching, rules.concurrency, self.delivery, self._separator, self._touch, ids=reading.ids is not None
        )
        self.cuts = self._cutter.cuts
        """Batches cut, by reason."""
        self.draining = False
        self.state_lost = ""
        """Why what is stored would be lost, while that is so: nothing is read."""
        self.unwritten_bytes = 0
        """Of message ids that are settled and wait for the disk."""
        self.leaving: frozenset[TopicPartition] = frozenset()
        """Partitions whose next owner will know the watermark alone: read no more, and cut at once."""
        self._fenced = self.delivery.fenced
        self._memory_full = False
        self._flow: frozenset[TopicPartition] = frozenset()
        self._replays: set[TopicPartition] = set()
        """Partitions of which what an earlier life had seen was still to be read again when `idle` was asked last."""
        self._epoch = 0
        self._dirty: dict[TopicPartition, float] = {}
        self._reloads: dict[TopicPartition, str] = {}
        self._outstanding: dict[TopicPartition, _Sent] = {}
        self._commit_at_ms = 0.0
        self._now_ms = 0.0
        self._effects: list[Effect] = []

    # Ownership

    def assign(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage = Lineage()) -> None:  # noqa: B008
        """The partition is ours, from the predecessor's state on."""
        self.forget([tp])
        self._epoch += 1
        partition = Partition(tp, scope, self._epoch, state, self._separator, lineage, self.room)
        self.partitions[tp] = partition
        self._replays.add(tp)
        self._flow -= {tp}
        self.books.setdefault(tp, Books())
        self._touch(tp, 0.0)  # where a new group starts is settled now: `latest` must not move while nothing comes
        if state.lanes or state.shared or state.seen > state.watermark:
            pending = sum(len(lane.intents) for lane in state.lanes.values()) + len(state.shared)
            self._report(
                "partition.resumed", **tp.fields(), watermark=state.watermark,
                seen=state.seen, intents=pending,
            )  # fmt: skip

    def fence(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are about to be taken away: cut and send nothing of them any more."""
        self._fenced.update(self.partitions.keys() & tps)  # of one that is gone nobody would lift it

    def has_settled(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether nothing that was read of these partitions, in this life or the one before, is unsettled."""
        return not any(self.books[tp].in_flight or self.partitions[tp].replaying for tp in self.partitions.keys() & tps)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more: what is unsettled is released, late answers are dropped."""
        for tp in tps:
            self._reloads.pop(tp, None)
            self._fenced.discard(tp)
            self.leaving -= {tp}
            partition = self.partitions.pop(tp, None)
            if partition is None:
                continue
            self.delivery.forget(partition)
            self._cutter.forget(tp)
            books = self.books[tp]
            books.released += books.in_flight
            books.in_flight = 0
            self.intake.forget(tp)
            self._dirty.pop(tp, None)

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
        if self._has_copies and run.tp in self._waiting_for_origins():  # it came before it could be paused
            self._give_up(run.tp, "what its messages may be copies of is read again first")
            return
        try:
            if partition.replaying and run.last >= partition.seen:
                again, run = self.intake.divide(run, partition.seen)
                if again is not None:
                    self._read(partition, again, now_ms)
                self.read_past(run.tp, partition.seen, now_ms)
            self._read(partition, run, now_ms)
        except HoleError as hole:
            self._give_up(run.tp, f"{hole} was skipped before")

    def _give_up(self, tp: TopicPartition, reason: str) -> None:
        self.forget([tp])  # at once: a commit in this very step would settle what was skipped
        self._reloads[tp] = reason

    def _read(self, partition: Partition, run: Run, now_ms: float) -> None:
        found = self.intake.sort(partition, run, now_ms)
        books = self.books[run.tp]
        count = len(run.messages)
        books.consumed += count
        books.duplicate += found.duplicate
        books.filtered += found.filtered
        books.in_flight += count - found.duplicate - found.filtered
        self.delivery.held_bytes += found.collected_bytes
        if self._digest is not None:
            partition.newest = Fingerprint(run.last, self._digest(run.messages[-1]))
        if found.opened and self._cutter.open(partition, found.opened, now_ms):
            self._report("partition.joint", **run.tp.fields())
        self.read_past(run.tp, run.last + 1, now_ms)

    def read_past(self, tp: TopicPartition, position: int, now_ms: float) -> None:
        """Nothing below `position` is left to read, messages or gaps."""
        self._now_ms = now_ms
        partition = self.partitions.get(tp)
        if partition is None or position <= partition.position:
            return
        for part in partition.read_past(position):
            if part.group in part.intent.fresh:
                self.delivery.cut([part])
            else:
                self.delivery.held_bytes += PART_BYTES
                self.delivery.finish(part, "duplicate", part.count + len(part.unframeable))
        self._touch(tp, now_ms + SETTLE_DELAY_MS)

    # Progress

    def _settled(self, part: Part, outcome: str, count: int) -> None:
        self.books[part.tp].settle(outcome, count)
        self._touch(part.tp, self._now_ms + SETTLE_DELAY_MS)

    def close_books(self, tps: Iterable[TopicPartition]) -> None:
        """Keep only the sum of the books of these partitions, which are not assigned any more."""
        for tp in tps:
            self.closed_books += self.books.pop(tp)

    def _touch(self, tp: TopicPartition, due_ms: float) -> None:
        """The partition's state changed and is to be committed at `due_ms`."""
        if due_ms < self._dirty.get(tp, inf):
            self._dirty[tp] = due_ms

    def _reload_due(self) -> None:
        """Only now that no commit is on its way: what is read back must not be overtaken by an older state."""
        if self._reloads and not self._outstanding:
            self._effects += [Reload(tp, reason) for tp, reason in self._reloads.items()]
            self._reloads.clear()

    def _commit_due(self, now_ms: float) -> None:
        if self.delivery.changed:
            for tp in self.delivery.changed & self.partitions.keys():
                self._touch(tp, now_ms)
            self.delivery.changed.clear()
        if not self._dirty or self._outstanding or now_ms < self._commit_at_ms:
            return
        soon = self.draining or min(self._dirty.values()) <= now_ms
        items = self.commit([tp for tp in self._dirty if tp not in self._fenced]) if soon else []
        if items:
            self._commit_at_ms = now_ms + COMMIT_SPACING_MS
            self._effects.append(Commit(items))

    def commit(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        """What is to be made durable of these partitions now; `committed` must follow. Empty when nothing changed."""
        items = []
        for tp in list(tps):
            self._dirty.pop(tp, None)
            partition = self.partitions.get(tp)
            if partition is None:
                continue
            state = partition.state()
            if state == partition.durable and not partition.marks and not partition.seals:
                continue
            waiting: list[Intent | Seal] = [*partition.intents, *partition.seals]
            self._outstanding[tp] = _Sent(partition.epoch, state, waiting, len(partition.errors))
            ids = array("q", partition.settled_ids)
            partition.settled_ids.clear()
            marks, partition.marks = tuple(partition.marks), []
            generation = self.intake.ids.window(tp).generation if ids else 0
            stamp, lineage = partition.stamp()
            items.append(CommitItem(tp, partition.scope, state, generation, ids or None, marks, stamp, lineage))
        return items

    def committed(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """The outstanding commit ended; what is missing in `results` failed and is tried again."""
        self._now_ms = now_ms
        sent, self._outstanding = self._outstanding, {}
        for tp, begun in sent.items():
            partition = self.partitions.get(tp)
            if partition is None or partition.epoch != begun.epoch:
                continue
            if not results.get(tp):
                self._touch(tp, now_ms + COMMIT_RETRY_MS)
                continue
            partition.durable = begun.state
            partition.committed = begun.state.watermark
            for intent in begun.intents:
                intent.durable = True
            partition.seals = [seal for seal in partition.seals if not seal.durable]
            if begun.errors:
                partition.marks += partition.errors[: begun.errors]
                del partition.errors[: begun.errors]
                self._touch(tp, now_ms)
        self.delivery.unseal()

    @property
    def committing(self) -> bool:
        """Whether a commit is outstanding."""
        return bool(self._outstanding)

    # The ledger, the sink and the store

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """The ledger's verdicts on one `Claim`, for each want and row; None when it could not be asked."""
        self._now_ms = now_ms
        assert self.delivery.claims is not None
        self.delivery.claims.claimed(number, verdicts, now_ms)

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
        pressure = "shutdown" if self.draining else "memory" if self._memory_full else ""
        half = self._rules.span_max // 2
        wide = [] if self.idle else [partition for partition in self.partitions.values() if partition.span > half]
        self._cutter.step(now_ms, pressure, wide, self.leaving)
        self._reload_due()
        self._commit_due(now_ms)
        self.delivery.step(now_ms)
        self._watch_flow(wide)
        effects = self._effects + self.delivery.effects
        self._effects, self.delivery.effects = [], []
        return effects

    def _watch_memory(self) -> None:
        level = HIGH if not self._memory_full else LOW
        self._memory_full = self.held_bytes > level * self._rules.held_max_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of memory of what was read and is not settled or not written, dead letters on their way among it."""
        return self.delivery.held_bytes + self.delivery.burials.held_bytes + self.unwritten_bytes

    @property
    def stops(self) -> dict[str, str]:
        """Why nothing at all is read: a word and a sentence for each reason."""
        reasons = {
            "draining": ("a stop was asked for", self.draining),
            "memory": (f"memory.budget is used up to {HIGH:.0%}", self._memory_full),
            "halted": (f"the sink refuses every request: {self.delivery.halted}", self.delivery.halted),
            "refused": ("the receiver refused more than a tenth of 1,000 messages", self.delivery.guard.tripped),
            "state_lost": (self.state_lost, self.state_lost),
        }
        return {word: text for word, (text, holds) in reasons.items() if holds}

    def _watch_flow(self, wide: list[Partition]) -> None:
        if self.draining or self._memory_full or self._halted:
            paused = frozenset(self.partitions.keys() - self._read_all_the_same())
        else:
            most, flow = self._rules.span_max, self._flow
            paused = frozenset(
                [p.tp for p in wide if p.span > (most * 3 // 4 if p.tp in flow else most) and not p.replaying]
            )
            paused |= {tp for tp in self.partitions.keys() & self.leaving if not self.partitions[tp].replaying}
        paused |= self._waiting_for_origins()
        if paused != self._flow:
            self._flow = paused
            self._effects.append(Flow(paused))

    @property
    def _halted(self) -> bool:
        return bool(self.delivery.halted or self.delivery.guard.tripped or self.state_lost)

    def _read_all_the_same(self) -> list[TopicPartition]:
        """What an earlier life left is whole only once it was read again: not to read it could be a wait for ever.

        So it is with a twin that was claimed in that life: what waits for it makes no room.
        """
        is_stuck = self.delivery.idle or self.delivery.awaits_twins
        if self._halted or (self._memory_full and not is_stuck):
            return []
        waiting = self._waiting_for_origins()
        replaying = [tp for tp, partition in self.partitions.items() if partition.replaying and tp not in waiting]
        return replaying[:1] if self._memory_full else replaying

    def copies_of(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions of copies beside these: they wait until the ids of these are known."""
        if not self._has_copies or not tps:
            return set()
        brokers = {tp.broker for tp in tps}
        return {tp for tp in self.partitions if tp.broker in brokers and self.intake.has_copies(tp)}

    def _waiting_for_origins(self) -> set[TopicPartition]:
        """Partitions of copies, while others of their broker are read again: until then it is open what was sent."""
        if not self._has_copies:
            return set()
        again = [tp for tp, one in self.partitions.items() if one.replaying and not self.intake.has_copies(tp)]
        return self.copies_of(again)

    def held_up(self) -> Iterator[tuple[str, str | None, float]]:
        """What waits for something other than a group's next try: for what, the group, and what tells it from others.

        The group is None where all groups of a partition wait together.
        """
        for (_, group), since_ms in self._cutter.held_up():
            yield "a free sender", group, since_ms
        for what, batch in self.delivery.held_up():
            yield what, batch.group, float(batch.id)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are not read at present."""
        return self._flow

    @property
    def idle(self) -> bool:
        """Whether everything that was read, in this life or the one before, is settled and committed."""
        idle = self.delivery.idle and self._cutter.idle and not (self._dirty or self._outstanding or self._reloads)
        return idle and not self._is_replaying()

    def _is_replaying(self) -> bool:
        """Asked at every turn, so a partition that has read all of it is not looked at again."""
        self._replays = {tp for tp in self._replays if tp in self.partitions and self.partitions[tp].replaying}
        return bool(self._replays)

    def _report(self, event: str, level: str = "info", **fields: object) -> None:
        self._effects.append(Report(event, level, fields))
