"""Holds delayed messages in a store, and hands them to the core when they are due, by the rules of `core.delays`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import structlog
from typing_extensions import override

from sidecar.config.model import Settings
from sidecar.core.delays import (
    SEQUENCE_BITS,
    SteadyClock,
    commit_may_go_on,
    deliverable_below,
    is_replayed,
    may_leave_unread,
    wait_s,
    why_not_read,
)
from sidecar.core.effects import CancelHeld, CommitItem, Fetch, HoldUntilDue, Park, Unpark
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.daemon.delays.absent import DelayEffect, NoDelays, NoTakeovers
from sidecar.daemon.delays.answers import counted, listing
from sidecar.daemon.delays.cancels import STEP_S, Cancels
from sidecar.daemon.delays.changes import HeldChanges
from sidecar.daemon.delays.left import LeftBehind
from sidecar.daemon.delays.owned import OwnedStores
from sidecar.daemon.delays.parked import ParkedParts
from sidecar.daemon.delays.questions import Answer, Listing, Peeked, Question, Questions
from sidecar.daemon.delays.requests import Requests
from sidecar.daemon.delays.takeovers import wall_clock
from sidecar.daemon.delays.writing import Writing
from sidecar.delay.columns import packed_headers
from sidecar.delay.interface import HeldStore, Job
from sidecar.delay.rows import NO_TIMESTAMP, Leave, Unread, held_of
from sidecar.errors import StateError
from sidecar.ops.admin import Ask
from sidecar.ops.health import Problem, problem
from sidecar.ops.snapshot import DelayStatus
from sidecar.runtime.build import sought_of
from sidecar.runtime.worker import Inbox
from sidecar.sources.base import RUN_BYTES, Assignment
from sidecar.state.interface import Rules

log = structlog.get_logger()

MESSAGES_AT_ONCE = 500


class PendingEffects:
    """Effects on the store, performed in their order; one that the store cannot perform yet waits, and all later ones.

    Args:
        tell_held: Reports held messages to the core once they are durable: partition, token and lowest position.
        cancel_s: Time after which a search for messages that are cancelled makes way for other work.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        columns: Columns,
        numbers: Mapping[TopicPartition, int],
        parked: ParkedParts,
        cancels: Cancels,
        tell_held: Callable[[TopicPartition, int, int], None],
        cancel_s: float,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._columns = columns
        self._numbers = numbers
        self._parked = parked
        self._cancels = cancels
        self._tell_held = tell_held
        self._cancel_s = cancel_s
        self._waiting: deque[HoldUntilDue | CancelHeld | Park | Unpark] = deque()
        # Each reason is of the last try, and ends with the next one that succeeds.
        self._not_done = self._not_cancelled = ""
        self._not_fetched: dict[TopicPartition, str] = {}

    @property
    def undone(self) -> str:
        """Why effects wait; empty if none waits."""
        return self._not_done if self._waiting else ""

    @property
    def problem(self) -> str:
        """Why effects, cancellations or fetches wait; empty if none waits."""
        unfetched = (reason for tp, reason in self._not_fetched.items() if tp in self._pipeline.owned)
        return self.undone or self._not_cancelled or next(unfetched, "")

    @property
    def is_cancelling(self) -> bool:
        """Whether a search for cancelled messages can go on now."""
        return self._cancels.busy and not self._not_cancelled

    @property
    def is_full(self) -> bool:
        """Whether too many cancellations wait: partitions are not read then."""
        return self._cancels.is_full

    def perform(self, effect: DelayEffect) -> None:
        if isinstance(effect, Fetch):
            try:
                self._parked.fetch(effect)
                self._not_fetched.pop(effect.tp, None)
            except StateError as error:
                self._not_fetched[effect.tp] = str(error)
                self._pipeline.not_fetched(effect)
            return
        if isinstance(effect, Unpark):
            self._parked.leave(effect)
        self._waiting.append(effect)
        self._do_all()

    def go_on(self, patience_s: float | None = None) -> bool:
        """Perform waiting effects, and cancel for some time; return whether a commit may follow.

        Args:
            patience_s: Time for cancellations; None is the usual step.
        """
        is_all_held = self._do_all()
        try:
            is_all_cancelled = self._cancels.step(self._cancel_s if patience_s is None else patience_s)
            self._not_cancelled = ""
        except StateError as error:
            self._not_cancelled, is_all_cancelled = str(error), False
        return commit_may_go_on(is_all_held=is_all_held, is_all_cancelled=is_all_cancelled)

    def _do_all(self) -> bool:
        while self._waiting:
            try:
                self._do(self._waiting[0])
            except StateError as error:
                self._not_done = str(error)
                return False
            self._waiting.popleft()
        return True

    def _do(self, effect: HoldUntilDue | CancelHeld | Park | Unpark) -> None:
        match effect:
            case HoldUntilDue():
                self._put(effect)
            case CancelHeld():
                self._cancels.add_request(effect)
            case Park():
                self._parked.park(effect)
            case Unpark():
                self._parked.unpark(effect)

    def _put(self, hold: HoldUntilDue) -> None:
        if not self._pipeline.expects(hold):  # an earlier ownership read these messages: they are read and put again
            return
        columns, messages = self._columns, hold.messages
        # Kafka has timestamps before 1970, and the store has none: such a message is delivered without one.
        stamps = [
            stamp if stamp is not None and 0 <= stamp < NO_TIMESTAMP else None for stamp in columns.timestamps(messages)
        ]
        wanted = [due_ms << SEQUENCE_BITS for due_ms in hold.due_ms]
        headers = packed_headers(columns, hold.tp, messages)
        offsets, epochs = columns.offsets(messages), [0] * len(messages)
        keys, values = columns.keys(messages), columns.values(messages)
        rows = zip(wanted, offsets, epochs, stamps, hold.tags, keys, headers, values, strict=True)
        lowest = min(self._store.put(self._numbers[hold.tp], map(held_of, rows)))
        self._tell_held(hold.tp, hold.token, lowest)


