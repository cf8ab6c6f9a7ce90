"""Queues that this member may commit: their state at the broker and in the state file. Sends and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress, Told, with_newest
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, encode

FLUSHED_AFTER_S = 15.0
"""A broker writes committed offsets to its disk every 5 s: an offset of this age survives a crash."""


@dataclass(slots=True)
class BrokerFloor:
    """An offset that the broker certainly has on its disk."""

    offset: int
    _taken: int = -1
    """The last commit that the broker accepted."""
    _connection: int = 0
    """The connection on which it was accepted: no connection outlives its process."""
    _next: int = -1
    """The commit accepted by `_since_s`."""
    _since_s: float = 0.0

    def took(self, offset: int, connection: int, now_s: float) -> None:
        """Record a commit that the broker accepted; on a new connection, it may have lost earlier ones."""
        if connection != self._connection:
            self._connection, self._next, self._since_s = connection, offset, now_s
        self._taken = offset

    def rise(self, connection: int, now_s: float) -> None:
        """Set the present connection to the broker, 0 if there is none."""
        if connection == self._connection and now_s - self._since_s >= FLUSHED_AFTER_S:
            self.offset, self._next, self._since_s = max(self.offset, self._next), self._taken, now_s


@dataclass(slots=True)
class OwnedQueue:
    """A queue that may be committed."""

    identity: Identity
    found: int
    """The broker's committed offset before the first own commit, or an older own one that it may have."""
    saved: int
    """The newest own offset in the state file, or the start; committed to the broker when it is back."""
    floor: BrokerFloor
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

    def put_mark(self) -> None:
        """Move `newest` to the marks, for the next row."""
        newest, self.newest = self.newest, None
        if newest is not None and (not self.marks or newest.offset > self.marks[0].offset):  # otherwise read again
            self.marks = with_newest(self.marks, newest)

    def row_of(self, item: CommitItem, rules: bytes, now_s: float) -> QueueProgress:
        """The row of a state that is to be durable."""
        self.put_mark()
        watermark = item.state.watermark
        text = encode(self.identity, rules, item.state)
        floor = min(self.floor.offset, watermark)
        self.row = QueueProgress(text, self.identity.incarnation, watermark, floor, self.marks, self.told)
        self.row_at_s = now_s
        return self.row

    def note_of(self, row: QueueProgress) -> QueueProgress | None:
        """The row with the commits that the broker accepted since; None if it is stored, or being written."""
        has_failed = self.noted is not None and self.noted.exception() is not None
        self.put_mark()
        floor = max(row.floor, min(self.floor.offset, row.watermark))
        note = row._replace(floor=floor, marks=self.marks, told=self.told)
        if note == row and not has_failed:
            return None
        self.row = note
        return note


class OwnedQueues:
    """The queues that this member may commit.

    Args:
        rules: 4 bytes, the hash of the rules.
        may_commit: Whether a queue's state may be made durable now.
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
        floor = BrokerFloor(row.floor if row else 0)
        start = assignment.state.watermark
        newest = max(committed, self._left.pop(assignment.tp, -1))
        self._queues[assignment.tp] = OwnedQueue(identity, newest, start, floor, marks=marks, row=row, row_at_s=now_s)
        self._restless.add(assignment.tp)

    def disown(self, tp: TopicPartition) -> None:
        """Stop committing this queue."""
        queue = self._queues.pop(tp, None)
        self._restless.discard(tp)
        if queue is not None:
            self._left[tp] = max(queue.found, queue.committed, queue.saved)

    def get(self, tp: TopicPartition) -> OwnedQueue | None:
        """A queue, if it is owned."""
        return self._queues.get(tp)

    def committed(self) -> dict[TopicPartition, int]:
        """The newest own offsets at the broker, or the broker's before the first own commit."""
        return {tp: queue.committed if queue.committed >= 0 else queue.found for tp, queue in self._queues.items()}

    def saved(self) -> dict[TopicPartition, int]:
        """The newest own offsets, at the broker or only in the state file."""
        return {tp: max(queue.saved, queue.committed) for tp, queue in self._queues.items()}

    def mark(self, tp: TopicPartition) -> QueueMark | None:
        """The newest mark of an owned queue."""
        marks = self._queues[tp].marks
        return marks[0] if marks else None

    def read(self, tp: TopicPartition, mark: QueueMark) -> None:
        """Note the newest message that was handed on."""
        queue = self._queues[tp]
        queue.newest = mark
        if not queue.marks:
            self._restless.add(tp)

    def took(self, tp: TopicPartition, taken: Told, connection: int) -> None:
        """Record that the broker accepted this commit on this connection."""
        queue = self._queues.get(tp)
        if queue is not None:
            queue.committed, queue.told = taken.offset, taken
            queue.floor.took(taken.offset, connection, time.monotonic())
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
            queue.floor.rise(self._connection(item.tp), now_s)
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
            queue.floor.rise(self._connection(tp), now_s)
            note = queue.note_of(queue.row)
            if note is not None:
                notes[tp] = note
            elif queue.row.floor >= min(queue.committed, queue.row.watermark):  # final, and `told` is stored
                self._restless.discard(tp)
        return notes

    def noted(self, tps: Iterable[TopicPartition], noted: Future[None]) -> None:
        """Record that the notes of these queues are being written."""
        for tp in tps:
            self._queues[tp].noted = noted
