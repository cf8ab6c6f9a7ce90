"""RocketMQ through Sidecar's own pull client, owned by one thread. Decides nothing about messages; the core does."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Original, Run, TopicPartition
from sidecar.sources.base import POPPED, WAKING_POLL_S, Assignment, Listener, ReadPast, Source
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress
from sidecar.sources.rocketmq.remoting.cluster import RemotingCluster
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.commits import QueueCommits
from sidecar.sources.rocketmq.remoting.popped import Popped
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.remoting.start import QueueStartOffsets, QueueStarts
from sidecar.sources.rocketmq.wire.frames import Frame, RequestCode
from sidecar.sources.rocketmq.wire.requests import read_reset
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State

RETRY_S = 1.0
"""Retry interval for queues whose start offset is unknown."""
HAND_OVER_S = 5.0
"""Time for which a queue is kept so that its messages can settle: its next owner has another state folder."""


class Assignments:
    """The queues that are assigned to this member."""

    def __init__(
        self,
        cluster: RemotingCluster,
        starts: QueueStartOffsets,
        commits: QueueCommits,
        pulls: Pulls,
        state: State,
        listener: Listener,
    ) -> None:
        self._cluster = cluster
        self._start_offsets = starts
        self._commits = commits
        self._pulls = pulls
        self._state = state
        self._listener = listener
        self._failed: dict[TopicPartition, str] = {}
        """Locked queues whose start offset is unknown, with the reason."""
        self._retry_at_s: float | None = None
        """None until queues, or none at all, were taken for the first time."""
        self._replaced: set[TopicPartition] = set()
        """Locked queues to take again because they were replaced."""
        self._leaving: set[TopicPartition] = set()
        """Assigned queues that belong to another member now."""
        self._leave_by_s = 0.0
        """Time until which their messages may settle."""
        self.tps: set[TopicPartition] = set()
        """Queues that are read."""

    def problems(self) -> dict[str, str]:
        """Present problems with start offsets: a key, and a sentence for an operator; empty if there is none."""
        unread = (f"{tp} cannot be read yet: {reason}" for tp, reason in self._failed.items())
        return {"offsets": self._start_offsets.doubt(), "start": min(unread, default="")}

    def share(self) -> None:
        """Take the queues that are assigned to this member, and hand over the others."""
        members = self._cluster.members
        targets = members.targets(list(self._cluster.subscriptions))
        wanted = self.tps if targets is None else targets
        members.keep(wanted)
        self._give_up(set(members.lost))
        self._go_on_with_returned()
        if targets is not None:
            leaving = self.tps - targets
            self._hand_over({tp for tp in leaving if not members.is_orphaned(tp)}, targets)
        due = set(self._failed) if self._retry_at_s is not None and time.monotonic() >= self._retry_at_s else set()
        ready = (members.locked | due) & wanted
        if ready or (targets is not None and not targets and self._retry_at_s is None):
            self._take(sorted(ready))

    def _hand_over(self, tps: set[TopicPartition], targets: frozenset[TopicPartition]) -> None:
        self._unlock((self._cluster.members.locked | set(self._failed)) - targets)
        if tps != self._leaving:
            self._leaving, self._leave_by_s = tps, time.monotonic() + HAND_OVER_S
        elif not tps:
            return
        settled = self._listener.handing_over(tps)
        if tps and (settled or time.monotonic() >= self._leave_by_s):
            self._listener.revoking(tps)
            self._drop(tps)
            self._unlock(tps)

    def _unlock(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._failed.pop(tp, None)
            self._replaced.discard(tp)
            self._start_offsets.resets.pop(tp, None)
        self._cluster.unlock(tps)

    def _give_up(self, tps: set[TopicPartition]) -> None:
        if tps & self.tps:
            self._listener.lost(tps & self.tps)
            self._drop(tps & self.tps)
        self._unlock(tps)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        self.tps.difference_update(tps)
        self._pulls.remove(tps)
        for tp in tps:
            self._commits.disown(tp)

    def _go_on_with_returned(self) -> None:
        """After a broker returned: take queues again that another member continued, and commit the others again."""
        returned = self._cluster.members.returned & self.tps
        self._cluster.members.returned.clear()
        if not returned:
            return
        queues = self._commits.queues
        ours = {tp: queues[tp].at_broker for tp in returned}
        moved = self._start_offsets.has_moved(sorted(returned), ours, known_of(self._state))
        for tp in sorted(moved):
            self.reload(tp)
        self._cluster.brokers.boots({tp.broker for tp in returned})
        self._commits.start_at({tp: max(queues[tp].saved, queues[tp].committed) for tp in returned - moved})

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        """Start reading queues; a queue whose start is unknown is retried, and delays no other."""
        known = known_of(self._state) if tps else {}
        start_offsets = self._start_offsets.find(tps, known, self._replaced) if tps else QueueStarts([], {}, {}, {}, {})
        self._cluster.members.hold(tps)
        self._cluster.brokers.boots({start.tp.broker for start in start_offsets.assignments})
        self._failed = {tp: why for tp, why in self._failed.items() if tp not in tps} | start_offsets.failed
        self._retry_at_s = time.monotonic() + RETRY_S
        for start in start_offsets.assignments:
            tp = start.tp
            self._replaced.discard(tp)
            identity = self._start_offsets.identity(start.incarnation)
            marks, committed = start_offsets.marks[tp], start_offsets.committed[tp]
            self._commits.own(start, identity, known.get(tp), marks, committed)
            self._read(start, start_offsets.lows[tp])
        self._commits.start_at({start.tp: start.state.watermark for start in start_offsets.assignments})
        self.tps.update(start.tp for start in start_offsets.assignments)
        self._listener.assigned(start_offsets.assignments)

    def _read(self, start: Assignment, low: int) -> None:
        tp, marks, watermark = start.tp, self._commits.queues[start.tp].marks, start.state.watermark
        subscription, find = self._cluster.subscriptions[tp.topic], partial(self._cluster.place, tp)
        mark = marks[0] if marks else None
        self._pulls.add_queue(tp, start.read_from, subscription, find, mark, watermark, min(low, start.read_from))

    def reload(self, tp: TopicPartition) -> None:
        if tp in self.tps:
            self._listener.reloading(tp)
            self._drop([tp])
            self._take([tp])

    def take_moved(self) -> None:
        findings = self._pulls.findings
        moved, findings.moved = findings.moved, {}
        for tp, reset in moved.items():
            if reset is None:
                self._listener.event("offset.out_of_range", "warning", tp.fields())
            elif tp in self.tps:
                self._start_offsets.resets[tp] = reset
            self.reload(tp)
        replaced, findings.replaced = findings.replaced, set()
        for tp in sorted(replaced & self.tps):
            self._replaced.add(tp)
            self.reload(tp)

    def leave(self) -> None:
        ours = set(self.tps)
        if ours:
            self._listener.revoking(ours)
            self._drop(ours)
        self._cluster.leave(ours | set(self._failed))


def known_of(state: State) -> dict[TopicPartition, QueueProgress]:
    """The progress of queues in a state file."""
    loaded = {key.tp: QueueProgress.load(text) for key, text in state.load_progress().items()}
    return {tp: progress for tp, progress in loaded.items() if progress is not None}


_PACKED = attrgetter("packed")
QUEUE_SHARE = 4
"""One call may hand over four times the client's limit: see `build.held_bytes_of`."""


