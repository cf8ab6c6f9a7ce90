"""Queues that this member may commit: what the broker and the state file have of each. Asks nobody, writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment
from sidecar.sources.rocketmq.progress import Mark, QueueProgress, Told, with_newest
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, encode

FLUSHED_AFTER_S = 15.0
"""A broker writes committed offsets to its disk every 5 s: an offset of this age survives a crash."""


@dataclass(slots=True)
class Floor:
    """An offset that the broker certainly has on its disk."""

    offset: int
    _taken: int = -1
    """The last commit that the broker took."""
    _connection: int = 0
    """On which it did: no connection outlives its process."""
    _next: int = -1
    """Taken by `_since_s`."""
    _since_s: float = 0.0

    def took(self, offset: int, connection: int, now_s: float) -> None:
        """The broker took this commit on a connection; if it is a new one, the broker may have lost what it had."""
        if connection != self._connection:
            self._connection, self._next, self._since_s = connection, offset, now_s
        self._taken = offset

    def rise(self, connection: int, now_s: float) -> None:
        """The connection to the broker is this one, 0 if there is none."""
        if connection == self._connection and now_s - self._since_s >= FLUSHED_AFTER_S:
            self.offset, self._next, self._since_s = max(self.offset, self._next), self._taken, now_s


@dataclass(slots=True)
class Owned:
    """A queue that may be committed."""

    identity: Identity
    found: int
    """The broker's committed offset before ours, or an older one of ours that it may have."""
    saved: int
    """Our newest offset in the state file, or the start; committed to the broker when it is back."""
    floor: Floor
    committed: int = -1
    """Our newest offset that the broker has."""
    marks: tuple[Mark, ...] = ()
    told: Told = field(default_factory=Told)
    """The last commit that the broker accepted."""
    row: QueueProgress | None = None
    """The row in the state file, or on its way there."""
    row_at_s: float = 0.0
    noted: Future[None] | None = None
    """The last write of `row` by a note."""
    newest: Mark | None = None
    """The last message read, not yet among the marks."""

    def put_mark(self) -> None:
        """Move `newest` to the marks, for the next row."""
        newest, self.newest = self.newest, None
        if newest is not None and (not self.marks or newest.offset > self.marks[0].offset):  # else read again
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
        """The row with what the broker accepted since; None if it is stored, or on its way."""
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
        rules: 4 bytes, a hash of what decides where a message goes.
        may_commit: Whether a queue's state may be made durable now.
        connection: The present connection to a queue's broker, 0 if there is none.
    """

    def __init__(
        self, rules: bytes, may_commit: Callable[[TopicPartition], bool], connection: Callable[[TopicPartition], int]
    ) -> None:
        self._rules = rules
        self._may_commit = may_commit
        self._connection = connection
        self._queues: dict[TopicPartition, Owned] = {}
        self._restless: set[TopicPartition] = set()
        """Those with commits at the broker that the state file lacks."""
        self._left: dict[TopicPartition, int] = {}
        """Our newest offset of each queue that was given up: at the broker it is nobody else's."""

    def own(
        self,
        assignment: Assignment,
        identity: Identity,
        known: QueueProgress | None,
        marks: tuple[Mark, ...],
        committed: int,
    ) -> None:
        """Commit this queue from now on; `committed` is the broker's offset."""
        row = known if known and assignment.incarnation == known.incarnation else None
        now_s = time.monotonic()
        floor = Floor(row.floor if row else 0)
        start = assignment.state.watermark
        newest = max(committed, self._left.pop(assignment.tp, -1))
        self._queues[assignment.tp] = Owned(identity, newest, start, floor, marks=marks, row=row, row_at_s=now_s)
        self._restless.add(assignment.tp)

    def disown(self, tp: TopicPartition) -> None:
        """Stop committing this queue."""
        queue = self._queues.pop(tp, None)
        self._restless.discard(tp)
        if queue is not None:
            self._left[tp] = max(queue.found, queue.committed, queue.saved)

    def get(self, tp: TopicPartition) -> Owned | None:
        """A queue, if it is owned."""
        return self._queues.get(tp)

    def committed(self) -> dict[TopicPartition, int]:
        """Our newest offsets at the broker, or its own before our first."""
        return {tp: queue.committed if queue.committed >= 0 else queue.found for tp, queue in self._queues.items()}

    def saved(self) -> dict[TopicPartition, int]:
        """Our newest offsets, at the broker or only in the state file."""
        return {tp: max(queue.saved, queue.committed) for tp, queue in self._queues.items()}

    def mark(self, tp: TopicPartition) -> Mark | None:
        """The newest mark of an owned queue."""
        marks = self._queues[tp].marks
        return marks[0] if marks else None

    def read(self, tp: TopicPartition, mark: Mark) -> None:
        """Note the newest message that was handed on."""
        queue = self._queues[tp]
        queue.newest = mark
        if not queue.marks:
            self._restless.add(tp)

    def took(self, tp: TopicPartition, taken: Told, connection: int) -> None:
        """The broker accepted this commit on this connection."""
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
            # While it waited for the journal, the queue may have moved: then it is not committed.
            if queue is None or queue.identity.scope != item.scope:
                continue
            if not self._may_commit(item.tp):
                continue
            queue.floor.rise(self._connection(item.tp), now_s)
            rows[ProgressKey.of(item.tp)] = queue.row_of(item, self._rules, now_s).dump()
            offsets[item.tp] = item.state.watermark
        return rows, offsets

    def notes(self, after_s: float) -> dict[TopicPartition, QueueProgress]:
        """Rows with what brokers accepted of queues that rest for `after_s`; others have a next commit."""
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
        """The notes of these queues are on their way."""
        for tp in tps:
            self._queues[tp].noted = noted
