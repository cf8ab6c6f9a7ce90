"""Commits: first the core's state to the state file, then the offset to the broker; both precede the report.

If the broker is down or another member has the queue's lock, the commit fails; then no new part is sent, because each
waits for its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import Assignment, Listener
from sidecar.sources.rocketmq.progress import Mark, Progress, Told, with_newest
from sidecar.sources.rocketmq.remoting.brokers import Boot
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.network import Link, Network
from sidecar.sources.rocketmq.wire.requests import Asks, commit_waves
from sidecar.state.interface import ProgressKey, State
from sidecar.state.offset_map import Identity, encode

FLUSHED_AFTER_S = 15.0
"""A broker writes committed offsets to its disk every 5 s: an offset of this age survives a crash."""
IDLE_S = 1.0
"""A queue without a commit for this time rests."""
NOW_TIMEOUT_S = 3.0


@dataclass(slots=True)
class _Owned:
    """A queue that may be committed."""

    identity: Identity
    found: int
    """The broker's committed offset before ours."""
    committed: int
    """Our newest offset that the broker has."""
    saved: int
    """Our newest offset in the state file, or the start; committed to the broker when it is back."""
    floor: int
    """An offset that the broker had 15 s before `floor_at_s`."""
    next_floor: int
    floor_at_s: float
    marks: tuple[Mark, ...] = ()
    told: Told = field(default_factory=Told)
    """The last commit that the broker accepted."""
    row: Progress | None = None
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


@dataclass(slots=True)
class _Pending:
    """A pending commit."""

    begun_s: float
    offsets: dict[TopicPartition, int]
    saved: Future[None] | None
    results: dict[TopicPartition, bool] = field(default_factory=dict)
    asked: bool = False
    left: int = 0


