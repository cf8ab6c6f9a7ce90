"""RocketMQ through Sidecar's own pull client, owned by one thread. Decides nothing about messages; the core does."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Original, Run, TopicPartition
from sidecar.sources.base import POPPED, WAKING_POLL_S, Listener, ReadPast
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.assignments import Assignments, known_of
from sidecar.sources.rocketmq.remoting.cluster import RemotingCluster
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.commits import QueueCommits
from sidecar.sources.rocketmq.remoting.popped import Popped
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.remoting.start import QueueStartOffsets
from sidecar.sources.rocketmq.wire.frames import Frame, RequestCode
from sidecar.sources.rocketmq.wire.requests import read_reset
from sidecar.sources.troubles import Troubles

_PACKED = attrgetter("packed")
QUEUE_SHARE = 4
"""One call may hand over four times the client's limit: see `build.plan_memory`."""


class RocketMqSource:
    """A `Source` on RocketMQ's remoting protocol; the context's expression is ignored if there is an SQL expression."""

    name = "RocketMQ"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = WAKING_POLL_S
    is_emptied = True
    no_lane: str | None = None
    lane_bytes = 0
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

    # Joining

    def open(self, listener: Listener) -> None:
        """Find the topics and their brokers, and become a member."""
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
            cluster.await_start(lambda: starts.begin(queues, known), listener.waiting)
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

    # Reading

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
            self._commits.owned.read(tp, mark)
        return self._hand_on()

    def _hand_on(self) -> Iterable[Run | ReadPast]:
        """Yield runs one by one, so that each body is freed before the next row is made."""
        for read in self._pulls.take():
            if isinstance(read, Run):
                self._look_at(read)
            yield read

    def _look_at(self, run: Run) -> None:
        last = run.messages[-1]
        self._commits.owned.read(run.tp, QueueMark(last.offset, last.position, last.stored_ms))
        if any(map(_PACKED, run.messages)):
            for message in filter(_PACKED, run.messages):
                self._listener.event("body.not_unpacked", "warning", {**run.tp.fields(), "offset": message.offset})

    def pause(self, tps: Collection[TopicPartition]) -> None:
        self._pulls.pause(frozenset(tps) & self._assignments.tps)

    def end(self, tp: TopicPartition) -> int | None:
        return self._pulls.end(tp)

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        return self._fetcher.fetch(tp, offset)

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        return self._fetcher.send_back(tp, offset, level, known)

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        self._commits.begin(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        return self._commits.now(items)

    def reload(self, tp: TopicPartition) -> None:
        self._assignments.reload(tp)

    # Problems

    def problems(self) -> Mapping[str, str]:
        return self._troubles.now

    def close(self) -> None:
        """Revoke the assigned queues, leave the group and disconnect; may be repeated."""
        if self._closed:
            return
        self._closed = True
        self._assignments.leave()
        self._commits.close()
        self._fetcher.close()
        self._cluster.network.close()
