"""Takes over the delayed messages of assigned partitions on other threads; the core gets a partition after that.

Neither the partition nor its store is read before a commit has named the epoch and the changelog records that: until
then, nothing that this owner appends counts for the next one. Messages that arrive meanwhile wait here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Semaphore

import structlog
from typing_extensions import override

from sidecar.core.delays import SEQUENCE_BITS, is_outdated, offset_kept_below
from sidecar.core.records import TopicPartition
from sidecar.daemon.delays.absent import NoTakeovers
from sidecar.daemon.record import CHANGELOG
from sidecar.daemon.taken import Give, TakenPartition, overdue
from sidecar.delay.changelog.interface import FencingRestorer, Restorer
from sidecar.delay.changelog.notes import Note
from sidecar.delay.changelog.reach import DoubtError, Handed, PutReach
from sidecar.delay.changelog.records import RecordLineage, topic_hash
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import FencedTakeover, Start, TakenOver, Takeover
from sidecar.delay.rows import Held
from sidecar.errors import ConfigError, SidecarError, StateError
from sidecar.runtime.worker import Inbox
from sidecar.sources.base import Assignment
from sidecar.state.interface import PartitionSnapshot

AHEAD = 2
"""Calls with rows that may wait for the main thread."""
RETRY_S = 1.0
ADOPTING_S = 0.1
"""Time after the last messages in which more are expected."""

log = structlog.get_logger()


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class _AbandonedError(Exception):
    """This takeover is no longer needed."""


@dataclass(slots=True)
class _Attempt:
    """One attempt to take a partition over; both threads know it."""

    taken: TakenPartition
    number: int
    """The store's number for it."""
    note: Note | None
    """The note that an earlier process left."""
    room: Semaphore = field(default_factory=lambda: Semaphore(AHEAD))
    has_rows: bool = False
    is_over: bool = False


