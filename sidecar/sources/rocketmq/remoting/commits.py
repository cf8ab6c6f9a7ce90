"""Commits: first the core's state to the state file, then the offset to the broker; both precede the report.

If the broker is down or another member has the queue's lock, the commit fails; then no new part is sent, because each
waits for its commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

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
    rests: bool = False
    """Whether the state file has all that the broker has."""

    @property
    def at_broker(self) -> int:
        """The newest own offset at the broker, or the broker's before the first own commit."""
        return self.committed if self.committed >= 0 else self.found

    def read(self, mark: QueueMark) -> None:
        self.newest = mark
        self.rests &= bool(self.marks)

    def took(self, taken: Told, connection: int, now_s: float) -> None:
        """Record a commit that the broker accepted; on a new connection, it may have lost earlier ones."""
        self.committed, self.told, self.rests = taken.offset, taken, False
        if connection != self._connection:
            self._connection, self._next, self._since_s = connection, taken.offset, now_s

    def _go_on(self, connection: int, now_s: float) -> None:
        """Move `newest` to the marks and raise the floor, at this connection to the broker; 0 if there is none."""
        newest, self.newest = self.newest, None
        if newest is not None and (not self.marks or newest.offset > self.marks[0].offset):  # otherwise read again
            self.marks = with_newest(self.marks, newest)
        if connection == self._connection and now_s - self._since_s >= FLUSHED_AFTER_S:
            self.floor, self._next, self._since_s = max(self.floor, self._next), self.committed, now_s

    def row_of(self, item: CommitItem, rules: bytes, connection: int, now_s: float) -> QueueProgress:
        self._go_on(connection, now_s)
        watermark = item.state.watermark
        text = encode(self.identity, rules, item.state)
        floor = min(self.floor, watermark)
        self.row = QueueProgress(text, self.identity.incarnation, watermark, floor, self.marks, self.told)
        self.row_at_s = now_s
        return self.row

    def note(self, after_s: float, connection: int, now_s: float) -> QueueProgress | None:
        """The row with the commits that the broker accepted since, if there was none for `after_s`, and none follows.

        None also if it is stored, or being written.
        """
        row = self.row
        if row is None or self.told.offset < 0 or now_s - self.row_at_s < after_s:
            return None
        if self.noted is not None and not self.noted.done():
            return None
        has_failed = self.noted is not None and self.noted.exception() is not None
        self._go_on(connection, now_s)
        floor = max(row.floor, min(self.floor, row.watermark))
        self.row = row._replace(floor=floor, marks=self.marks, told=self.told)
        if self.row != row or has_failed:
            return self.row
        self.rests = row.floor >= min(self.committed, row.watermark)  # final, and `told` is stored
        return None


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
    """Makes states durable."""

    def __init__(self, cluster: RemotingCluster, state: State, listener: Listener, rules: bytes) -> None:
        self._cluster = cluster
        self._state = state
        self._listener = listener
        self._rules = rules
        self.queues: dict[TopicPartition, OwnedQueue] = {}
        """The queues that this member may commit."""
        self._left: dict[TopicPartition, int] = {}
        """The newest own offset of each queue that was given up: it identifies the broker's offset as the own one."""
        self._pending: _PendingQueues | None = None
        self._note_at_s = 0.0
        self._disk = threads.Pool("progress")

    def own(
        self,
        assignment: Assignment,
        identity: Identity,
        known: QueueProgress | None,
        marks: tuple[QueueMark, ...],
        committed: int,
    ) -> None:
        """Commit this queue from now on; `start_at` must follow. `committed` is the broker's offset."""
        row = known if known and assignment.incarnation == known.incarnation else None
        newest, floor = max(committed, self._left.pop(assignment.tp, -1)), row.floor if row else 0
        self.queues[assignment.tp] = OwnedQueue(
            identity, newest, assignment.state.watermark, floor, marks=marks, row=row, row_at_s=time.monotonic()
        )

    def disown(self, tp: TopicPartition) -> None:
        queue = self.queues.pop(tp, None)
        if queue is not None:
            self._left[tp] = max(queue.found, queue.committed, queue.saved)

    def _rows(self, items: Sequence[CommitItem]) -> tuple[dict[ProgressKey, str], dict[TopicPartition, int]]:
        """Rows and offsets of the states that may be made durable; without a master, the state file is enough."""
        rows, offsets, now_s = {}, {}, time.monotonic()
        for item in items:
            tp, queue = item.tp, self.queues.get(item.tp)
            # A queue that moved while its state waited for the journal is not committed.
            if queue is None or queue.identity.scope != item.scope:
                continue
            if self._cluster.link(tp) is not None or self._cluster.members.is_orphaned(tp):
                row = queue.row_of(item, self._rules, self._cluster.connection(tp), now_s)
                rows[ProgressKey.of(tp)], offsets[tp] = row.dump(), item.state.watermark
        return rows, offsets

    def begin_commit(self, items: Sequence[CommitItem]) -> None:
        rows, offsets = self._rows(items)
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
        def answered(tp: TopicPartition, connection: int, frame: Frame | None) -> None:
            pending.left -= 1
            pending.results[tp] = self._took(tp, pending.offsets[tp], connection, frame)

        for tp, offset in pending.offsets.items():
            queue, link = self.queues.get(tp), self._cluster.link(tp)
            if queue is None:
                continue
            queue.saved = offset
            if link is None or offset == queue.committed:
                pending.results[tp] = link is not None or self._cluster.members.is_orphaned(tp)
                continue
            pending.left += 1
            link.ask(self._cluster.asks.commit(tp, offset), partial(answered, tp, link.connection))

    def _took(self, tp: TopicPartition, offset: int, connection: int, frame: Frame | None) -> bool:
        good = frame is not None and frame.code == Code.SUCCESS
        if good and (queue := self.queues.get(tp)) is not None:
            boot = self._cluster.brokers.boot_of(tp.broker, connection)
            queue.took(Told(boot, offset), connection, time.monotonic())
        elif frame is not None and not good:
            reason = frame.remark or f"code {frame.code}"
            self._listener.event("commit.failed", "warning", {**tp.fields(), "reason": reason})
        # Only while the lock is still good, no other member could begin before the broker took the commit.
        return good and self._cluster.link(tp) is not None

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        self._pending = None
        rows, offsets = self._rows(items)
        results = {item.tp: False for item in items}
        if not self._is_saved(self._disk.submit(self._state.save_progress, rows)):
            return results
        waiting = {tp: self._cluster.members.is_orphaned(tp) for tp in offsets if self._cluster.link(tp) is None}
        return results | waiting | self.start_at(offsets)

    def _note(self, after_s: float) -> None:
        """Write the brokers' accepted commits of queues that rest to the state file."""
        now_s = time.monotonic()
        self._note_at_s = now_s + IDLE_S
        owned = ((tp, queue) for tp, queue in self.queues.items() if not queue.rests)
        notes = {
            tp: note
            for tp, queue in owned
            if (note := queue.note(after_s, self._cluster.connection(tp), now_s)) is not None
        }
        if notes:
            rows = {ProgressKey.of(tp): row.dump() for tp, row in notes.items()}
            noted = self._disk.submit(self._state.save_progress, rows)
            for tp in notes:
                self.queues[tp].noted = noted

    def start_at(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, bool]:
        """Commit the starts of queues at the brokers, so that the next owner starts there too; whether each has it."""
        results: dict[TopicPartition, bool] = {}
        links = {tp: link for tp in offsets if (link := self._cluster.link(tp))}
        for tps in commit_waves(links):
            connections = [links[tp].connection for tp in tps]
            asks = [(links[tp], self._cluster.asks.commit(tp, offsets[tp])) for tp in tps]
            answers = self._cluster.network.ask_all(asks, NOW_TIMEOUT_S)
            for tp, connection, answer in zip(tps, connections, answers, strict=True):
                results[tp] = self._took(tp, offsets[tp], connection, answer)
        self._note(0.0)  # records which run of the broker's process has them
        return results

    def close(self) -> None:
        self._disk.shutdown()