class DueMessages:
    """Passes due messages to the core; a forward step of the clock counts once it has lasted."""

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        numbers: Mapping[TopicPartition, int],
        takeovers: NoTakeovers,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._numbers = numbers
        self._takeovers = takeovers
        self.problem = ""
        """Why messages could not be read last; empty if they could."""
        self.clock = SteadyClock()
        self.wall_ms = 0
        """The clock when messages were last read; 0 before that."""
        self.contents = 0
        """Messages read with their contents."""

    def read(self, now_ms: float, wall_ms: int) -> float:
        """Read due messages from the partitions that are not paused; return seconds until the next may be due."""
        self.wall_ms = self.clock.read(now_ms, wall_ms)
        self.problem = ""
        any_due = False
        for tp, number in self._numbers.items():
            if self._may_read(tp):
                any_due |= self._read(tp, number, now_ms)
        if any_due:
            return 0.0
        readable = [(tp, number) for tp, number in self._numbers.items() if self._may_read(tp)]
        nexts = ((self._store.rows.next(number), self._pipeline.unproven_from(tp)) for tp, number in readable)
        return wait_s(nexts, self.wall_ms)

    def _may_read(self, tp: TopicPartition) -> bool:
        is_paused = tp.store in self._pipeline.paused
        return tp in self._pipeline.owned and not is_paused and tp not in self._takeovers.loading

    def _read(self, tp: TopicPartition, number: int, now_ms: float) -> bool:
        """Read due messages of a partition; return whether there were any."""
        seen = self._pipeline.seen(tp.store)
        if seen is None:
            return False
        below = deliverable_below(self.wall_ms, seen, self._pipeline.unproven_from(tp))
        try:
            held = self._store.take_due(number, below, MESSAGES_AT_ONCE, RUN_BYTES, self._leave(tp.store))
        except StateError as error:
            self.problem = str(error)
            return False
        if held:
            messages = [each for each in held if type(each) is not Unread]
            unwanted = [each.position for each in held if type(each) is Unread] if len(messages) < len(held) else ()
            run = Run(tp.store, messages, held[0].position, held[-1].position, unwanted=unwanted)
            self._pipeline.read(run, now_ms)
            self.contents += len(messages)
            return True
        if self._pipeline.is_replaying(tp.store) and is_replayed(below, seen, self._store.rows.next(number)):
            self._pipeline.read_past(tp.store, seen, now_ms)
        return False

    def _leave(self, tp: TopicPartition) -> Leave | None:
        """Returns a function that selects messages that need not be read: they have no tag subscribed now."""
        index, is_replaying = self._pipeline.tag_index, self._pipeline.is_replaying(tp)
        if index is None or not may_leave_unread(is_replaying=is_replaying, is_tapped=self._pipeline.is_tapped):
            return None
        return index.leave