class Commits:
    """Makes states durable.

    Args:
        network: Asks.
        asks: Makes the requests.
        state: Keeps the core's states.
        listener: Receives the results.
        rules: 4 bytes, a hash of what decides where a message goes.
        place: The connection of a queue, None while it must not be committed.
        may_wait: Whether the state file is enough until the queue's master is back.
    """

    def __init__(
        self,
        network: Network,
        asks: Asks,
        state: State,
        listener: Listener,
        rules: bytes,
        place: Callable[[TopicPartition], Link | None],
        may_wait: Callable[[TopicPartition], bool],
    ) -> None:
        self._network = network
        self._asks = asks
        self._state = state
        self._listener = listener
        self._rules = rules
        self._place = place
        self._may_wait = may_wait
        self._owned: dict[TopicPartition, _Owned] = {}
        self._boots: dict[str, Boot] = {}
        self._pending: _Pending | None = None
        self._restless: set[TopicPartition] = set()
        """Owned queues with commits at the broker that the state file lacks."""
        self._note_at_s = 0.0
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="progress")

    def own(
        self, one: Assignment, identity: Identity, known: Progress | None, marks: tuple[Mark, ...], committed: int
    ) -> None:
        """Commit this queue from now on; `committed` is the broker's offset. `start_at` must follow."""
        row = known if known and one.incarnation == known.incarnation else None
        floor, now_s = row.floor if row else 0, time.monotonic()
        at = one.state.watermark
        self._owned[one.tp] = _Owned(identity, committed, -1, at, floor, floor, now_s, marks, row=row, row_at_s=now_s)
        self._restless.add(one.tp)

    def meet(self, boots: Mapping[str, Boot]) -> None:
        """Set the present run of each broker."""
        self._boots = dict(boots)

    def disown(self, tp: TopicPartition) -> None:
        """Stop committing this queue."""
        self._owned.pop(tp, None)
        self._restless.discard(tp)

    def committed(self) -> dict[TopicPartition, int]:
        """Our newest offsets at the broker, or its own before our first."""
        return {tp: one.committed if one.committed >= 0 else one.found for tp, one in self._owned.items()}

    def saved(self) -> dict[TopicPartition, int]:
        """Our newest offsets, at the broker or only in the state file."""
        return {tp: max(one.saved, one.committed) for tp, one in self._owned.items()}

    def mark(self, tp: TopicPartition) -> Mark | None:
        """The newest mark of an owned queue."""
        marks = self._owned[tp].marks
        return marks[0] if marks else None

    def read(self, tp: TopicPartition, mark: Mark) -> None:
        """Note the newest message that was handed on."""
        one = self._owned[tp]
        one.newest = mark
        if not one.marks:
            self._restless.add(tp)

    def begin(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        rows, offsets = self._rows(items)
        saved = self._disk.submit(self._state.save_progress, rows) if rows else None
        self._pending = _Pending(time.monotonic(), offsets, saved, {item.tp: False for item in items})

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
            self._listener.event("commit.failed", "warning", {"reason": str(error)})
        elif error is not None:
            raise error
        return error is None

    def _tell_brokers(self, pending: _Pending) -> None:
        for tp, offset in pending.offsets.items():
            if tp not in self._owned:
                continue
            self._owned[tp].saved = offset
            link = self._place(tp)
            if link is None:
                pending.results[tp] = self._may_wait(tp)
                continue
            if offset == self._owned[tp].committed:
                pending.results[tp] = True
                continue
            pending.left += 1
            answered = self._answered(pending, tp, self._told(tp, link, offset))
            link.ask(self._asks.commit(tp, offset), answered)

    def _told(self, tp: TopicPartition, link: Link, offset: int) -> Told:
        boot = self._boots.get(tp.broker)
        return Told(boot.stamp if boot and boot.connection == link.connection else 0, offset)

    def _answered(self, pending: _Pending, tp: TopicPartition, told: Told) -> Callable[[Frame | None], None]:
        def take(frame: Frame | None) -> None:
            pending.left -= 1
            pending.results[tp] = self._took(tp, told, frame)

        return take

    def _took(self, tp: TopicPartition, told: Told, frame: Frame | None) -> bool:
        good = frame is not None and frame.code == Code.SUCCESS
        if good and tp in self._owned:
            self._owned[tp].committed, self._owned[tp].told = told.offset, told
            self._restless.add(tp)
        elif frame is not None and not good:
            reason = frame.remark or f"code {frame.code}"
            self._listener.event("commit.failed", "warning", {**tp.fields(), "reason": reason})
        return good

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
        self._pending = None
        rows, offsets = self._rows(items)
        results = {item.tp: False for item in items}
        if not self._is_saved(self._disk.submit(self._state.save_progress, rows)):
            return results
        waiting = {tp: self._may_wait(tp) for tp in offsets if self._place(tp) is None}
        results |= waiting | self._ask_all(offsets)
        self._note(0.0)
        return results

    def _note(self, after_s: float) -> None:
        """Write the brokers' accepted commits of resting queues to the state file; others have a next commit."""
        rows, now_s = {}, time.monotonic()
        self._note_at_s = now_s + IDLE_S
        for tp in list(self._restless):
            one = self._owned[tp]
            if one.row is None or one.told.offset < 0 or now_s - one.row_at_s < after_s:
                continue
            if one.noted is not None and not one.noted.done():
                continue
            has_failed = one.noted is not None and one.noted.exception() is not None
            self._raise_floor(tp, one, now_s)
            one.put_mark()
            floor = max(one.row.floor, min(one.floor, one.row.watermark))
            row = one.row._replace(floor=floor, marks=one.marks, told=one.told)
            if row != one.row or has_failed:
                one.row, rows[tp] = row, row.dump()
            elif row.floor >= min(one.committed, row.watermark):  # final, and `told` is stored
                self._restless.discard(tp)
        if rows:
            noted = self._disk.submit(self._state.save_progress, {ProgressKey.of(tp): row for tp, row in rows.items()})
            for tp in rows:
                self._owned[tp].noted = noted

    def _raise_floor(self, tp: TopicPartition, one: _Owned, now_s: float) -> None:
        """A broker that is away writes nothing any more."""
        if now_s - one.floor_at_s >= FLUSHED_AFTER_S and self._place(tp) is not None:
            one.floor, one.next_floor, one.floor_at_s = one.next_floor, one.committed, now_s

    def start_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the starts of queues at the brokers, so that the next owner starts there too."""
        now_s = time.monotonic()
        for one in (self._owned[tp] for tp in offsets if tp in self._owned):
            one.next_floor, one.floor_at_s = one.floor, now_s  # a broker that was killed may have lost what it had
        self._ask_all(offsets)

    def _ask_all(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, bool]:
        results: dict[TopicPartition, bool] = {}
        links = {tp: link for tp in offsets if (link := self._place(tp))}
        for tps in commit_waves(links):
            told = {tp: self._told(tp, links[tp], offsets[tp]) for tp in tps}
            asks = [(links[tp], self._asks.commit(tp, offsets[tp])) for tp in tps]
            answers = zip(tps, self._network.ask_all(asks, NOW_TIMEOUT_S), strict=True)
            results |= {tp: self._took(tp, told[tp], answer) for tp, answer in answers}
        return results

    def _rows(self, items: Sequence[CommitItem]) -> tuple[dict[ProgressKey, str], dict[TopicPartition, int]]:
        rows, offsets = {}, {}
        now_s = time.monotonic()
        for item in items:
            one = self._owned.get(item.tp)
            # While it waited for the journal, the queue may have moved: then it is not committed.
            if one is None or one.identity.scope != item.scope:
                continue
            if self._place(item.tp) is None and not self._may_wait(item.tp):
                continue
            self._raise_floor(item.tp, one, now_s)
            one.put_mark()
            at = item.state.watermark
            text = encode(one.identity, self._rules, item.state)
            floor, incarnation = min(one.floor, at), one.identity.incarnation
            one.row, one.row_at_s = Progress(text, incarnation, at, floor, one.marks, one.told), now_s
            rows[ProgressKey.of(item.tp)] = one.row.dump()
            offsets[item.tp] = at
        return rows, offsets

    def close(self) -> None:
        """End the thread that writes."""
        self._disk.shutdown()
