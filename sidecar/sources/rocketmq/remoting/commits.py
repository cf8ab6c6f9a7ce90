"""Commits: first the core's state to the state file, then the offset to the broker; both precede the report.

If the broker is down or another member has the queue's lock, the commit fails; then no new part is sent, because each
waits for its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sidecar import threads
from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import Assignment, Listener
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress, Told, with_newest
from sidecar.sources.rocketmq.remoting.cluster import RemotingCluster
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import commit_waves
from sidecar.state.interface import ProgressKey, State
from sidecar.state.offset_map import Identity, encode

FLUSHED_AFTER_S = 15.0
"""A broker writes committed offsets to its disk every 5 s: an offset of this age survives a crash."""


@dataclass(slots=True)
class OwnedQueue:
    """A queue that may be committed."""

    identity: Identity
    found: int
    """The broker's committed offset before the first own commit, or an older own one that it may have."""
    saved: int
    """The newest own offset in the state file, or the start; committed to the broker when it is back."""
    floor: int
    """An offset that the broker certainly has on its disk."""
    _connection: int = 0
    """The connection of the last accepted commit: no connection outlives its process."""
    _next: int = -1
    """The commit accepted by `_since_s`."""
    _since_s: float = 0.0
    committed: int = -1
    """The newest own offset that the broker has."""
    marks: tuple[QueueMark, ...] = ()
    told: Told = field(default_factory=Told)
    """The last commit that the broker accepted."""
    row: QueueProgress | None = None
    """The row in the state file, or on its way there."""
    row_at_s: float = 0.0
    noted: Future[None] | None = None
    """The last write of `row` by a note."""
    newest: QueueMark | None = None
    """The last message read, not yet among the marks."""

    def took(self, taken: Told, connection: int, now_s: float) -> None:
        """Record a commit that the broker accepted; on a new connection, it may have lost earlier ones."""
        self.committed, self.told = taken.offset, taken
        if connection != self._connection:
            self._connection, self._next, self._since_s = connection, taken.offset, now_s

    def raise_floor(self, connection: int, now_s: float) -> None:
        """Set the present connection to the broker, 0 if there is none."""
        if connection == self._connection and now_s - self._since_s >= FLUSHED_AFTER_S:
            self.floor, self._next, self._since_s = max(self.floor, self._next), self.committed, now_s

    def put_mark(self) -> None:
        """Move `newest` to the marks, for the next row."""
        newest, self.newest = self.newest, None
        if newest is not None and (not self.marks or newest.offset > self.marks[0].offset):  # otherwise read again
            self.marks = with_newest(self.marks, newest)

    def row_of(self, item: CommitItem, rules: bytes, now_s: float) -> QueueProgress:
        self.put_mark()
        watermark = item.state.watermark
        text = encode(self.identity, rules, item.state)
        floor = min(self.floor, watermark)
        self.row = QueueProgress(text, self.identity.incarnation, watermark, floor, self.marks, self.told)
        self.row_at_s = now_s
        return self.row

    def note_of(self, row: QueueProgress) -> QueueProgress | None:
        """The row with the commits that the broker accepted since; None if it is stored, or being written."""
        has_failed = self.noted is not None and self.noted.exception() is not None
        self.put_mark()
        floor = max(row.floor, min(self.floor, row.watermark))
        note = row._replace(floor=floor, marks=self.marks, told=self.told)
        if note == row and not has_failed:
            return None
        self.row = note
        return note


