"""Delayed messages: random events upon a host with a store, its broker and its receiver, then the final account.

The core, the order of commits and the daemon's `Delays` are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Claim, Commit, CommitItem, Flow, Hold, Reload, Report, Send, Store
from sidecar.core.intake.reading import Reading
from sidecar.core.lineage import Lineage
from sidecar.core.parts import Batch
from sidecar.core.partition_state import PartitionState
from sidecar.core.pipeline.commit_order import CommitOrder, Journal, Keep, Publish, Refuse, Settle, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Run, TopicPartition, Verdict
from sidecar.daemon.delays import Delays, Synced
from sidecar.delay.blocks import Held
from sidecar.delay.columns import BothColumns
from sidecar.delay.interface import Job
from sidecar.sources.base import Assignment
from tests.simulation.broker import BrokenPromiseError
from tests.support.held_store import ModelStore

TP = TopicPartition("t", 0)
LENGTH = 60
START_MS = 1_000_000
SETTLE_ROUNDS_MAX = 3_000
GROUPS = [{0: "g0", 1: "g1", 2: "g2", 3: None}, {0: "g0", 1: "g1", 2: None, 3: "g2"}]

Row = tuple[int, int, int | None, int | str | None]
"""Offset, tag, message id, due time or why it is given up."""


class RowColumns:
    """Reads rows; the value of a message tells everything of it."""

    def offsets(self, messages: Any) -> Any:
        return [row[0] for row in messages]

    def values(self, messages: Any) -> Any:
        return [b"%d %d" % (row[0], row[1]) for row in messages]

    def timestamps(self, messages: Any) -> Any:
        return [START_MS + row[0] for row in messages]

    def keys(self, messages: Any) -> Any:
        return [None] * len(messages)

    headers = details = keys


class LineFramer:
    """Offset and tag, a line each."""

    separator = b"\n"

    def __init__(self) -> None:
        self._columns = BothColumns(RowColumns(), origins=True)

    def frame(self, tp: TopicPartition, messages: Any) -> tuple[bytes, Any]:
        return b"\n".join(self._columns.values(messages)), ()


def _tags(tp: TopicPartition, messages: Any) -> Any:
    return [int(message.value.split()[1]) if isinstance(message, Held) else message[1] for message in messages]


@dataclass
class Circumstances:
    """One schedule's circumstances."""

    seed: int
    log: list[Row]
    reading: Reading
    batching: BatchRules
    rules: DeliveryRules
    crashes: float
    poison: frozenset[int]
    flaky: float

    @classmethod
    def of(cls, seed: int) -> Circumstances:
        """Drawn from the seed."""
        r = random.Random(seed)
        ids = r.random() < 0.3
        log: list[Row] = []
        for offset in range(LENGTH):
            due: int | str | None = None
            if r.random() < 0.6:
                due = START_MS + offset * 12 + r.choice((1, 5, 40, 200, 600)) + r.randrange(100)
            elif r.random() < 0.05:
                due = "malformed"
            log.append((offset, r.randrange(4), r.randrange(40) if ids and r.random() < 0.8 else None, due))
        columns = BothColumns(RowColumns(), origins=False)
        reading = Reading(
            columns, LineFramer(), _tags, GROUPS[0],  # type: ignore[arg-type]
            ids=(lambda tp, messages: [row[2] for row in messages]) if ids else None,
            due=lambda tp, messages: [row[3] for row in messages],
        )  # fmt: skip
        batching = BatchRules(
            by_group=r.random() < 0.3,
            limits=Limits(r.choice((1, 3, 12)), 1000),
            linger_ms=r.choice((0, 30, 300)),
            span_max=r.choice((10, 30, 1000)),
            held_max_bytes=r.choice((20_000, 2_000_000)),
        )
        rules = DeliveryRules(Backoff(10, r.choice((20, 300))), r.choice((1, 2, 4)), r.random() < 0.3, b"\n")
        poison = frozenset(offset for offset in range(LENGTH) if r.random() < 0.05)
        return cls(seed, log, reading, batching, rules, r.choice((0.0, 0.01, 0.04)), poison, r.choice((0.0, 0.2)))


@dataclass
class Broker:
    """The partition's log and commit."""

    state: PartitionState = PartitionState(0, 0)
    incarnation: int = 1
    generation: int = 0
    """Number of the present owner."""


