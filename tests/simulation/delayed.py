"""Delayed messages: random events upon a host with a store, its broker and its receiver, then the final account.

The core, the order of commits and the daemon's `Delays` are the real ones.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple, cast

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import (
    CancelHeld,
    Claim,
    Commit,
    CommitItem,
    Fetch,
    Flow,
    HoldUntilDue,
    Park,
    Reload,
    Report,
    Send,
    StoreDeadLetters,
    Unpark,
)
from sidecar.core.intake.identities import Identities
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.lineage import Basis, Committed, Fingerprint, Lineage, Remembered, inherited, recall
from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER, cancel_reader
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import Batch, Part
from sidecar.core.pipeline.commit_order import CommitOrder, Journal, Keep, Publish, Refuse, Settle, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Run, TopicPartition, Verdict
from sidecar.core.windows.idruns import SortedRun, rising
from sidecar.daemon.delays.absent import NoTakeovers
from sidecar.daemon.delays.delays import Delays
from sidecar.daemon.delays.owned import name_of
from sidecar.daemon.delays.parked import unpacked
from sidecar.daemon.delays.questions import Answer as Told
from sidecar.daemon.delays.questions import One, Question
from sidecar.daemon.delays.takeovers import Takeovers
from sidecar.delay.changelog import store as changelog_store
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import Restorer
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.columns import BothColumns
from sidecar.delay.interface import HeldStore, Job
from sidecar.delay.rows import PARKED_FROM, Held
from sidecar.runtime.worker import Call
from sidecar.sources.base import Assignment
from sidecar.state.interface import Rules
from sidecar.state.offset_map import Identity, decode, encode
from tests.simulation.broker import BrokenPromiseError
from tests.simulation.cancelling import Cancelling
from tests.simulation.retagging import Retagging
from tests.support.held_store import ModelStore
from tests.support.model_changelog import ModelCache, ModelChangelog, ModelLog
from tests.support.model_table import ModelAppender, ModelTable, ModelTables
from tests.support.real_rows import RealCache, RealStore

changelog_store.CACHE_CHANGES = 4  # so that some of what has entered is durable, and some is not
IS_REAL = bool(os.environ.get("SIDECAR_REAL_ROWS"))
"""Whether the rows are in RocksDB."""

TP = TopicPartition("t", 0)
LENGTH = 60
START_MS = 1_000_000
SETTLE_ROUNDS_MAX = 3_000
NAMED_OWNERS = 9
"""The last owner, and eight in between: a folder that is not older knows its own line."""
NAMED = 2
"""The remainder of seeds in whose schedules messages have names."""
GROUPS: dict[int, str | None] = {0: "g0", 1: "g1", 2: "g2", 3: None}

Row = tuple[int, int, int | None, int | str | None, bytes | None, tuple[bytes, ...]]
"""Offset, tag, message id, due time or why it is given up, name, and the names that it cancels."""


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

    details = keys

    def headers(self, messages: Any) -> Any:
        return [
            [*((CANCEL_HEADER, name) for name in row[5]), *([(NAME_HEADER, row[4])] if row[4] else [])]
            for row in messages
        ]


class SameLog(NamedTuple):
    """`lineage.Log` of a log that stays as it is."""

    low: int = 0
    high: int = LENGTH

    def has(self, mark: Fingerprint) -> bool:
        """Whether the same message is there."""
        return mark.digest == mark.offset + 1

    def confirm_end(self, seen: int) -> None:
        """The log never ends early here."""
        raise AssertionError(seen)


class LineFramer:
    """Offset and tag, a line each."""

    separator = b"\n"

    def __init__(self) -> None:
        self._columns = BothColumns(RowColumns(), origins=True)

    def frame(self, tp: TopicPartition, messages: Any) -> tuple[bytes, Any]:
        return b"\n".join([value or b"" for value in self._columns.values(messages)]), ()


def _tags(tp: TopicPartition, messages: Any) -> Any:
    return [int((message.value or b"").split()[1]) if isinstance(message, Held) else message[1] for message in messages]


@dataclass
class Circumstances:
    """One schedule's circumstances."""

    seed: int
    log: list[Row]
    reading: ReadingRules
    batching: BatchRules
    rules: DeliveryRules
    crashes: float
    poison: frozenset[int]
    flaky: float
    reloads: float
    """How often a partition is given up and taken again."""
    resets: float
    requests: float
    """How often an operator cancels or releases a message."""

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
            log.append((offset, r.randrange(4), r.randrange(40) if ids and r.random() < 0.8 else None, due, None, ()))
        if seed % 3 == NAMED:
            log = _named(log, random.Random(f"names of {seed}"))  # another one, so that all else is as without names
        columns = BothColumns(RowColumns(), origins=False)
        reading = ReadingRules(
            columns, LineFramer(), _tags, GROUPS,  # type: ignore[arg-type]
            ids=(lambda tp, messages: [row[2] for row in messages]) if ids else None,
            due=lambda tp, messages: [row[3] for row in messages],
            cancels=cancel_reader(RowColumns()),
            digest=lambda row: row[0] + 1,
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
        return cls(
            seed,
            log,
            reading,
            batching,
            rules,
            crashes=r.choice((0.0, 0.01, 0.04)),
            poison=poison,
            flaky=r.choice((0.0, 0.2)),
            reloads=r.choice((0.005, 0.05)),
            resets=r.choice((0.0, 0.0, 0.01)),
            requests=r.choice((0.0, 0.03, 0.15)),
        )


def _named(log: list[Row], r: random.Random) -> list[Row]:
    """Some messages have names, and some cancel those with a name or two."""
    names = [b"%d" % number for number in range(r.choice((2, 8)))]
    often = r.choice((0.05, 0.2))
    return [
        (*row[:4], r.choice(names) if r.random() < 0.7 else None, (*{*r.choices(names, k=1 + (r.random() < 0.2))},))
        if r.random() < often
        else (*row[:4], r.choice(names) if r.random() < 0.7 else None, ())
        for row in log
    ]


class Broker:
    """The partition's log, as it is read, and its commit."""

    def __init__(self) -> None:
        self.found = Committed(PartitionState(0, 0))
        self.incarnation = 1
        self.tokens = count(1)
        self.before: list[Committed] = []
        """Earlier commits since the last reset, oldest first: it may lose those behind."""
        self.line: list[int] = []
        """The tokens of all owners that committed, oldest first."""
        self.owner: Host | None = None
        """Only its commits are taken."""

    @property
    def state(self) -> PartitionState:
        """The committed state."""
        return self.found.state

    def commit(self, item: CommitItem) -> None:
        """A commit arrives; what is found of it is what its wire form has."""
        identity, lineage = Identity("", "g", "topic", self.incarnation), item.lineage or Lineage()
        text = encode(identity, b"rule", item.state, item.stamp, lineage.parent, lineage.named)
        found = decode(text, item.state.watermark, identity, b"rule")
        if found.state != item.state:
            raise BrokenPromiseError("codec", f"{item.state} came back as {found}")
        if self.found.stamp is not None or self.incarnation == 1:  # what an operator set would be obeyed again
            self.before.append(self.found)
        self.found = Committed(found.state, *found[3:])
        if self.found.stamp is not None and self.found.stamp.token not in self.line[-1:]:
            self.line.append(self.found.stamp.token)


@dataclass
class Receiver:
    """Stores the rows of a part once under its name."""

    parts: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    stored: dict[int, str] = field(default_factory=dict)


def _offsets(batch: Batch) -> list[tuple[str, tuple[int, ...]]]:
    """Name and source offsets of each part."""
    return [(part.name, tuple(int(row.split()[0]) for row in _rows(part))) for part in batch.parts]


def _rows(part: Part) -> list[bytes]:
    return [row for each in part.fragments if each.offsets for row in bytes(each.data).split(b"\n")]


class Host:
    """A place where the process runs, with a store on its disk; it may be replaced without knowing.

    Args:
        world: The others.
        number: Of the host.
    """

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.plan = world.plan
        self._chance = world.chance
        self._number = number
        self.disk: Any = RealStore(number + 1) if IS_REAL else ModelStore(number + 1)
        self.store: HeldStore = self.disk
        self.changelog: ModelChangelog | None = None
        self.jobs: list[Callable[[], None]] = []
        self.journal: list[int] = world.journal
        self.alive = False
        self.folder: tuple[int, PartitionState] | None = None
        """Incarnation and state in the state folder, if the source hands on nothing but the offset."""
        self.memory: tuple[int, Remembered] | None = None
        """Incarnation and newest acknowledged commit in the state folder, if the source hands on the state."""
        self.is_outdated = False
        """Whether it knows that another member went on from a commit before that one."""
        self.early: int | None = None
        """The offset that it learned before the last owner had ended."""
        self.incarnation = self.told = 0

    # The process

    def start(self) -> None:
        """Become the owner."""
        plan = self.plan
        self.alive, self.is_outdated = True, False
        self._world.broker.owner = self
        self.pipeline = Pipeline(self._world.retagging.reading, plan.batching, plan.rules, self._chance)
        self.order, self.commit = CommitOrder(), None
        self.job: Job | None = None
        self.sends: dict[int, Batch] = {}
        self.letters: dict[int, StoreDeadLetters] = {}
        takeovers = self._with_changelog(self._world.log) if self._world.log is not None else NoTakeovers()
        cancel_s = inf if plan.seed % 2 else 0.0
        self.delays = Delays(
            self.pipeline, self.store, RowColumns(), "g", Rules(b"rule"), 1 << 40, self._begin, takeovers, cancel_s
        )
        self.take()

    def _with_changelog(self, log: ModelLog) -> Takeovers:
        taken = self.disk.taken
        is_cache = isinstance(self.disk, ModelCache | RealCache)
        new = RealCache if IS_REAL else ModelCache
        disk = self.disk.restarted(self._chance, is_old=self._world.old) if is_cache else new(self._number + 1)
        self.disk, self.jobs = disk, []
        restorer: Restorer = log
        if isinstance(log, ModelTable):
            restorer = tables = ModelTables(log)
            self.changelog = ModelAppender(tables)
        else:
            self.changelog = ModelChangelog(log)
        self.store = store = ChangelogStore(cast("LocalCache", disk), self.changelog, self._world.clock)
        self.disk.taken = taken
        return Takeovers(
            store, restorer, partial(name_of, "g"), self.jobs.append, self, self._world.wall_ms, self._world.clock
        )

    def put(self, call: Call) -> None:
        """The inbox: a takeover goes on."""
        call(self._world.now_ms)

    def restore(self) -> None:
        """The takeover is run."""
        if self.jobs:
            self.jobs.pop(0)()

    commit: Step | None

    def _begin(self, job: Job) -> None:
        self.job = job

    def take(self) -> None:
        """Go on from the broker's commit."""
        found = self._bare() if self._world.bare else self._committed()
        self.incarnation, self.position = found.incarnation, found.state.watermark
        self.paused: frozenset[TopicPartition] = frozenset()
        if self.delays.takeovers.begin_takeover(found, None, lambda taken: self._give(taken.assignment)) is None:
            self._give(found)

    def _committed(self) -> Assignment:
        """What the broker's commit and the state folder tell."""
        committed, incarnation = self._world.broker.found, self._world.broker.incarnation
        memory = self.memory[1] if self.memory is not None and self.memory[0] == incarnation else None
        is_nothing = committed.stamp is None and memory is not None  # all commits are lost
        found = recall(None if is_nothing else committed, memory, SameLog(), is_outdated=self.is_outdated)
        knows = memory is None or memory.stamp.token not in self._world.broker.line[-NAMED_OWNERS:]
        if not self._world.has_lost and (found.compared or not (knows or found.whose is Basis.BROKER)):
            self._world.blamed = f"{committed} is taken for a loss of {memory}"
        lineage = Lineage(
            next(self._world.broker.tokens),
            committed.stamp,
            inherited(committed, memory),
            () if memory is None else memory.fingerprints,
            durable=found.is_committed,
        )
        if memory is not None and committed.stamp is not None and found.state is committed.state:
            taken = Remembered(found.state, committed.stamp, lineage.ancestors, lineage.fingerprints)
            self.memory, self.is_outdated = (incarnation, taken), False
        scope, start = f"s{incarnation}", found.state.watermark
        given = Assignment(TP, scope, found.state, "topic", incarnation, resumed=True, read_from=start, lineage=lineage)
        return replace(given, is_remembered=found.whose is Basis.FOLDER)

    def _bare(self) -> Assignment:
        """What the broker's offset and the state folder tell, as with RocketMQ."""
        broker, offset, self.early = self._world.broker, self.early, None
        offset = broker.state.watermark if offset is None else offset
        if self.folder is not None and self.told <= offset <= self.folder[1].watermark:
            incarnation, state = self.folder
        else:
            broker.incarnation += 1
            incarnation, state = broker.incarnation, PartitionState(offset, offset)
        found = Assignment(TP, f"s{incarnation}", state, "", incarnation, resumed=True, read_from=state.watermark)
        return replace(found, continues=True, end=LENGTH)

    def _give(self, found: Assignment) -> None:
        if self.plan.reading.ids is not None:
            self.pipeline.intake.identities.forget_partition(TP)
            self._window().restore(_sorted(self.journal), {}, 0.0, found.state.seen - 1)
        self.pipeline.assign(TP, found.scope, found.state, found.lineage or Lineage())
        self.delays.owned.take_partition(found)
        assert not any("lacks" in text for text in self.delays.owned.missing.values())

    def _window(self) -> Any:
        return cast(Identities, self.pipeline.intake.identities).window(TP)

    def die(self) -> None:
        """The process ends between two effects, and perhaps the host."""
        for _ in range(int(self._chance() * 3)):
            self.step(effects_max=int(self._chance() * 4))
        for batch in self.sends.values():
            fate = self._chance()
            if fate < 0.3:
                self._world.arrive(batch)
            elif fate < 0.7:
                self._world.wandering.append(batch)
        for store in self.letters.values():
            if self._chance() < 0.5:
                self._world.keep_letters(store)
        if isinstance(self.commit, Publish) and self._chance() < 0.5:
            self._land(self.commit.items)
        if self.changelog is None:
            is_power_lost = self._chance() < 0.5
            self.disk.crash(self._chance if is_power_lost else lambda: 0.99)
        else:
            self.changelog.die()
        self.alive = False

    # Effects

    def step(self, effects_max: int = 1_000_000) -> None:
        """Let the core step."""
        if self.delays.takeovers.stale():
            self.is_outdated |= TP in self.delays.takeovers.outdated
            self.reload()
        self.delays.tend(self._world.now_ms)
        for effect in self.pipeline.step(self._world.now_ms)[:effects_max]:
            match effect:
                case Send(batch):
                    _check_send(batch)
                    self.sends[batch.id] = batch
                case Commit(items):
                    self._do(self.order.begin_commit(items))
                case StoreDeadLetters(token, letters):
                    self.letters[token] = replace(effect, letters=self.delays.owned.traced(letters))
                case HoldUntilDue() | CancelHeld() | Park() | Fetch() | Unpark():
                    self.delays.perform(effect)
                case Flow(paused):
                    self.paused = paused
                case Reload(tp) if tp.delayed:
                    self._reload_delayed()
                case Reload():
                    self.reload()
                case Report() | Claim():
                    pass
        self._check_books()

    def reload(self) -> None:
        """Give the partition up, and take it again; a commit under way lands before that, or never."""
        if isinstance(self.commit, Publish):
            if self._chance() < 0.5:
                self._land(self.commit.items)
            self.commit = None
            self.pipeline.committed({}, self._world.now_ms)
        both = self.delays.owned.with_stores([TP])
        self.pipeline.forget_partitions(both)
        self.order.forget_partitions(both)
        self.delays.forget_partitions([TP])
        if self._world.broker.owner is self:
            self.take()

    def reload_delayed(self) -> None:
        """Give only the delayed messages up, and take them again."""
        if TP.store in self.pipeline.partitions:
            self.pipeline.forget_partitions([TP.store])
            self._reload_delayed()

    def _reload_delayed(self) -> None:
        self.order.forget_partitions([TP.store])
        self.delays.owned.reload(TP.store)

    def _do(self, step: Step | None) -> None:
        self.commit = step
        if isinstance(step, Keep):
            self.delays.keep(step.items, self._kept)
        elif isinstance(step, Refuse):
            self.commit = None
            self.pipeline.committed(dict.fromkeys(step.tps, False), self._world.now_ms)

    def _kept(self, ok: bool) -> None:
        if isinstance(self.commit, Keep):
            self._do(self.order.ended(ok=ok, held=self.pipeline.take_held_ids()))

    def _land(self, items: list[CommitItem]) -> bool:
        broker = self._world.broker
        for item in self.delays.owned.stamped(items):
            if self._world.bare and item.scope == f"s{self.incarnation}":
                self.folder = self.incarnation, item.state
                if self._chance() < 0.05:
                    return False
            if broker.owner is not self or item.scope != f"s{self.incarnation}":
                return False
            if not self._world.bare and self.incarnation != broker.incarnation:
                return False
            broker.commit(item)
            self.told = item.state.watermark
            self._check_watermark(item.state)
            self._world.settled(self, item.state.watermark)
        return True

    def advance_commit(self, lost: float) -> None:
        """The commit under way gets a step further."""
        step = self.commit
        if isinstance(step, Journal):
            for segment in step.segments:
                self.journal += segment.ids
            self._do(self.order.ended(ok=True))
        elif isinstance(step, Publish):
            items = self.delays.owned.stamped(step.items)
            landed = items and self._chance() >= lost and self._land(items) and self._chance() >= lost
            for item in items if landed else ():
                if item.stamp is not None and item.lineage is not None:
                    remembered = Remembered(item.state, item.stamp, item.lineage.ancestors, item.lineage.fingerprints)
                    self.memory, self.is_outdated = (self.incarnation, remembered), False
            results = step.ended({item.tp: True for item in step.items} if landed else {})
            self.commit = None
            self.pipeline.committed(results, self._world.now_ms)
            self.delays.owned.committed(results)
        assert not isinstance(step, Settle)

    def sync(self, lost: float) -> None:
        """The store's write ends."""
        if self.changelog is not None:
            self.changelog.land(int(self._chance() * 12))
        if self.job is not None:
            job, self.job = self.job, None
            error = OSError(5, "broken") if self._chance() < lost else None
            self.delays.synced(job, error, self._world.now_ms)

    def calm(self) -> None:
        """For some time nothing comes, and what was begun goes on."""
        for _ in range(8):
            self.restore()
            self.advance_commit(0.1)
            self.sync(0.1)
            self.step()

    def read(self, count: int) -> None:
        """Read from the log."""
        if TP not in self.pipeline.partitions or TP in self.paused:
            return
        self.delays.takeovers.proved()
        if TP in self.delays.takeovers.loading:
            return
        rows = self.plan.log[self.position : self.position + count]
        if rows:
            self.position = rows[-1][0] + 1
            self._world.retagging.read(row[0] for row in rows)
            self.pipeline.read(Run(TP, rows, rows[0][0], rows[-1][0]), self._world.now_ms)

    def poll(self) -> None:
        """Read what is due."""
        read = self.pipeline.read
        self.pipeline.read = partial(self._read_out, read)  # type: ignore[method-assign]
        self.delays.poll(self._world.now_ms, self._world.wall_ms())
        self.pipeline.read = read  # type: ignore[method-assign]

    def _read_out(self, read: Callable[[Run, float], None], run: Run, now_ms: float) -> None:
        unread = [self.delays.owned.origin(run.tp, position) for position in run.unwanted]
        self._world.retagging.read(offset for offset in unread if offset is not None)
        self._world.retagging.read(held.origin for held in run.messages)
        read(run, now_ms)

    def retag(self) -> None:
        """Once all is quiet, the subscription changes, and a commit has it: no fault comes in between."""
        plan, pipeline = self.plan, self.pipeline
        pipeline.rest()
        for _ in range(20):
            self.settle_some()
        pipeline.rest(resting=False)
        if not pipeline.is_quiet:
            return
        unproved = pipeline.change_reading(
            self._world.retagging.change(), plan.batching, plan.rules, self._world.now_ms
        )
        for _ in range(20):
            self._world.now_ms += 20
            self.settle_some()
        assert all(barrier.durable for tp, barrier in unproved.items() if tp in pipeline.partitions)

    def settle_some(self) -> None:
        """What was begun goes on, without a fault."""
        while self.letters:
            self.store_letters(0)
        for batch_id in list(self.sends):
            self.answer(batch_id, 0)
        for _ in range(3):
            self.advance_commit(0)
            self.sync(0)
        self.step()

    def answer(self, batch_id: int, lost: float) -> None:
        """A send is answered."""
        batch, fate = self.sends.pop(batch_id), self._chance()
        if fate >= lost:
            answer = self._world.arrive(batch)
        else:
            answer = Answer(Verdict.UNANSWERED, "timeout")
            if fate < lost / 2:
                self._world.arrive(batch)
            else:
                self._world.wandering.append(batch)
        self.pipeline.answered(batch_id, answer, self._world.now_ms, int(self._world.now_ms))

    def store_letters(self, lost: float) -> None:
        """Dead letters are stored, or not."""
        token, store = next(iter(self.letters.items()))
        del self.letters[token]
        ok = self._chance() >= lost
        if ok:
            self._world.keep_letters(store)
        self.pipeline.stored(token, ok=ok, now_ms=self._world.now_ms)

    @property
    def is_at_rest(self) -> bool:
        """Whether all is read, due and settled."""
        if self.sends or self.commit or self.letters or self.job or self.position < LENGTH or not self.pipeline.idle:
            return False
        if self.changelog is not None:
            owned = TP in self.pipeline.partitions and self.changelog.is_idle
            return owned and not any(map(self._holds, self.delays.owned.numbers.values()))
        return not any(map(self._holds, self.disk.numbers()))

    def _holds(self, number: int) -> bool:
        return bool(self.store.rows.held(number) or self.store.rows.parked(number))

    # Checks

    def _check_watermark(self, state: PartitionState) -> None:
        """What a commit settles is delivered, given up, filtered, a duplicate, or durable in some store."""
        ended = self._world.ended() | self._world.durable(state)
        for offset, tag, number, _, _, cancels in self.plan.log[: state.watermark]:
            excused = self._world.skipped | self._world.retagging.unwanted
            wanted = GROUPS[tag] is not None and offset not in excused and not cancels
            if wanted and offset not in ended and number is None:
                raise BrokenPromiseError("lost", f"{offset} is below the committed {state.watermark}, unsettled")

    def _check_books(self) -> None:
        for tp, books in self.pipeline.books.items():
            if not books.balanced:
                raise BrokenPromiseError("books", f"{tp}: {books}")
        both = self.pipeline.books.of(TP)
        if min(both.counts()) < 0:
            raise BrokenPromiseError("books", f"{both}")


def _check_send(batch: Batch) -> None:
    for part in batch.parts:
        if not part.intent.durable:
            raise BrokenPromiseError("intent", f"{part.name} is sent before its intent is durable")


class World:
    """Runs one schedule.

    Args:
        seed: Draws everything.
        hosts: The number of hosts.
        shared: Whether they share a changelog.
        parks: Whether groups fail for long, and their parts are parked.
        fenced: Whether the changelog fences.
        bare: Whether owners hand on nothing but the offset, and keep the rest in state folders.
        loses: Whether the broker loses its newest commits, and processes outlive an operator's reset.
        retags: Whether the subscribed tags change; for one host.
        old: Whether local files are copies that are too old, compaction removes what it can, and much is changed.
    """

    def __init__(
        self,
        seed: int,
        hosts: int,
        *,
        shared: bool = False,
        parks: bool = False,
        fenced: bool = False,
        bare: bool = False,
        loses: bool = False,
        retags: bool = False,
        old: bool = False,
    ) -> None:
        self.bare, self.old = bare, old
        self._losses, self.has_lost = 0.01 if loses else 0.0, False
        self.plan = Circumstances.of(seed)
        self._outages = 0.02 if parks else 0.0
        if old:
            self.plan.requests = 0.3
            self.plan.log = [row if row[0] % 3 else _later(row) for row in self.plan.log]
        if parks:
            self.plan.rules = replace(self.plan.rules, park_after_ms=(0, 50, 300)[seed % 3])
        if hosts > 1:  # each host would remember other ids
            self.plan.reading = replace(self.plan.reading, ids=None)
        self._r = random.Random(~seed)
        self.chance = self._r.random
        self.now_ms = 0.0
        self._skew_ms = self._error_ms = 0
        self.log = ModelTable(self.chance) if fenced else ModelLog(self.chance) if shared else None
        self.broker, self.receiver = Broker(), Receiver()
        self._named = 0
        """The last epoch in a commit."""
        self._letters: dict[int, str] = {}
        self._order: dict[tuple[str, str], int] = {}
        """First offset of the last part of each group and scope."""
        self._down: set[str] = set()
        """Groups for which the receiver answers nothing but 503."""
        self.wandering: list[Batch] = []
        self._faulty = True
        self.journal: list[int] = []
        self._allowed: dict[int, int] = {}
        """How often offsets may be delivered that an operator's reset delivers again."""
        self._deliveries = Counter[int]()
        self.blamed = ""
        """Why an owner takes the broker to have lost commits, which it never does here."""
        self.skipped: set[int] = set()
        """Offsets that an operator's reset may skip."""
        self._asked: list[tuple[int, Future[Told]]] = []
        """Offsets that an operator cancelled, and what the daemon said."""
        self._released: set[int] = set()
        """Offsets that an operator released: they may be early."""
        self._cancelling = Cancelling(self.plan.log)
        tags = [row[1] for row in self.plan.log]
        self.retagging = Retagging(seed, self.plan.reading, tags, changes=retags)
        self.hosts = [Host(self, number) for number in range(hosts)]
        self.hosts[0].start()

    def wall_ms(self) -> int:
        """What the clock of a host says."""
        return START_MS + int(self.now_ms) + self._skew_ms

    def clock(self) -> float:
        """Seconds."""
        return self.now_ms / 1000

    def ended(self) -> set[int]:
        """Offsets that were delivered or given up, or that an operator or a message may have cancelled."""
        cancelled = self.cancelled(unknown=True) | self._cancelling.named
        return self.receiver.stored.keys() | self._letters.keys() | cancelled

    def settled(self, owner: Host, watermark: int) -> None:
        """A commit settles what is below an offset."""
        taken = {offset for host in self.hosts for offset in host.disk.taken}
        # The known limit: what another host holds is not cancelled.
        elsewhere = () if self.log is not None else [host.disk.live() for host in self.hosts if host is not owner]
        self._cancelling.settled(watermark, taken.union(*elsewhere))

    def cancelled(self, *, unknown: bool) -> set[int]:
        """Offsets that were cancelled; perhaps with those of which nobody knows."""
        words = {"cancelled", "lost", ""} if unknown else {"cancelled"}
        return {offset for offset, told in self._asked if _outcome(told) in words}

    def durable(self, state: PartitionState) -> set[int]:
        """Offsets that a store has after a commit of this state, whatever happens."""
        return {offset for each in self._held(state) for offset in _members(each)}

    def _held(self, state: PartitionState) -> list[Held]:
        if self.log is None:
            return [held for host in self.hosts for held in host.disk.durable()]
        self._named = max(self._named, state.stores.epoch)  # a reset removes it
        return self.log.counted(self._named)

    def _parked_copies(self) -> Counter[int]:
        """In how many parked parts each offset is, or may soon be; void ones may count after a reset."""
        if self.log is None:
            held = [each for host in self.hosts for each in host.disk.durable()]
        else:
            # A removal that is on the way may never be committed.
            held = [*(each for _, each in self.log.there()), *self.log.on_the_way()]
        return Counter(offset for each in held if each.position >= PARKED_FROM for offset in set(_members(each)))

    def _counted(self, state: PartitionState) -> set[int]:
        """The same without parked parts of which it is not sure that they count."""
        return {
            offset
            for each in self._held(state)
            if each.position < PARKED_FROM or _number(each) <= state.parked
            for offset in _members(each)
        }

    def keep_letters(self, store: StoreDeadLetters) -> None:
        """Dead letters are durable."""
        for letter in store.letters:
            self._cancelling.check(letter.offset)
            self._letters[letter.offset] = letter.reason

    def arrive(self, batch: Batch) -> Answer:
        """A request reaches the receiver."""
        named = _offsets(batch)
        fresh = [(name, offsets) for name, offsets in named if (batch.group, name) not in self.receiver.parts]
        for name, offsets in named:
            before = self.receiver.parts.get((batch.group, name))
            # The known limit: an id that is in the journal thins a part whose end was not committed.
            # What a reset delivers again is no member any more, and a twin of what was given up is one after a restart.
            gone = self._allowed.keys() | set(before or () if self.plan.reading.ids is not None else ())
            gone |= {offset for offset in offsets if any(twin in self._letters for twin in self._twins(offset))}
            if before is not None and set(before) - gone != set(offsets) - gone:
                raise BrokenPromiseError("names", f"{name} stands for {before} and for {offsets}")
        if batch.group in self._down:
            return Answer(Verdict.BUSY, "down", 503)
        if self._faulty and self.chance() < self.plan.flaky:
            return Answer(Verdict.BUSY, "busy", 503)
        if any(not self.plan.poison.isdisjoint(offsets) for _, offsets in fresh):
            return Answer(Verdict.REJECT, "bad", 400)
        for name, offsets in fresh:
            self.receiver.parts[batch.group, name] = offsets
            self._check_order(batch.group, name)
            for offset in offsets:
                self._store(name, offset)
        return Answer(Verdict.ACK, status=200)

    def _check_order(self, group: str, name: str) -> None:
        first = int(name.rsplit(":", 1)[1].split("-")[0])
        place = group, name.split(":")[0]
        before = self._order.get(place, -1)
        is_ordered = self.plan.rules.ordered and not self._allowed and (self.log is not None or len(self.hosts) == 1)
        if is_ordered and first < before:
            raise BrokenPromiseError("order", f"{name} came after {before}")
        self._order[place] = first

    def _store(self, name: str, offset: int) -> None:
        stored = self.receiver.stored
        self._cancelling.check(offset)
        self._deliveries[offset] += 1
        if self.bare and "+delayed" not in name:
            self._allowed[offset] = LENGTH  # the known limit: names do not survive a move
        if self._deliveries[offset] > self._allowed.get(offset, 1):
            raise BrokenPromiseError("twice", f"{offset} as {name} and {stored[offset]}")
        stored[offset] = name
        self._check_twins(offset, name)
        due = self.plan.log[offset][3]
        is_early = isinstance(due, int) and START_MS + self.now_ms + self._error_ms + 1 < due
        if is_early and offset not in self._released:
            raise BrokenPromiseError("early", f"{offset} is due at {due}, now is {START_MS + self.now_ms}")

    def _twins(self, offset: int) -> list[int]:
        """The offsets with the id of this one; none if it has no id."""
        number = self.plan.log[offset][2]
        return [row[0] for row in self.plan.log if number is not None and row[2] == number]

    def _check_twins(self, offset: int, name: str) -> None:
        number = self.plan.log[offset][2]
        # The known limit: what was put, not committed, and read again as unwanted is no twin, and may be wanted later.
        twins = [twin for twin in self._twins(offset) if twin in self.receiver.stored.keys() - self.retagging.unwanted]
        if len(twins) > 1 and not self._allowed and self.plan.reading.ids is not None:
            raise BrokenPromiseError("twin", f"{twins} have the id {number}, the last came as {name}")

    # Events

    def event(self) -> None:
        """One thing happens."""
        chance = self.chance
        if chance() < 0.005:
            self._skew_ms = (-300, -50, 0, 50, 120)[int(chance() * 5)]
            self._error_ms = max(self._error_ms, abs(self._skew_ms))
        if self.wandering and chance() < 0.1:
            self.arrive(self.wandering.pop(int(chance() * len(self.wandering))))
        if self.log is not None and chance() < 0.2:
            self.log.arrive()
        if chance() < 0.02:
            for host in self.hosts:
                host.disk.refuses = chance() < 0.5
        if self._outages and chance() < self._outages:
            self._down ^= {f"g{int(chance() * 3)}"}
        if chance() < self.plan.crashes:
            self._replace_owner()
        if chance() < self.plan.resets:
            self._reset()
        if self._losses and chance() < self._losses:
            self._lose()
        if chance() < self.plan.requests:
            self._ask()
        living = [host for host in self.hosts if host.alive]
        host = living[int(chance() * len(living))]
        if host is not self.broker.owner and chance() < 0.05:
            host.die()  # it learns that it was replaced
            return
        self._act(host, chance())
        if chance() < 0.8:
            host.step()
        if host.alive and not host.disk.refuses and self.retagging.is_due():
            host.retag()

    def _ask(self) -> None:
        """An operator cancels or releases a message, perhaps at a host that was replaced."""
        offset, living = int(self.chance() * LENGTH), [host for host in self.hosts if host.alive]
        what, due = ("cancel", "release")[self.chance() < 0.5], self.plan.log[offset][3]
        if self.old and self.plan.seed % 2:  # what is removed of a cancelled one would tell of a released one, too
            what = "release"
        if isinstance(due, int):
            told: Future[Told] = Future()
            if what == "cancel":
                self._asked.append((offset, told))
            else:
                self._released.add(offset)
            asked = One(what, TP, offset, due)
            living[int(self.chance() * len(living))].delays.requests.ask(Question(asked, told))

    def _replace_owner(self) -> None:
        owner = self.broker.owner
        assert owner is not None
        if self.log is not None and (self.chance() < 0.5 or self.old):
            owner.calm()
            self.log.compact(is_all=self.old)
        if self.chance() < 0.6 or len(self.hosts) == 1:
            owner.die()
        following = self.hosts[int(self.chance() * len(self.hosts))]
        if following is not owner and self.bare and self.chance() < 0.3:
            following.early = self.broker.state.watermark
            if owner.alive:
                owner.calm()
        if following.alive:
            following.die()
        following.start()

    def _reset(self) -> None:
        """An operator stops the group, and moves its offset."""
        for host in self.hosts:
            if host.alive and not (self._losses and self.chance() < 0.4):
                host.die()
        at, following = int(self.chance() * LENGTH), self.hosts[int(self.chance() * len(self.hosts))]
        if following.alive:
            following.die()
        counted = self._counted(self.broker.state)
        self.broker.incarnation += 1
        self.broker.found = Committed(PartitionState(at, at))
        self.broker.before.clear()
        late = Counter(each for batch in self.wandering for _, offsets in _offsets(batch) for each in offsets)
        self._allowed |= {offset: self._deliveries[offset] + late[offset] + 1 for offset in range(at, LENGTH)}
        for offset, copies in self._parked_copies().items():  # the known limit: they are not read again
            if offset >= at:
                self._allowed[offset] += copies
        is_kept = self.log is not None or len(self.hosts) == 1
        self.skipped.update(set(range(at)) - (counted if is_kept else set()))
        if len(self.hosts) > 1 and self.log is None:
            for host in self.hosts:  # the known limit: nothing tells what of it others have read since
                for offset in {each for held in host.disk.durable() for each in _members(held)}:
                    self._allowed[offset] = self._allowed.get(offset, 1) + 1
                    self._cancelling.forget(offset)
        if self._losses:  # those that go on deliver what they have read
            self._allow_from(at)
        self._cancelling.reset(at)
        self.journal.clear()
        following.start()

    def _lose(self) -> None:
        """The broker loses its newest commits, and perhaps the owner is replaced before it commits again."""
        before, memory = self.broker.before, self.hosts[0].memory
        if before:
            # The known limit: what only a commit settled that is in no folder, or in that of another host, comes again;
            # as well if the folder has no message by which to check that the log is the same.
            is_known = len(self.hosts) == 1 and memory is not None and memory[1].stamp == self.broker.found.stamp
            is_known &= memory is not None and bool(memory[1].fingerprints)
            del before[len(before) - int(self.chance() * min(len(before), 4)) :]
            self.broker.found, self.has_lost = before.pop(), True
            if not is_known:
                self._allow_from(self.broker.state.watermark)
                self._cancelling.reset(self.broker.state.watermark)
        if self.chance() < 0.7:
            self._replace_owner()

    def _allow_from(self, at: int) -> None:
        """What is at or above an offset may be delivered any number of times."""
        self._allowed |= dict.fromkeys(range(at, LENGTH), 1 << 30)

    def _act(self, host: Host, what: float) -> None:
        chance, lost = self.chance, 0.1
        if host.jobs and chance() < 0.3:
            host.restore()
        elif what < 0.2:
            host.advance_commit(lost)
        elif what < 0.35:
            host.sync(lost)
        elif what < 0.5 and host.sends:
            host.answer(list(host.sends)[int(chance() * len(host.sends))], lost)
        elif what < 0.55 and host.letters:
            host.store_letters(0.3)
        elif what < 0.65:
            self.now_ms += (1, 15, 60, 250)[int(chance() * 4)]
        elif what < 0.8:
            host.poll()
        elif what < 0.8 + self.plan.reloads:
            host.reload()
        elif what < 0.8 + 2 * self.plan.reloads:
            host.reload_delayed()
        else:
            host.read(1 + int(chance() * 8))

    def settle(self) -> None:
        """No more faults: everything comes to its end; the partition visits each host that has messages."""
        self._faulty, self._skew_ms = False, 0
        self._down.clear()
        for host in self.hosts:
            host.disk.refuses = False
            if host.alive and host is not self.broker.owner:
                host.die()
        owner = self.broker.owner
        assert owner is not None
        self._settle(owner)
        for host in self.hosts:
            if host is not owner:
                owner.die()
                host.start()
                self._settle(host)
                owner = host
        for batch in self.wandering:
            self.arrive(batch)
        self._account()

    def _settle(self, host: Host) -> None:
        for _ in range(SETTLE_ROUNDS_MAX):
            self.now_ms += 20
            if self.log is not None:
                self.log.arrive()
            host.restore()
            host.read(20)
            host.poll()
            host.settle_some()
            if host.is_at_rest:
                return
        partitions = {str(tp): each.state() for tp, each in host.pipeline.partitions.items()}
        raise BrokenPromiseError("stuck", f"{partitions} {host.pipeline.status().stops} {host.paused}")

    def _account(self) -> None:
        ended = self.ended()
        if both := self.cancelled(unknown=False) & (self.receiver.stored.keys() - self._allowed.keys()):
            raise BrokenPromiseError("cancelled", f"{both} were delivered")
        for offset, tag, _, due, _, cancels in self.plan.log:
            twins = self._twins(offset) or [offset]
            wanted = GROUPS[tag] is not None and not cancels
            if (
                wanted
                and offset not in ended | self.skipped | self.retagging.unwanted
                and not any(twin in ended | self.retagging.unwanted for twin in twins)
            ):
                raise BrokenPromiseError("lost", f"{offset}, due {due}")
            if not wanted and offset in self.receiver.stored:
                raise BrokenPromiseError("filtered", f"{offset}")
        if self.blamed:
            raise BrokenPromiseError("blamed", self.blamed)


def _later(row: Row) -> Row:
    """The same message, if it is due, so late that no schedule delivers it unless it is released."""
    due = row[3]
    return (*row[:3], due + 2_000, *row[4:]) if isinstance(due, int) else row


def _members(held: Held) -> list[int]:
    """The offset of a message, or the offsets of all messages of a parked part."""
    if held.position < PARKED_FROM:
        return [held.origin]
    return [int(row.split()[0]) for row in (held.value or b"").split(b"\n")]


def _number(held: Held) -> float:
    """The number of a parked part; of delayed messages, infinity: which of these count, the store tells."""
    record, is_delayed = unpacked(held)
    return inf if is_delayed else record.number


def _outcome(told: Future[Told]) -> str:
    return str(told.result()["outcome"]) if told.done() else ""


def _sorted(journal: list[int]) -> Any:
    return {0: [SortedRun.of(rising(journal))]} if journal else {}


def run_delayed(
    seed: int,
    steps: int = 300,
    hosts: int = 1,
    *,
    shared: bool = False,
    parks: bool = False,
    fenced: bool = False,
    bare: bool = False,
    loses: bool = False,
    retags: bool = False,
    old: bool = False,
) -> int:
    """Run one schedule; return its number of steps.

    Raises:
        BrokenPromiseError: A promise was broken.
    """
    world = World(
        seed, hosts, shared=shared, parks=parks, fenced=fenced, bare=bare, loses=loses, retags=retags, old=old
    )
    for _ in range(steps):
        world.event()
    world.settle()
    return steps