class OwnedQueues:
    """The queues that this member may commit.

    Args:
        rules: 4 bytes, the hash of the rules.
        connection: The present connection to a queue's broker, 0 if there is none.
    """

    def __init__(
        self, rules: bytes, may_commit: Callable[[TopicPartition], bool], connection: Callable[[TopicPartition], int]
    ) -> None:
        self._rules = rules
        self._may_commit = may_commit
        self._connection = connection
        self._queues: dict[TopicPartition, OwnedQueue] = {}
        self._restless: set[TopicPartition] = set()
        """Queues with commits at the broker that the state file lacks."""
        self._left: dict[TopicPartition, int] = {}
        """The newest own offset of each queue that was given up: it identifies the broker's offset as the own one."""

    def own(
        self,
        assignment: Assignment,
        identity: Identity,
        known: QueueProgress | None,
        marks: tuple[QueueMark, ...],
        committed: int,
    ) -> None:
        """Commit this queue from now on; `committed` is the broker's offset."""
        row = known if known and assignment.incarnation == known.incarnation else None
        now_s = time.monotonic()
        floor = row.floor if row else 0
        start = assignment.state.watermark
        newest = max(committed, self._left.pop(assignment.tp, -1))
        self._queues[assignment.tp] = OwnedQueue(identity, newest, start, floor, marks=marks, row=row, row_at_s=now_s)
        self._restless.add(assignment.tp)

    def disown(self, tp: TopicPartition) -> None:
        queue = self._queues.pop(tp, None)
        self._restless.discard(tp)
        if queue is not None:
            self._left[tp] = max(queue.found, queue.committed, queue.saved)

    def get(self, tp: TopicPartition) -> OwnedQueue | None:
        return self._queues.get(tp)

    def committed(self) -> dict[TopicPartition, int]:
        """The newest own offsets at the broker, or the broker's before the first own commit."""
        return {tp: queue.committed if queue.committed >= 0 else queue.found for tp, queue in self._queues.items()}

    def saved(self) -> dict[TopicPartition, int]:
        """The newest own offsets, at the broker or only in the state file."""
        return {tp: max(queue.saved, queue.committed) for tp, queue in self._queues.items()}

    def mark(self, tp: TopicPartition) -> QueueMark | None:
        marks = self._queues[tp].marks
        return marks[0] if marks else None

    def read(self, tp: TopicPartition, mark: QueueMark) -> None:
        queue = self._queues[tp]
        queue.newest = mark
        if not queue.marks:
            self._restless.add(tp)

    def took(self, tp: TopicPartition, taken: Told, connection: int) -> None:
        queue = self._queues.get(tp)
        if queue is not None:
            queue.took(taken, connection, time.monotonic())
            self._restless.add(tp)

    def rows(self, items: Sequence[CommitItem]) -> tuple[dict[ProgressKey, str], dict[TopicPartition, int]]:
        """Rows and offsets of the states that may be made durable."""
        rows, offsets, now_s = {}, {}, time.monotonic()
        for item in items:
            queue = self._queues.get(item.tp)
            # A queue that moved while its state waited for the journal is not committed.
            if queue is None or queue.identity.scope != item.scope:
                continue
            if not self._may_commit(item.tp):
                continue
            queue.raise_floor(self._connection(item.tp), now_s)
            rows[ProgressKey.of(item.tp)] = queue.row_of(item, self._rules, now_s).dump()
            offsets[item.tp] = item.state.watermark
        return rows, offsets

    def notes(self, after_s: float) -> dict[TopicPartition, QueueProgress]:
        """Rows with the accepted commits of queues that rest for `after_s`; others have a next commit."""
        notes, now_s = {}, time.monotonic()
        for tp in list(self._restless):
            queue = self._queues[tp]
            if queue.row is None or queue.told.offset < 0 or now_s - queue.row_at_s < after_s:
                continue
            if queue.noted is not None and not queue.noted.done():
                continue
            queue.raise_floor(self._connection(tp), now_s)
            note = queue.note_of(queue.row)
            if note is not None:
                notes[tp] = note
            elif queue.row.floor >= min(queue.committed, queue.row.watermark):  # final, and `told` is stored
                self._restless.discard(tp)
        return notes

    def noted(self, tps: Iterable[TopicPartition], noted: Future[None]) -> None:
        for tp in tps:
            self._queues[tp].noted = noted


IDLE_S = 1.0
"""A queue without a commit for this time rests."""
NOW_TIMEOUT_S = 3.0


@dataclass(slots=True)
class _PendingQueues:
    begun_s: float
    offsets: dict[TopicPartition, int]
    saved: Future[None] | None
    results: dict[TopicPartition, bool] = field(default_factory=dict)
    asked: bool = False
    left: int = 0


