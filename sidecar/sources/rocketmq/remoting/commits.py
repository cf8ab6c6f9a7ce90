"""Commits: first the core's state to the state file, then the offset to the broker; both precede the report.

If the broker is down or another member has the queue's lock, the commit fails; then no new part is sent, because each
waits for its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sidecar import threads
from sidecar.core.effects import CommitItem
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import Listener
from sidecar.sources.rocketmq.progress import Told
from sidecar.sources.rocketmq.remoting.brokers import Boot
from sidecar.sources.rocketmq.remoting.cluster import RemotingCluster
from sidecar.sources.rocketmq.remoting.owned import OwnedQueues
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import commit_waves
from sidecar.state.interface import ProgressKey, State

IDLE_S = 1.0
"""A queue without a commit for this time rests."""
NOW_TIMEOUT_S = 3.0


@dataclass(slots=True)
class _PendingQueues:
    """A pending commit."""

    begun_s: float
    offsets: dict[TopicPartition, int]
    saved: Future[None] | None
    results: dict[TopicPartition, bool] = field(default_factory=dict)
    asked: bool = False
    left: int = 0


class QueueCommits:
    """Makes states durable.

    Args:
        rules: 4 bytes, the hash of the rules.

    Attributes:
        owned: The queues that may be committed; after one is owned, `start_at` must follow.
    """

    def __init__(
        self,
        cluster: RemotingCluster,
        state: State,
        listener: Listener,
        rules: bytes,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._listener = listener
        self.owned = OwnedQueues(rules, self._may_commit, cluster.connection)
        self._boots: dict[str, Boot] = {}
        self._pending: _PendingQueues | None = None
        self._note_at_s = 0.0
        self._disk = threads.Pool("progress")

    def _may_commit(self, tp: TopicPartition) -> bool:
        """The state file is enough until the queue's master is back."""
        return self._cluster.link(tp) is not None or self._cluster.members.is_orphaned(tp)

    def meet(self, boots: Mapping[str, Boot]) -> None:
        """Set the present run of each broker."""
        self._boots = dict(boots)

    def begin(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
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
            boot = self._boots.get(tp.broker)
            stamp = boot.stamp if boot and boot.connection == connection else 0
            self.owned.took(tp, Told(stamp, offset), connection)
        elif frame is not None:
            reason = frame.remark or f"code {frame.code}"
            self._listener.event("commit.failed", "warning", {**tp.fields(), "reason": reason})
        # Only while the lock is still good, no other member could begin before the broker took the commit.
        return good and self._cluster.link(tp) is not None

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
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
        """End the thread that writes."""
        self._disk.shutdown()
