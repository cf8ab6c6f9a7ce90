"""Holds delayed messages in a store, and hands them to the core when they are due. Decides nothing about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from sidecar.core.effects import CommitItem, Hold
from sidecar.core.lineage import Lineage
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Columns, DeadLetter, Original, Run, TopicPartition
from sidecar.delay.disk.blocks import NO_TIMESTAMP, SEQUENCE_BITS
from sidecar.delay.headers import pack_headers, unpack_headers
from sidecar.delay.interface import HeldStore, Job
from sidecar.delay.progress import Progress, restored
from sidecar.errors import StateError
from sidecar.sources.base import RUN_BYTES, Assignment
from sidecar.state.offset_map import Identity

log = structlog.get_logger()

MESSAGES_AT_ONCE = 500
GOES_ON_AT = 0.9
"""Share of the most bytes below which a full store takes messages again."""


class Synced(NamedTuple):
    """The end of a write of the store. Goes to the inbox."""

    job: Job
    error: OSError | None


class _Waiting(NamedTuple):
    """What is to be told."""

    changes: int
    """The number of changes that must be durable."""
    durable: Callable[[], None]
    failed: Callable[[], None] | None = None
    """Called if the store cannot be written at present; None if that only takes longer."""


class Delays:
    """The delayed messages of the owned partitions; only for the main thread.

    Args:
        pipeline: The core.
        store: Holds the messages.
        columns: Of the source's messages.
        group_id: The consumer group.
        rules: The hash of the rules.
        disk_max_bytes: Size of the store at which partitions are read no more.
        begin: Runs a job on the writer's thread, and brings back a `Synced`.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: HeldStore,
        columns: Columns,
        group_id: str,
        rules: bytes,
        disk_max_bytes: int,
        begin: Callable[[Job], None],
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._columns = columns
        self._group_id = group_id
        self._rules = rules
        self._disk_max_bytes = disk_max_bytes
        self._begin = begin
        self._numbers: dict[TopicPartition, int] = {}
        """The store's numbers of the owned partitions."""
        self._progress: dict[TopicPartition, Progress] = {}
        self._waiting: deque[_Waiting] = deque()
        self._unwritten: deque[Hold] = deque()
        """Messages that the store could not take yet."""
        self._job: Job | None = None
        self._any_due = False
        self._told_damages = 0
        self.problem = ""
        """Why the store cannot be written or read at present."""

    # Ownership

    def take(self, assignments: Iterable[Assignment]) -> None:
        """Take the delayed messages of partitions that the core has just been given."""
        for assignment in assignments:
            tp = assignment.tp
            number = self._numbers[tp] = self._store.number(_name(self._group_id, tp))
            progress = restored(self._store.state(number), self._identity(number), self._rules)
            self._progress[tp] = self._continued(number, progress, assignment)
            known = self._store.known(number)
            known.remove_range(0, assignment.state.seen)
            stores = assignment.state.stores.taken_by(self._store.id, assignment.state.seen)
            token = self._pipeline.know_delayed(tp, known, stores)
            self._tell_when_durable(tp, token, 0)
            self._assign(tp)

    def _continued(self, number: int, progress: Progress, assignment: Assignment) -> Progress:
        """The progress from which the partition goes on: offsets of another incarnation are other messages."""
        state, topic_id, incarnation = assignment.state, assignment.topic_id, assignment.incarnation
        if progress.incarnation != incarnation:
            # An operator's reset, or other rules: from the offset on all comes again, and is put again.
            self._store.restart(number, state.watermark if progress.topic_id == topic_id else None)
        else:
            void_from = state.stores.void_from(self._store.id)
            if void_from is not None:
                self._store.void(number, void_from, state.seen)
        now = replace(progress, topic_id=topic_id, incarnation=incarnation)
        self._store.keep(number, now.encoded(self._rules), now.state.watermark, now.state.seen)
        return now

    def _identity(self, number: int) -> Identity:
        return Identity("", self._group_id, f"{self._store.id:x}.{number}", 0)

    def _assign(self, tp: TopicPartition) -> None:
        progress, number = self._progress[tp], self._numbers[tp]
        is_durable = self._store.synced == self._store.changes
        self._pipeline.assign(tp.store, progress.identity.scope, progress.state, Lineage(durable=is_durable))
        self._store.rewind(number)
        self._pipeline.restored(tp.store, self._store.held(number))

    def reload(self, tp: TopicPartition) -> None:
        """Take delayed messages again that the core gave up, from the state that was kept."""
        if tp.source in self._numbers:
            number = self._numbers[tp.source]
            kept = restored(self._store.state(number), self._identity(number), self._rules)
            self._progress[tp.source] = kept
            self._assign(tp.source)

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned; their delayed messages stay in the store."""
        for tp in tps:
            self._numbers.pop(tp.source, None)
            self._progress.pop(tp.source, None)

    def with_stores(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """These partitions, and the delayed messages of each."""
        return [each for tp in tps for each in ((tp, tp.store) if tp in self._numbers else (tp,))]

    # Holding

    def hold(self, hold: Hold) -> None:
        """Put messages into the store; the core is told when they are durable."""
        self._unwritten.append(hold)
        self._put_all()

    def _put_all(self) -> bool:
        """Put what the store did not take yet; return whether it has taken everything."""
        while self._unwritten:
            try:
                self._put(self._unwritten[0])
            except StateError as error:
                self.problem = str(error)
                return False
            self._unwritten.popleft()
        return True

    def _put(self, hold: Hold) -> None:
        if not self._pipeline.expects(hold):  # what an earlier ownership read is read again, and put then
            return
        columns, messages = self._columns, hold.messages
        stamps = [NO_TIMESTAMP if stamp is None else stamp for stamp in columns.timestamps(messages)]
        headers = [pack_headers(each) if each else b"" for each in columns.headers(messages)]
        offsets, count = columns.offsets(messages), len(messages)
        keys, values = columns.keys(messages), columns.values(messages)
        rows = zip(hold.due_ms, offsets, [0] * count, stamps, keys, headers, values, strict=True)
        lowest = min(self._store.put(self._numbers[hold.tp], rows))
        self._tell_when_durable(hold.tp, hold.token, lowest)

    def _tell_when_durable(self, tp: TopicPartition, token: int, position: int) -> None:
        """Tell the core that messages are held, once all changes so far are durable."""
        held = partial(self._pipeline.held, tp, token, position)
        self._waiting.append(_Waiting(self._store.changes, lambda: held(self._now_ms)))

    _now_ms = 0.0

    def tend(self, now_ms: float) -> None:
        """Begin to make durable what was put since the last write."""
        self._now_ms = now_ms
        self._put_all()
        self._sync()
        self._done(now_ms)
        self._watch_size()
        for damage in self._store.damages[self._told_damages :]:
            log.error("delay.damaged", file=str(damage.path), reason=damage.reason, messages=damage.messages)
        self._told_damages = len(self._store.damages)

    def _sync(self) -> None:
        """Begin to make changes durable, unless that is under way."""
        if self._job is not None:
            return
        try:
            self._job = self._store.begin_sync()
        except StateError as error:
            self.problem = str(error)
            failed = [waiting.failed for waiting in self._waiting if waiting.failed is not None]
            self._waiting = deque(waiting for waiting in self._waiting if waiting.failed is None)
            for tell in failed:
                tell()
            return
        if self._job is not None:
            self._begin(self._job)

    def _watch_size(self) -> None:
        used, most = self._store.disk_bytes(), self._disk_max_bytes
        was_full = bool(self._pipeline.orders.store_full)
        is_full = bool(self._unwritten) or used > most * (GOES_ON_AT if was_full else 1)
        if is_full != was_full:
            reason = self.problem if self._unwritten else "delayed messages take up delay.disk_max"
            self._pipeline.orders.fill_store(reason if is_full else "")

    def ended(self, synced: Synced, now_ms: float) -> None:
        """Handle the end of a write.

        Raises:
            StateError: What was written last cannot be made durable any more: the next process repeats the log.
        """
        self._job = None
        self._store.ended_sync(synced.job, synced.error)
        self.problem = "" if synced.error is None else str(synced.error)
        if self._store.broken is not None:
            raise StateError(
                f"delayed messages cannot be made durable: {self._store.broken}",
                hint="check the disk of state.dir, and start again: what was written is repeated then",
            )
        self._done(now_ms)
        self._sync()

    def _done(self, now_ms: float) -> None:
        self._now_ms = now_ms
        while self._waiting and self._waiting[0].changes <= self._store.synced:
            self._waiting.popleft().durable()

    # Delivering

    def poll(self, now_ms: float, wall_ms: int) -> None:
        """Hand messages to the core that are due, from the partitions that are not paused."""
        self._any_due = False
        for tp, number in self._numbers.items():
            if tp in self._pipeline.partitions and tp.store not in self._pipeline.gate.paused:
                self._read(tp, number, now_ms, wall_ms)

    def wait_s(self, wall_ms: int) -> float:
        """Time until the next message may be due."""
        if self._any_due:
            return 0.0
        following = [self._store.next(number) for number in self._numbers.values()]
        due_ms = min((position >> SEQUENCE_BITS for position in following if position is not None), default=None)
        return float("inf") if due_ms is None else max(0.0, (due_ms - wall_ms) / 1000)

    def _read(self, tp: TopicPartition, number: int, now_ms: float, wall_ms: int) -> None:
        partition = self._pipeline.partitions.get(tp.store)
        if partition is None:
            return
        # What an earlier owner has read out is read again, whatever this host's clock says.
        reach = partition.reach
        until = max(wall_ms + 1 << SEQUENCE_BITS, reach.seen)
        unproven = self._pipeline.partitions[tp].holding.deliverable_below
        if unproven is not None:
            until = min(until, unproven)
        try:
            messages = self._store.take(number, until, MESSAGES_AT_ONCE, RUN_BYTES)
        except StateError as error:
            self.problem = str(error)
            return
        if messages:
            run = Run(tp.store, list(messages), messages[0].position, messages[-1].position)
            self._pipeline.read(run, now_ms)
            self._any_due = True
        elif reach.replaying and until >= reach.seen:
            following = self._store.next(number)
            if following is None or following >= reach.seen:
                self._pipeline.read_past(tp.store, reach.seen, now_ms)

    # Committing

    def keep(self, items: Sequence[CommitItem], then: Callable[[bool], None]) -> None:
        """Keep the states of delayed messages.

        Args:
            items: The states.
            then: Called once they, and all messages that are on the way, are durable, or with False if they cannot be.
        """
        if self._keep(items):
            self._waiting.append(_Waiting(self._store.changes, partial(then, True), partial(then, False)))  # noqa: FBT003
            self._sync()
        else:
            then(False)  # noqa: FBT003

    def keep_now(self, items: Sequence[CommitItem]) -> bool:
        """Keep these states, and wait; return whether they, and all messages that are on the way, are durable."""
        if not self._keep(items):
            return False
        try:
            self._store.sync()
        except StateError as error:
            self.problem = str(error)
            return False
        self._done(self._now_ms)
        return True

    def _keep(self, items: Iterable[CommitItem]) -> bool:
        if not self._put_all():  # the commit would settle messages that are nowhere
            return False
        try:
            for item in items:
                tp, state = item.tp.source, item.state
                if tp in self._numbers:
                    progress = self._progress[tp] = replace(self._progress[tp], state=state)
                    self._store.keep(self._numbers[tp], progress.encoded(self._rules), state.watermark, state.seen)
        except StateError as error:
            self.problem = str(error)
            return False
        return True

    def committed(self, results: Mapping[TopicPartition, bool]) -> None:
        """Forget what is below the watermarks of partitions that were committed."""
        for tp, is_committed in results.items():
            partition = self._pipeline.partitions.get(tp)
            if is_committed and partition is not None and tp in self._numbers:
                self._store.floor(self._numbers[tp], partition.reach.committed)

    # Dead letters

    def traced(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Dead letters with the places that their messages had at the source, where the messages may be gone.

        Those of an earlier ownership are left out if their messages have ended since.
        """
        found = [self._traced(letter) if letter.tp.delayed else letter for letter in letters]
        return [letter for letter in found if letter is not None]

    def _traced(self, letter: DeadLetter) -> DeadLetter | None:
        tp = letter.tp.source
        held = self._store.find(self._store.number(_name(self._group_id, tp)), letter.offset)
        if held is None:
            return None
        original = Original(held.key, held.value, unpack_headers(held.headers), held.timestamp_ms)
        return replace(letter, tp=tp, offset=held.origin, original=original)


def _name(group_id: str, tp: TopicPartition) -> bytes:
    return "\0".join([group_id, tp.topic, tp.broker, str(tp.partition)]).encode("utf-8", "surrogateescape")