class QueueCommits:
    """Makes states durable.

    Attributes:
        owned: The queues that may be committed; after one is owned, `start_at` must follow.
    """

    def __init__(self, cluster: RemotingCluster, state: State, listener: Listener, rules: bytes) -> None:
        self._cluster = cluster
        self._state = state
        self._listener = listener
        self.owned = OwnedQueues(rules, self._may_commit, cluster.connection)
        self._pending: _PendingQueues | None = None
        self._note_at_s = 0.0
        self._disk = threads.Pool("progress")

    def _may_commit(self, tp: TopicPartition) -> bool:
        """Whether a queue may be committed; while it has no master, the state file is enough."""
        return self._cluster.link(tp) is not None or self._cluster.members.is_orphaned(tp)

    def begin_commit(self, items: Sequence[CommitItem]) -> None:
        rows, offsets = self.owned.rows(items)
        saved = self._disk.submit(self._state.save_progress, rows) if rows else None
        self._pending = _PendingQueues(time.monotonic(), offsets, saved, {item.tp: False for item in items})

    def go_on(self) -> None:
        """Take the next step of the pending commit, if possible."""
        pending = self._pending
        if pending is None and time.monotonic() >= self._note_at_s:
            self._note(IDLE_S)
        if pending is None or (pending.saved is not None and not pending.saved.done()):
            return
        if not pending.asked:
            pending.asked = True
            if self._is_saved(pending.saved):
                self._tell_brokers(pending)
        if pending.left == 0:
            self._pending = None
            self._listener.committed(pending.results, time.monotonic() - pending.begun_s)

    def _is_saved(self, saved: Future[None] | None) -> bool:
        error = saved.exception() if saved is not None else None
        if isinstance(error, StateError):
            self._listener.event("commit.failed", "warning", {"reason": str(error), "at": "state"})
        elif error is not None:
            raise error
        return error is None

    def _tell_brokers(self, pending: _PendingQueues) -> None:
        for tp, offset in pending.offsets.items():
            queue = self.owned.get(tp)
            if queue is None:
                continue
            queue.saved = offset
            link = self._cluster.link(tp)
            if link is None:
                pending.results[tp] = self._cluster.members.is_orphaned(tp)
                continue
            if offset == queue.committed:
                pending.results[tp] = True
                continue
            pending.left += 1
            answered = self._answered(pending, tp, offset, link.connection)
            link.ask(self._cluster.asks.commit(tp, offset), answered)

    def _answered(
        self, pending: _PendingQueues, tp: TopicPartition, offset: int, connection: int
    ) -> Callable[[Frame | None], None]:
        def take(frame: Frame | None) -> None:
            pending.left -= 1
            pending.results[tp] = self._took(tp, offset, connection, frame)

        return take

    def _took(self, tp: TopicPartition, offset: int, connection: int, frame: Frame | None) -> bool:
        good = frame is not None and frame.code == Code.SUCCESS
        if good:
            boot = self._cluster.brokers.boot_of(tp.broker, connection)
            self.owned.took(tp, Told(boot, offset), connection)
        elif frame is not None:
            reason = frame.remark or f"code {frame.code}"
            self._listener.event("commit.failed", "warning", {**tp.fields(), "reason": reason})
        # Only while the lock is still good, no other member could begin before the broker took the commit.
        return good and self._cluster.link(tp) is not None

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        self._pending = None
        rows, offsets = self.owned.rows(items)
        results = {item.tp: False for item in items}
        if not self._is_saved(self._disk.submit(self._state.save_progress, rows)):
            return results
        waiting = {tp: self._cluster.members.is_orphaned(tp) for tp in offsets if self._cluster.link(tp) is None}
        results |= waiting | self._ask_all(offsets)
        self._note(0.0)
        return results

    def _note(self, after_s: float) -> None:
        """Write the brokers' accepted commits of queues that rest to the state file."""
        self._note_at_s = time.monotonic() + IDLE_S
        if notes := self.owned.notes(after_s):
            rows = {ProgressKey.of(tp): row.dump() for tp, row in notes.items()}
            self.owned.noted(notes, self._disk.submit(self._state.save_progress, rows))

    def start_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the starts of queues at the brokers, so that the next owner starts there too."""
        self._ask_all(offsets)
        self._note(0.0)  # records which run of the broker's process has them

    def _ask_all(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, bool]:
        results: dict[TopicPartition, bool] = {}
        links = {tp: link for tp in offsets if (link := self._cluster.link(tp))}
        for tps in commit_waves(links):
            connections = [links[tp].connection for tp in tps]
            asks = [(links[tp], self._cluster.asks.commit(tp, offsets[tp])) for tp in tps]
            answers = self._cluster.network.ask_all(asks, NOW_TIMEOUT_S)
            for tp, connection, answer in zip(tps, connections, answers, strict=True):
                results[tp] = self._took(tp, offsets[tp], connection, answer)
        return results

    def close(self) -> None:
        self._disk.shutdown()