class RocketMqSource(Source):
    """Queues by the remoting protocol; the context's expression is ignored if there is an SQL expression."""

    name = "RocketMQ"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = WAKING_POLL_S
    columns: Columns = RocketMqColumns()

    def __init__(self, settings: RocketMqSettings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._cluster = cluster = RemotingCluster(settings, context.place, context.expression, self._take_request)
        self._pulls = Pulls(cluster.asks, QUEUE_SHARE * context.queue_bytes)
        self._fetcher = cluster.fetcher()
        self._popped = Popped(cluster.asks, cluster.routes, settings.topics)
        self._troubles = Troubles(lambda *event: self._listener.event(*event), "rocketmq.failed", "rocketmq.recovered")
        self._closed = False

    def open(self, listener: Listener) -> None:
        self._listener = listener
        cluster, settings = self._cluster, self._settings
        asks = cluster.asks
        try:
            cluster.join(listener.waiting)
            state, rules, room_bytes = self._context.state, self._context.rules.digest, self._context.queue_bytes
            cluster_id = cluster.routes.cluster
            state.bind(cluster_id, asks.wire(asks.group))
            self._commits = QueueCommits(cluster, state, listener, rules)
            starts = QueueStartOffsets(
                cluster.brokers, asks, cluster_id, settings.start, rules, listener.event, room_bytes
            )
            queues, known = cluster.queues(), known_of(state)
            cluster.await_start(lambda: starts.begin_starts(queues, known), listener.waiting)
        except BaseException:
            cluster.network.close()
            raise
        self._assignments = Assignments(cluster, starts, self._commits, self._pulls, state, listener)

    def _take_request(self, frame: Frame) -> None:
        if frame.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._cluster.members.changed()
        elif frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:  # since 5.1, the broker resets by itself
            offsets = read_reset(frame.body)
            for tp in self._assignments.tps:
                if (name := (self._cluster.asks.wire(tp.topic), tp.broker, tp.partition)) in offsets:
                    self._pulls.findings.moved[tp] = offsets[name]

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        self._pulls.ask()
        self._cluster.network.turn(timeout_s, lambda: self._pulls.is_full)
        self._cluster.routes.refresh()
        self._popped.ask(time.monotonic())
        self._assignments.share()
        self._commits.go_on()
        self._assignments.take_moved()
        wrong = self._cluster.problems(self._pulls.findings.refused) | self._assignments.problems()
        wrong[POPPED] = self._popped.problem
        self._troubles.replace(wrong)
        marks, self._pulls.findings.found = self._pulls.findings.found, {}
        for tp, mark in marks.items():
            self._commits.queues[tp].read(mark)
        return self._hand_on()

    def _hand_on(self) -> Iterable[Run | ReadPast]:
        """Yield runs one by one, so that each body is freed before the next row is made."""
        for read in self._pulls.take():
            if isinstance(read, Run):
                self._look_at(read)
            yield read

    def _look_at(self, run: Run) -> None:
        last = run.messages[-1]
        self._commits.queues[run.tp].read(QueueMark(last.offset, last.position, last.stored_ms))
        if any(map(_PACKED, run.messages)):
            for message in filter(_PACKED, run.messages):
                self._listener.event("body.not_unpacked", "warning", {**run.tp.fields(), "offset": message.offset})

    def pause(self, tps: Collection[TopicPartition]) -> None:
        self._pulls.pause(frozenset(tps) & self._assignments.tps)

    def end_of(self, tp: TopicPartition) -> int | None:
        return self._pulls.end_of(tp)

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        return self._fetcher.fetch(tp, offset)

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        return self._fetcher.send_back(tp, offset, level, known)

    def commit(self, items: Sequence[CommitItem]) -> None:
        self._commits.begin_commit(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        return self._commits.now(items)

    def reload(self, tp: TopicPartition) -> None:
        self._assignments.reload(tp)

    def problems(self) -> Mapping[str, str]:
        return self._troubles.now

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._assignments.leave()
        self._commits.close()
        self._fetcher.close()
        self._cluster.network.close()