class Delays(NoDelays):
    """The delayed messages of the owned partitions; only for the main thread.

    Args:
        disk_max_bytes: Size of the store above which partitions are not read.
        begin: Runs a job on the writer's thread; `synced` follows on the main thread.
        cancel_s: Time after which a search for messages that are cancelled makes way for other work.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        columns: Columns,
        group_id: str,
        rules: Rules,
        disk_max_bytes: int,
        begin: Callable[[Job], None],
        takeovers: NoTakeovers,
        cancel_s: float = STEP_S,
    ) -> None:
        super().__init__(takeovers)
        self._pipeline = pipeline
        self._store = store
        self._disk_max_bytes = disk_max_bytes
        self._now_ms = 0.0
        self._told_damages = 0
        self._not_kept = ""
        """Why a commit's part of the store could not be written last; empty if it could."""
        self._writing = writing = Writing(store.writes, begin)
        numbers: dict[TopicPartition, int] = {}

        def tell_held(tp: TopicPartition, token: int, position: int) -> None:
            writing.when_durable(lambda: pipeline.held(tp, token, position, self._now_ms))

        def is_busy(tp: TopicPartition) -> bool:
            return tp in takeovers.loading or cancels.is_searching(tp)

        parked = ParkedParts(pipeline, store, numbers, writing.when_durable, lambda: self._now_ms, wall_clock)
        self.owned: OwnedStores = OwnedStores(pipeline, store, group_id, rules, tell_held, numbers, parked)
        self._changes = HeldChanges(pipeline, store, writing.when_durable)
        cancels = Cancels(pipeline, store, numbers, self._changes, writing.when_durable)
        self._effects = PendingEffects(pipeline, store, columns, numbers, parked, cancels, tell_held, cancel_s)
        self._due = due = DueMessages(pipeline, store, numbers, takeovers)
        self.requests = Requests(pipeline, store, numbers, is_busy, self._changes, lambda: due.wall_ms)
        self.left = LeftBehind(tuple, lambda job: job())
        """Looks for messages that are not delivered."""

    @override
    def asks(self, inbox: Inbox, settings: Callable[[], Settings]) -> Mapping[str, Ask]:
        def listed(peek: Callable[[int], Peeked], asked: Listing) -> Answer:
            return listing(peek, asked, sought_of(settings(), asked.tag, asked.group))

        def put(question: Question) -> None:
            inbox.put(lambda _: self.requests.ask(question))

        return {"delay": Questions(put, listed).ask}

    def synced(self, job: Job, error: OSError | None, now_ms: float) -> None:
        self._now_ms = now_ms
        self._writing.ended(job, error)

    @override
    def problems(self) -> list[Problem]:
        found = self.takeovers.problems()
        if reason := self.problem:
            found.append(problem("delay", reason=reason))
        missing = list(self.owned.missing.values())
        if unreadable := sum(damage.messages for damage in self._store.rows.damages):
            missing.append(f"{unreadable:,} cannot be read: see delay.damaged in the log")
        if missing:
            more = f", and those of {len(missing) - 1} more partitions" if missing[1:] else ""
            found.append(problem("delay_missing", missing=missing[0] + more))
        return found + [problem("delay_left", left=left) for left in self.left.found]

    @property
    @override
    def problem(self) -> str:
        if reason := self._writing.problem or self._effects.problem or self._due.problem or self._not_kept:
            return reason
        if self._due.clock.is_ahead:
            return "the system clock jumped ahead; it is trusted once the jump has lasted a minute"
        return self.takeovers.problem

    @override
    def perform(self, effect: DelayEffect) -> None:
        self._effects.perform(effect)

    @override
    def tend(self, now_ms: float) -> None:
        self._now_ms = now_ms
        self.takeovers.tend()
        self._effects.go_on()
        self.requests.tend()
        self._changes.tend(now_ms)
        self._writing.sync()
        was_full = bool(self._pipeline.store_full)
        reason = why_not_read(
            undone=self._effects.undone,
            used=self._store.rows.disk_bytes(),
            most=self._disk_max_bytes,
            was_full=was_full,
            searches_are_many=self._effects.is_full,
        )
        if bool(reason) != was_full:
            self._pipeline.fill_store(reason)
        self.left.tend()
        rows = self._store.rows
        for damage in rows.damages[self._told_damages :]:
            log.error("delay.damaged", file=str(damage.path), reason=damage.reason, messages=damage.messages)
            rows.note_reported()
        self._told_damages = len(rows.damages)

    # Partitions

    @override
    def assigned(self, assignments: Sequence[Assignment]) -> None:
        super().assigned(assignments)
        self.left.look_soon()

    @override
    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        super().forget_partitions(tps)
        self.left.look_soon()
        self.owned.forget_partitions(tps)

    @override
    def poll(self, now_ms: float, wall_ms: int) -> float:
        next_s = self._due.read(now_ms, wall_ms)
        return 0.0 if self._effects.is_cancelling else next_s

    @override
    def status(self) -> DelayStatus:
        now_ms = self._due.wall_ms or time.time_ns() // 1_000_000
        return replace(counted(self._store, self.owned.numbers.values(), now_ms), read=self._due.contents)

    # Committing

    @override
    def keep(self, items: Sequence[CommitItem], then: Callable[[bool], None]) -> None:
        if self._keep(items):
            self._writing.when_durable(partial(then, True), partial(then, False))  # noqa: FBT003
            self._writing.sync()
        else:
            then(False)  # noqa: FBT003

    @override
    def take_ends(self) -> None:
        self._writing.sync()

    @override
    def keep_now(self, items: Sequence[CommitItem]) -> bool:
        is_entered = self._store.writes.entered == self._store.writes.changes or self._writing.sync_now()
        return is_entered and self._keep(items, inf) and self._writing.sync_now()

    def _keep(self, items: Iterable[CommitItem], patience_s: float | None = None) -> bool:
        if not self._effects.go_on(patience_s):
            return False
        try:
            self.owned.keep(items)
            self._not_kept = ""
        except StateError as error:
            self._not_kept = str(error)
            return False
        return True