@dataclass
class Receiver:
    """Stores the rows of a part once under its name."""

    parts: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    stored: dict[int, str] = field(default_factory=dict)


def _offsets(batch: Batch) -> list[tuple[str, tuple[int, ...]]]:
    """Name and source offsets of each part."""
    return [
        (part.name, tuple(int(row.split()[0]) for f in part.fragments if f.offsets for row in bytes(f.data).split(b"\n")))
        for part in batch.parts
    ]


class World:
    """Runs one schedule."""

    def __init__(self, seed: int) -> None:
        self.plan = Circumstances.of(seed)
        self._r = random.Random(~seed)
        self._chance = self._r.random
        self.now_ms = 0.0
        self.skew_ms = self.error_ms = 0
        self.broker, self.receiver = Broker(), Receiver()
        self.store = ModelStore()
        self.letters: dict[int, str] = {}
        self.wandering: list[Batch] = []
        self.faulty = True
        self.journal: list[int] = []
        self._start()

    # The process

    def _start(self) -> None:
        plan = self.plan
        self.pipeline = Pipeline(plan.reading, plan.batching, plan.rules, self._chance)
        self.order, self.commit, self.landed = CommitOrder(), None, False
        self.job: Job | None = None
        self.sends: dict[int, Batch] = {}
        self.stores: dict[int, Store] = {}
        self.position = 0
        columns = RowColumns()
        self.delays = Delays(self.pipeline, self.store, columns, "g", b"rule", 1 << 40, self._begin)  # type: ignore[arg-type]
        self.kept_done = False
        self._take()

    commit: Step | None

    def _begin(self, job: Job) -> None:
        self.job = job

    def _take(self) -> None:
        broker = self.broker
        self.broker.generation += 1
        self.generation = broker.generation
        if self.plan.reading.ids is not None:
            self.pipeline.intake.ids.forget(TP)
            self._window().restore(_sorted(self.journal), {}, 0.0, broker.state.seen - 1)
        self.pipeline.assign(TP, f"s{broker.incarnation}", broker.state)
        assignment = Assignment(
            TP, f"s{broker.incarnation}", broker.state, "topic", broker.incarnation, True, broker.state.watermark
        )
        self.delays.take([assignment])
        self.position = broker.state.watermark
        self.paused: frozenset[TopicPartition] = frozenset()

    def _window(self) -> Any:
        return self.pipeline.intake.ids.window(TP)

    def _crash(self) -> None:
        for _ in range(int(self._chance() * 3)):
            self._step(effects_max=int(self._chance() * 4))
        for batch in self.sends.values():
            fate = self._chance()
            if fate < 0.3:
                self._arrive(batch)
            elif fate < 0.7:
                self.wandering.append(batch)
        for store in self.stores.values():
            if self._chance() < 0.5:
                self._keep_letters(store)
        if isinstance(self.commit, Publish) and not self.landed and self._chance() < 0.5:
            self._land(self.commit.items)
        if self._chance() < 0.5:
            self.store.crash(self._chance)
        else:
            self.store.crash(lambda: 0.99)  # the process only, not the host
        self._start()

    # Effects

    def _step(self, effects_max: int = 1_000_000) -> None:
        self.delays.tend(self.now_ms)
        for effect in self.pipeline.step(self.now_ms)[:effects_max]:
            match effect:
                case Send(batch):
                    self._check_send(batch)
                    self.sends[batch.id] = batch
                case Commit(items):
                    self._do(self.order.begin(items))
                case Store(token, letters):
                    self.stores[token] = replace(effect, letters=self.delays.traced(letters))
                case Hold():
                    self.delays.hold(effect)
                case Flow(paused):
                    self.paused = paused
                case Reload(tp) if tp.delayed:
                    self.order.forget([tp])
                    self.delays.reload(tp)
                case Reload():
                    self._reload()
                case Report() | Claim():
                    pass
        self._check_books()

    def _reload(self) -> None:
        self.pipeline.forget([TP, TP.store])
        self.order.forget([TP, TP.store])
        self.delays.forget([TP])
        self._take()

    def _do(self, step: Step | None) -> None:
        self.commit, self.landed = step, False
        if isinstance(step, Keep):
            self.delays.keep(step.items, self._kept)
        elif isinstance(step, Refuse):
            self.commit = None
            self.pipeline.committed(dict.fromkeys(step.tps, False), self.now_ms)

    def _kept(self) -> None:
        if isinstance(self.commit, Keep):
            self._do(self.order.ended(ok=True))

    def _land(self, items: Sequence[CommitItem]) -> None:
        for item in items:
            self.broker.state = item.state
            self._check_watermark(item.state)

    def _advance_commit(self, lost: float) -> None:
        step = self.commit
        if isinstance(step, Journal):
            for segment in step.segments:
                self.journal += segment.ids
            self._do(self.order.ended(ok=True))
        elif isinstance(step, Publish):
            results = dict.fromkeys(step.kept, True)
            if step.items and self._chance() >= lost:
                self._land(step.items)
                if self._chance() >= lost:
                    results |= {item.tp: True for item in step.items}
            self.commit = None
            self.pipeline.committed(results, self.now_ms)
            self.delays.committed(results)
        assert not isinstance(step, Settle)

    def _sync(self, lost: float) -> None:
        if self.job is not None:
            job, self.job = self.job, None
            error = OSError(5, "broken") if self._chance() < lost else None
            self.delays.ended(Synced(job, error), self.now_ms)

    def _wall_ms(self) -> int:
        return START_MS + int(self.now_ms) + self.skew_ms

    def _read(self, count: int) -> None:
        if TP not in self.pipeline.partitions or TP in self.paused:
            return
        rows = self.plan.log[self.position : self.position + count]
        if rows:
            self.position = rows[-1][0] + 1
            self.pipeline.read(Run(TP, rows, rows[0][0], rows[-1][0]), self.now_ms)

    def _poll(self) -> None:
        self.delays.poll(self.now_ms, self._wall_ms())

    # The receiver

    def _arrive(self, batch: Batch) -> Answer:
        named = _offsets(batch)
        fresh = [(name, offsets) for name, offsets in named if (batch.group, name) not in self.receiver.parts]
        for name, offsets in named:
            before = self.receiver.parts.get((batch.group, name))
            # The known limit: an id that is in the journal thins a part whose end was not committed.
            gone = set(before or ()) - set(offsets) if self.plan.reading.ids is not None else set()
            if before is not None and set(before) != {*offsets, *gone}:
                raise BrokenPromiseError("names", f"{name} stands for {before} and for {offsets}")
        if self.faulty and self._chance() < self.plan.flaky:
            return Answer(Verdict.RETRY, "busy", 503)
        if any(not self.plan.poison.isdisjoint(offsets) for _, offsets in fresh):
            return Answer(Verdict.REJECT, "bad", 400)
        for name, offsets in fresh:
            self.receiver.parts[batch.group, name] = offsets
            for offset in offsets:
                if offset in self.receiver.stored:
                    raise BrokenPromiseError("twice", f"{offset} as {name} and {self.receiver.stored[offset]}")
                self.receiver.stored[offset] = name
                due = self.plan.log[offset][3]
                if isinstance(due, int) and START_MS + self.now_ms + self.error_ms + 1 < due:
                    raise BrokenPromiseError("early", f"{offset} is due at {due}, now is {START_MS + self.now_ms}")
        return Answer(Verdict.ACK, status=200)

    def _answer(self, batch_id: int, lost: float) -> None:
        batch, fate = self.sends.pop(batch_id), self._chance()
        if fate >= lost:
            answer = self._arrive(batch)
        else:
            answer = Answer(Verdict.RETRY, "timeout")
            if fate < lost / 2:
                self._arrive(batch)
            else:
                self.wandering.append(batch)
        self.pipeline.answered(batch_id, answer, self.now_ms, int(self.now_ms))

    def _keep_letters(self, store: Store) -> None:
        for letter in store.letters:
            self.letters[letter.offset] = letter.reason

    def _store_letters(self, lost: float) -> None:
        token, store = next(iter(self.stores.items()))
        del self.stores[token]
        ok = self._chance() >= lost
        if ok:
            self._keep_letters(store)
        self.pipeline.stored(token, ok=ok, now_ms=self.now_ms)

    # Events

    def event(self) -> None:
        """One thing happens."""
        chance, lost = self._chance, 0.1
        if chance() < self.plan.crashes:
            self._crash()
        if chance() < 0.005:
            self.skew_ms = (-300, -50, 0, 50, 120)[int(chance() * 5)]
            self.error_ms = max(self.error_ms, abs(self.skew_ms))
        if self.wandering and chance() < 0.1:
            self._arrive(self.wandering.pop(int(chance() * len(self.wandering))))
        what = chance()
        if what < 0.2:
            self._advance_commit(lost)
        elif what < 0.35:
            self._sync(lost)
        elif what < 0.5 and self.sends:
            self._answer(list(self.sends)[int(chance() * len(self.sends))], lost)
        elif what < 0.55 and self.stores:
            self._store_letters(0.3)
        elif what < 0.65:
            self.now_ms += (1, 15, 60, 250)[int(chance() * 4)]
        elif what < 0.8:
            self._poll()
        elif what < 0.805:
            self._reload()
        elif what < 0.81 and TP.store in self.pipeline.partitions:
            self.pipeline.forget([TP.store])
            self.order.forget([TP.store])
            self.delays.reload(TP.store)
        else:
            self._read(1 + int(chance() * 8))
        self._step()

    def settle(self) -> None:
        """No more faults: everything comes to its end."""
        self.faulty, self.skew_ms = False, 0
        for _ in range(SETTLE_ROUNDS_MAX):
            self.now_ms += 20
            self._read(20)
            self._poll()
            while self.stores:
                self._store_letters(0)
            for batch_id in list(self.sends):
                self._answer(batch_id, 0)
            for _ in range(3):
                self._advance_commit(0)
                self._sync(0)
            self._step()
            if self._is_at_rest():
                break
        else:
            partitions = {str(tp): each.state() for tp, each in self.pipeline.partitions.items()}
            raise BrokenPromiseError("stuck", f"{partitions} {self.pipeline.gate.stops} {self.paused}")
        for batch in self.wandering:
            self._arrive(batch)
        self._account()

    def _is_at_rest(self) -> bool:
        busy = self.sends or self.commit or self.stores or self.job or self.position < LENGTH
        return not busy and self.pipeline.idle and self._all_held() == 0

    def _all_held(self) -> int:
        return sum(self.store.next(number) is not None for number in range(len(self.store._live.shelves)))

    def _account(self) -> None:
        ended = self.receiver.stored.keys() | self.letters.keys()
        for offset, tag, number, due in self.plan.log:
            twins = {row[0] for row in self.plan.log if row[2] == number} if number is not None else {offset}
            wanted = self.plan.reading.groups[tag] is not None
            if wanted and offset not in ended and not any(twin in ended for twin in twins):
                raise BrokenPromiseError("lost", f"{offset}, due {due}")
            if not wanted and offset in ended:
                raise BrokenPromiseError("filtered", f"{offset}")

    # Checks

    def _check_send(self, batch: Batch) -> None:
        for part in batch.parts:
            if not part.intent.durable:
                raise BrokenPromiseError("intent", f"{part.name} is sent before its intent is durable")

    def _check_watermark(self, state: PartitionState) -> None:
        """What a commit settles is delivered, given up, filtered, a duplicate, or durable in the store."""
        durable = self.store._durable.shelves
        known = {held.origin for shelf in durable for held in shelf.messages.values()}
        ended = self.receiver.stored.keys() | self.letters.keys() | known
        for offset, tag, number, _ in self.plan.log[: state.watermark]:
            if self.plan.reading.groups[tag] is not None and offset not in ended and number is None:
                raise BrokenPromiseError("lost", f"{offset} is below the committed {state.watermark}, unsettled")

    def _check_books(self) -> None:
        for tp, books in self.pipeline.books.items():
            if not books.balanced:
                raise BrokenPromiseError("books", f"{tp}: {books}")
        both = self.pipeline.books.of(TP)
        if min(both.counts()) < 0:
            raise BrokenPromiseError("books", f"{both}")


def _sorted(journal: list[int]) -> Any:
    from sidecar.core.windows.idruns import SortedRun, rising

    return {0: [SortedRun.of(rising(journal))]} if journal else {}


def run_delayed(seed: int, steps: int = 300) -> None:
    """Run one schedule.

    Raises:
        BrokenPromiseError: A promise was broken.
    """
    world = World(seed)
    for _ in range(steps):
        world.event()
    world.settle()
