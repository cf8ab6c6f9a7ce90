"""RocketMQ through Sidecar's own pull client, owned by one thread. Decides nothing about messages; the core does."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from sidecar.config.source import RocketMqSource as RocketMqSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.sources.base import WAKING_POLL_S, Listener, Original, ReadPast
from sidecar.sources.rocketmq.config import sign_of, tls_of
from sidecar.sources.rocketmq.progress import Mark, Progress
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.commits import Commits
from sidecar.sources.rocketmq.remoting.fetch import Fetcher
from sidecar.sources.rocketmq.remoting.joining import ASK_TIMEOUT_S, Joining
from sidecar.sources.rocketmq.remoting.members import Members
from sidecar.sources.rocketmq.remoting.pulling import Place
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.remoting.sharing import SHARES
from sidecar.sources.rocketmq.remoting.start import Found, Starts
from sidecar.sources.rocketmq.wire.codes import Request
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.network import Link, Network
from sidecar.sources.rocketmq.wire.requests import MASTER, Asks, Subscription, read_reset
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State

RETRY_S = 1.0
"""Retry interval for queues whose start offset is unknown."""
HAND_OVER_S = 5.0
"""How long to keep a queue so that its messages can settle: its next owner has another state folder."""
_PACKED = attrgetter("packed")
_TWIN = "another process has this one's client id, so both read every queue: give them other hostnames or state.dir"
QUEUE_SHARE = 4
"""One call may hand over four times what the client may hold: see `build.plan_memory`."""


class RocketMqSource:
    """The source on RocketMQ's remoting protocol.

    Args:
        settings: `source.rocketmq`.
        state: Keeps the core's states.
        rules: 4 bytes, a hash of what decides where a message goes.
        queue_bytes: Limit of messages read ahead.
        client_id: Identifies this place, also after a restart: it owns the brokers' locks.
        expression: The tags that brokers filter by, `a || b`, or `*`; ignored if there is an SQL expression.
    """

    name = "RocketMQ"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = WAKING_POLL_S
    columns: Columns = RocketMqColumns()

    def __init__(
        self,
        settings: RocketMqSettings,
        state: State,
        rules: bytes,
        queue_bytes: int,
        client_id: str,
        expression: str = "*",
    ) -> None:
        self._settings = settings
        self._state = state
        self._rules = rules
        self._asks = Asks(client_id, settings.group, settings.namespace or "")
        kind = "SQL92" if settings.sql else "TAG"
        self._subscriptions = {
            topic: Subscription(topic, settings.sql or expression, kind) for topic in settings.topics
        }
        self._subscriptions[self._asks.retry_topic] = Subscription(self._asks.retry_topic)
        sign, tls = sign_of(settings), tls_of(settings)
        self._network = Network(sign, tls, self._told)
        topics = list(self._subscriptions)
        self._routes = Routes(self._network, self._asks, (settings.name_servers or "").split(","), topics)
        self._members = Members(self._routes, self._asks, SHARES[settings.share], self._subscriptions.values())
        self._pulls = Pulls(self._asks, QUEUE_SHARE * queue_bytes)
        self._fetcher = Fetcher(self._asks, sign, tls, lambda: self._routes.addresses)
        self._assigned: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, str] = {}
        """Locked queues whose start offset is unknown, with the reason."""
        self._replaced: set[TopicPartition] = set()
        """Queues to be taken anew because they were replaced."""
        self._retry_at_s = 0.0
        self._leaving: set[TopicPartition] = set()
        """Assigned queues that belong to another member now."""
        self._leave_by_s = 0.0
        self._troubles = Troubles(lambda *told: self._listener.event(*told), "rocketmq.failed", "rocketmq.recovered")
        self._assigned_once = self._closed = False

    # Joining

    def open(self, listener: Listener) -> None:
        """Find the topics and their brokers, and become a member.

        Raises:
            UnavailableError: Name servers or brokers cannot be reached, or a topic is unknown, for the whole start-up
                time; a new group's start depends on a broker that is silent for so long.
            CredentialsError: They refuse the credentials.
            ConfigError: A broker cannot filter by `source.rocketmq.sql`.
        """
        self._listener = listener
        joining = Joining(self._settings, self._network, self._asks, self._routes, self._members, listener.waiting)
        try:
            joining.await_routes()
            joining.await_brokers()
            if self._settings.sql:
                joining.check_filter(self._subscriptions[self._settings.topics[0]])
            cluster = self._routes.cluster
            self._state.bind(cluster, self._asks.wire(self._asks.group))
            self._commits = Commits(
                self._network, self._asks, self._state, listener, self._rules, self._link, self._members.is_orphaned
            )
            self._starts = Starts(
                self._network, self._asks, self._routes.link, cluster, self._settings.start, self._rules, listener.event
            )
            known = self._known()
            joining.await_start(lambda: self._starts.begin(self._queues(), known))
        except BaseException:
            self._network.close()
            raise

    def _queues(self) -> list[TopicPartition]:
        return [tp for topic in self._settings.topics for tp in self._routes.queues(topic)]

    def _known(self) -> dict[TopicPartition, Progress]:
        loaded = {key.tp: Progress.load(text) for key, text in self._state.load_progress().items()}
        return {tp: progress for tp, progress in loaded.items() if progress is not None}

    def _link(self, tp: TopicPartition) -> Link | None:
        """The connection of a queue, None while this member does not have its lock."""
        return self._routes.link(tp.broker) if self._members.may_go_on(tp) else None

    def _place(self, tp: TopicPartition, suggested: str) -> Place | None:
        """Where a queue is read: at its master, or at a slave if the master suggests it or is dead."""
        link = self._link(tp)
        if link is None and not self._members.is_orphaned(tp):
            return None
        slave = self._routes.slave(tp.broker, suggested) if link is None or suggested != MASTER else None
        if slave is not None and (slave.is_up or link is None):
            return Place(slave, is_slave=True)
        return Place(link) if link else None

    def _told(self, frame: Frame) -> None:
        if frame.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            self._members.changed()
        elif frame.code == Request.RESET_CONSUMER_CLIENT_OFFSET:  # since 5.1, the broker resets by itself
            found = read_reset(frame.body)
            for tp in self._assigned:
                if (place := (self._asks.wire(tp.topic), tp.broker, tp.partition)) in found:
                    self._pulls.findings.moved[tp] = found[place]

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived, in the order of each queue; serves the listener meanwhile."""
        self._pulls.ask()
        self._network.turn(timeout_s, lambda: self._pulls.is_full)
        self._routes.refresh()
        self._share_queues()
        self._commits.go_on()
        self._take_moved()
        self._tell_problems()
        marks, self._pulls.findings.found = self._pulls.findings.found, {}
        for tp, mark in marks.items():
            self._commits.owned.read(tp, mark)
        return self._hand_on()

    def _hand_on(self) -> Iterable[Run | ReadPast]:
        """Yield runs one by one, so that each body is freed before the next row is made."""
        for one in self._pulls.take():
            if isinstance(one, Run):
                self._look_at(one)
            yield one

    def _look_at(self, run: Run) -> None:
        last = run.messages[-1]
        self._commits.owned.read(run.tp, Mark(last.offset, last.position, last.stored_ms))
        if any(map(_PACKED, run.messages)):
            for message in filter(_PACKED, run.messages):
                self._listener.event("body.not_unpacked", "warning", {**run.tp.fields(), "offset": message.offset})

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Pause these queues, and read all other assigned ones."""
        self._pulls.pause(frozenset(tps) & self._assigned)

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the queue's next message will get, if known without a request."""
        return self._pulls.end(tp)

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as the broker has it, None if it is gone; from one other thread.

        Raises:
            UnavailableError: The broker does not answer.
        """
        return self._fetcher.fetch(tp, offset)

    def send_back(self, tp: TopicPartition, offset: int, level: int) -> bool:
        """Have the broker copy one message to the retry topic or (-1) the dead letters; see `Fetcher.send_back`."""
        return self._fetcher.send_back(tp, offset, level)

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        self._commits.begin(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
        return self._commits.now(items)

    # The group

    def _share_queues(self) -> None:
        targets = self._members.targets(list(self._subscriptions))
        wanted = self._assigned if targets is None else targets
        self._members.keep(wanted)
        self._give_up(set(self._members.lost))
        self._go_on_with_returned()
        if targets is not None:
            leaving = self._assigned - targets
            self._hand_over({tp for tp in leaving if not self._members.is_orphaned(tp)}, targets)
        ready = self._members.locked | (set(self._failed) if time.monotonic() >= self._retry_at_s else set())
        ready &= wanted
        if ready or (targets is not None and not targets and not self._assigned_once):
            self._take(sorted(ready))

    def _hand_over(self, tps: set[TopicPartition], targets: frozenset[TopicPartition]) -> None:
        self._unlock((self._members.locked | set(self._failed)) - targets)
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
            self._starts.resets.pop(tp, None)
            self._replaced.discard(tp)
        for link, ask in self._members.release(tps):
            link.tell(ask)

    def _give_up(self, tps: set[TopicPartition]) -> None:
        if tps & self._assigned:
            self._listener.lost(tps & self._assigned)
            self._drop(tps & self._assigned)
        self._unlock(tps)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        self._assigned.difference_update(tps)
        self._pulls.remove(tps)
        for tp in tps:
            self._commits.owned.disown(tp)

    def _go_on_with_returned(self) -> None:
        """After a broker returned: take queues anew that another member continued, commit the others again."""
        returned = self._members.returned & self._assigned
        self._members.returned.clear()
        if not returned:
            return
        moved = self._starts.has_moved(sorted(returned), self._commits.owned.committed(), self._known())
        for tp in sorted(moved):
            self.reload(tp)
        saved = self._commits.owned.saved()
        self._commits.meet(self._starts.brokers.boots({tp.broker for tp in returned}))
        self._commits.start_at({tp: saved[tp] for tp in returned - moved})

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        """Start reading queues; a queue whose start is unknown is retried, and delays no other."""
        known = self._known() if tps else {}
        found = self._starts.find(tps, known, self._replaced) if tps else Found([], {}, {}, {})
        self._members.hold(tps)
        self._commits.meet(self._starts.brokers.boots({one.tp.broker for one in found.starts}))
        self._failed = {tp: text for tp, text in self._failed.items() if tp not in tps} | found.failed
        self._retry_at_s = time.monotonic() + RETRY_S
        for one in found.starts:
            self._replaced.discard(one.tp)
            marks, committed = found.marks[one.tp], found.committed[one.tp]
            self._commits.owned.own(one, self._starts.identity(one), known.get(one.tp), marks, committed)
            subscription = self._subscriptions[one.tp.topic]
            find = partial(self._place, one.tp)
            self._pulls.add(
                one.tp, one.read_from, subscription, find, self._commits.owned.mark(one.tp), one.state.watermark
            )
        self._commits.start_at({one.tp: one.state.watermark for one in found.starts})
        self._assigned.update(one.tp for one in found.starts)
        self._assigned_once = True
        self._listener.assigned(found.starts)

    def reload(self, tp: TopicPartition) -> None:
        """Give the queue up and take it again from its committed state."""
        if tp in self._assigned:
            self._listener.reloading(tp)
            self._drop([tp])
            self._take([tp])

    def _take_moved(self) -> None:
        moved, self._pulls.findings.moved = self._pulls.findings.moved, {}
        for tp, reset in moved.items():
            if reset is None:
                self._listener.event("offset.out_of_range", "warning", tp.fields())
            elif tp in self._assigned:
                self._starts.resets[tp] = reset
            self.reload(tp)
        replaced, self._pulls.findings.replaced = self._pulls.findings.replaced, set()
        for tp in sorted(replaced & self._assigned):
            self._replaced.add(tp)
            self.reload(tp)

    # Problems

    def problems(self) -> Mapping[str, str]:
        """Present problems of the cluster: a key, and a sentence for an operator."""
        return self._troubles.now

    def _tell_problems(self) -> None:
        self._troubles.put("name servers", self._routes.problem)
        links = self._routes.brokers()
        self._troubles.clear(*(self._troubles.now.keys() - {"name servers", "start", "offsets", "group", *links}))
        for name, link in links.items():
            refusals = [
                f"{tp}: {frame.remark}" for tp, frame in self._pulls.findings.refused.items() if tp.broker == name
            ]
            self._troubles.put(name, f"{link.address}: {link.problem}" if link.problem else min(refusals, default=""))
        self._troubles.put("group", str(self._members.refusal or (_TWIN if self._members.has_twin else "")))
        self._troubles.put("offsets", self._starts.doubt())
        self._troubles.put(
            "start", min((f"{tp} cannot be read yet: {why}" for tp, why in self._failed.items()), default="")
        )

    def close(self) -> None:
        """Revoke the assigned queues, leave the group and disconnect; may be repeated."""
        if self._closed:
            return
        self._closed = True
        ours = set(self._assigned)
        if ours:
            self._listener.revoking(ours)
            self._drop(ours)
        asks = self._members.release(ours | set(self._failed)) + self._members.leave()
        self._network.ask_all(asks, ASK_TIMEOUT_S)
        self._commits.close()
        self._fetcher.close()
        self._network.close()