class Takeovers(NoTakeovers):
    """The partitions that are being taken over; only for the main thread.

    Args:
        name_of: The store's name of a partition.
        do: Runs a job on another thread.
        clock: Monotonic seconds.
    """

    step = CHANGELOG

    def __init__(
        self,
        store: ChangelogStore,
        restorer: Restorer,
        name_of: Callable[[TopicPartition], bytes],
        do: Callable[[Callable[[], None]], None],
        inbox: Inbox,
        wall_ms: Callable[[], int] = wall_clock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._store = store
        self._restorer = restorer
        self._name_of = name_of
        self._do = do
        self._inbox = inbox
        self._wall_ms = wall_ms
        self._clock = clock
        self.loading: dict[TopicPartition, TakenPartition] = {}
        self._attempts: dict[TopicPartition, _Attempt] = {}
        self._adopted_s = -ADOPTING_S
        self._doubted: dict[TopicPartition, PutReach] = {}
        """Records that contradicted the offsets of partitions, for which the source is asked again."""
        self.outdated: set[TopicPartition] = set()

    @property
    @override
    def is_adopting(self) -> bool:
        return self._clock() - self._adopted_s < ADOPTING_S

    @property
    @override
    def problem(self) -> str:
        late = overdue(self.loading, self._clock())
        reason = next((taken.failed for taken in self.loading.values() if taken.failed), "they are being restored")
        return f"{late}: {reason}" if late else ""

    @override
    def assigned(self, assignments: Iterable[Assignment]) -> None:
        pass

    @override
    def begin_takeover(self, assignment: Assignment, known: PartitionSnapshot | None, then: Give) -> TakenPartition:
        taken = self.loading[assignment.tp] = TakenPartition(assignment, known, 0, self._clock(), then)
        self._begin(taken)
        return taken

    def _begin(self, taken: TakenPartition) -> None:
        taken.retry_at_s, tp = None, taken.assignment.tp
        number, note = self._store.begin_partition(self._name_of(tp))
        attempt = self._attempts[tp] = _Attempt(taken, number, note, has_rows=note is not None)
        now, doubted = self._wall_ms() << SEQUENCE_BITS, self._doubted.pop(tp, None)
        self._do(partial(self._run, attempt, now, doubted))

    def _run(self, attempt: _Attempt, now: int, doubted: PutReach | None) -> None:
        """Take a partition over, on another thread."""

        def adopt(rows: list[Held], is_anew: bool) -> None:
            attempt.room.acquire()
            if attempt.is_over:
                raise _AbandonedError
            self._inbox.put(partial(self._adopt, attempt, rows, is_anew))

        restorer, assignment = self._restorer, attempt.taken.assignment
        state = assignment.state
        below = offset_kept_below(state, assignment.held_below)
        start = Start(state.stores, _lineage(assignment), below, state.seen, now)
        takeover = Takeover(restorer, assignment.tp, start, adopt, attempt.note)
        if isinstance(restorer, FencingRestorer):
            handed = Handed(state.watermark, assignment.continues, assignment.end, doubted)
            takeover = FencedTakeover(restorer, assignment.tp, start, adopt, handed=handed)
        result: TakenOver | Exception
        try:
            result = takeover.run()
        except _AbandonedError:
            return
        except Exception as error:  # noqa: BLE001  # raised again by `_ended`, on the main thread
            result = error
        self._inbox.put(partial(self._ended, attempt, result))

    def _adopt(self, attempt: _Attempt, rows: list[Held], is_anew: bool, _: float) -> None:
        """Hand messages to the store.

        Args:
            is_anew: Whether messages adopted before do not count.
        """
        self._adopted_s = self._clock()
        if not attempt.is_over:
            try:
                if is_anew and attempt.has_rows:
                    name = self._name_of(attempt.taken.assignment.tp)
                    attempt.number = self._store.begin_anew(name, attempt.number)
                    attempt.has_rows = False
                if rows:
                    attempt.has_rows = True
                    self._store.adopt(attempt.number, rows)
            except StateError as error:
                self._failed(attempt, error)
        attempt.room.release()

    def _ended(self, attempt: _Attempt, result: TakenOver | Exception, _: float) -> None:
        """Take the end of an attempt; give the core a partition that was taken over.

        Raises:
            ConfigError: The changelog cannot be used.
        """
        if attempt.is_over:
            return
        if isinstance(result, DoubtError):
            self._doubted[attempt.taken.assignment.tp] = result.reach
            return
        if isinstance(result, SidecarError) and not isinstance(result, ConfigError):
            self._failed(attempt, result)
            return
        if isinstance(result, Exception):
            raise result
        assignment = attempt.taken.assignment
        tp = assignment.tp
        if assignment.is_remembered and is_outdated(assignment.state, result.store, result.last_named):
            self.outdated.add(tp)
            return
        del self._attempts[tp]
        attempt.is_over, attempt.taken.failed = True, ""
        self._store.own(self._name_of(tp), attempt.number, tp, _lineage(assignment), result)
        if result.is_lost:
            log.error("delay.changelog_lost", **tp.fields())
        seconds = round(self._clock() - attempt.taken.since_s, 3)
        held = self._store.rows.held(attempt.number)
        is_local = result.note is not None
        log.info("delay.restored", **tp.fields(), count=held, seconds=seconds, read=result.read, local=is_local)
        attempt.taken.then(attempt.taken)

    def _failed(self, attempt: _Attempt, error: SidecarError) -> None:
        self._end(attempt)
        attempt.taken.failed = str(error)
        tp = attempt.taken.assignment.tp
        log.error("delay.not_restored", **tp.fields(), reason=str(error))
        attempt.taken.retry_at_s = self._clock() + RETRY_S

    def _end(self, attempt: _Attempt) -> None:
        attempt.is_over = True
        attempt.room.release()
        self._store.abandon(attempt.number)

    @override
    def proved(self) -> list[TakenPartition]:
        owned = [tp for tp in self.loading if tp not in self._attempts]
        return [self.loading.pop(tp) for tp in owned if self._store.is_proved(self._name_of(tp))]

    @override
    def stale(self) -> Mapping[TopicPartition, str]:
        unanswered = self._doubted.keys() & self._attempts.keys()  # the next attempt takes the doubt with it
        doubts = dict.fromkeys(unanswered, "its offset does not fit to its delayed messages: it is asked for again")
        outdated = dict.fromkeys(self.outdated, "its changelog tells of a later owner than the state folder")
        return doubts | outdated | dict(self._store.lost())

    @override
    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self.loading.pop(tp, None)
            self.outdated.discard(tp)
            attempt = self._attempts.pop(tp, None)
            if attempt is not None and not attempt.is_over:
                self._end(attempt)

    @override
    def tend(self) -> None:
        now_s = self._clock()
        for attempt in list(self._attempts.values()):
            if attempt.taken.retry_at_s is not None and now_s >= attempt.taken.retry_at_s:
                self._begin(attempt.taken)


def _lineage(assignment: Assignment) -> RecordLineage:
    return RecordLineage(assignment.incarnation, topic_hash(assignment.topic_id))
