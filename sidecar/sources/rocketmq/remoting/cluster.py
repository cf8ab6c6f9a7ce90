"""The cluster as one client sees it: connections, routes, start, membership, the node of each queue. Reads nothing.

A broker locks a queue for one client id for 60 s, and forgets all locks when it restarts. So nothing is handed on
without a lock obtained on the present connection. After a broker returns, only the earlier holders take their queues
at once; other members wait first.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.rocketmq.config import is_refusal, refused, sign_of, tls_of
from sidecar.sources.rocketmq.remoting.fetch import QueueFetcher
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.routes import Brokers, Routes
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.network import Ask, Link, Network, NoAnswerError, RefusedError, refusal
from sidecar.sources.rocketmq.wire.requests import MASTER, Asks, MemberAsks, Subscription, read_members

Share: TypeAlias = Callable[[Sequence[TopicPartition], Sequence[str], str], set[TopicPartition]]
VIRTUAL_NODES = 10
"""Points of a member on the ring; as many as in Java's client."""


def average(queues: Sequence[TopicPartition], members: Sequence[str], me: str) -> set[TopicPartition]:
    """A range for each member, of lengths that differ by at most one, like Java's `AllocateMessageQueueAveragely`."""
    if me not in members:
        return set()
    ordered, index = sorted(queues, key=_order), sorted(members).index(me)
    size, longer = divmod(len(ordered), len(members))
    start = index * size + min(index, longer)
    return set(ordered[start : start + size + (index < longer)])


def consistent_hash(queues: Sequence[TopicPartition], members: Sequence[str], me: str) -> set[TopicPartition]:
    """Assign each queue to the next member on a ring: few queues of the others move if a member joins or leaves."""
    ring = sorted((_point(f"{member}-{i}"), member) for member in members for i in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]
    positions = {tp: bisect_left(points, _point(":".join(map(str, _order(tp))))) for tp in queues}
    return {tp for tp in queues if ring and ring[positions[tp] % len(ring)][1] == me}


def _order(tp: TopicPartition) -> tuple[str, str, int]:
    return tp.topic, tp.broker, tp.partition


def _point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()[:8])


SHARES: dict[Literal["average", "consistent_hash"], Share] = {"average": average, "consistent_hash": consistent_hash}


HEARTBEAT_S = 5.0
LOCK_RENEW_S = 10.0
LOCK_GOOD_S = 45.0
"""A broker keeps a lock for 60 s."""
LOCK_RETRY_S = 0.3
TWIN_S = 150.0
"""A broker forgets a silently broken connection after 120 s; until then, a twin may be the own old connection."""
RETURN_S = 5.0
"""Time for which the queues of a broker that returned are left to their earlier holders."""


@dataclass(slots=True)
class _Broker:
    """The own membership at one broker."""

    connection: int = 0
    """Number of the connection on which the broker knows this member, 0 before the first."""
    greeted: int = 0
    """Number of the connection on which the first heartbeat was sent."""
    is_back: bool = False
    """Whether the broker knew this member before that connection."""
    known_since_s: float = 0.0
    heartbeat_at_s: float = 0.0
    renew_at_s: float = 0.0
    retry_at_s: float = 0.0
    members: frozenset[str] = frozenset()
    twin_since_s: float | None = None
    """Time since when the broker has two connections with the own client id."""
    locked: dict[TopicPartition, float] = field(default_factory=dict)
    """Queues whose lock was obtained on this connection, and until when it is valid."""


class Members:
    """The own membership."""

    def __init__(self, routes: Routes, asks: Asks, share: Share, subscriptions: Iterable[Subscription]) -> None:
        self._routes = routes
        self._asks = MemberAsks(asks)
        self._share = share
        self._subscriptions = list(subscriptions)
        self._brokers: dict[str, _Broker] = {}
        self._held: set[TopicPartition] = set()
        self.locked: set[TopicPartition] = set()
        """Queues whose lock was obtained and that are not held yet."""
        self.lost: set[TopicPartition] = set()
        """Held queues that another member has locked."""
        self.returned: set[TopicPartition] = set()
        """Held queues whose lock was obtained again after it was lost or in doubt."""
        self.refusal: RefusedError | None = None
        self._targets: frozenset[TopicPartition] = frozenset()
        self._computed_from: object = None
        """Topics, members and routes from which `_targets` was computed: a ring of 64 queues takes 0.3 ms."""

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Own these queues: renew their locks from now on."""
        self._held.update(tps)
        self.locked.difference_update(self._held)

    def release(self, tps: Iterable[TopicPartition]) -> list[tuple[Link, Ask]]:
        """Stop owning these queues; return the requests that give locks back, each with its connection."""
        back = []
        for tp in tps:
            self._held.discard(tp)
            self.lost.discard(tp)
            self.returned.discard(tp)
            self.locked.discard(tp)
            link = self._routes.link(tp.broker)
            if self._broker(tp.broker).locked.pop(tp, None) is not None and link is not None and link.is_up:
                back.append((link, self._asks.unlock([tp])))
        return back

    def leave(self) -> list[tuple[Link, Ask]]:
        return [(link, self._asks.leave()) for link in self._routes.brokers().values() if link.is_up]

    def may_go_on(self, tp: TopicPartition) -> bool:
        """Whether this member has the queue's lock on the present connection."""
        link = self._routes.link(tp.broker)
        broker = self._broker(tp.broker)
        if link is None or not link.is_up or link.connection != broker.connection:
            return False
        return broker.locked.get(tp, 0.0) > time.monotonic() and tp not in self.lost

    def is_orphaned(self, tp: TopicPartition) -> bool:
        """Whether name servers know no master of the queue and this member had its lock: then no other can take it."""
        link = self._routes.link(tp.broker)
        is_away = tp.broker in self._routes.masterless and (link is None or not link.is_up)
        return is_away and tp in self._held and tp not in self.lost and tp in self._broker(tp.broker).locked

    def is_known(self, broker: str) -> bool:
        """Whether the broker answered a heartbeat on the present connection."""
        link = self._routes.link(broker)
        return link is not None and link.is_up and link.connection == self._broker(broker).connection

    def _broker(self, name: str) -> _Broker:
        return self._brokers.setdefault(name, _Broker())

    def changed(self) -> None:
        """Request the members at once: a broker reported that members joined or left."""
        for broker in self._brokers.values():
            broker.heartbeat_at_s = 0.0

    def targets(self, topics: Sequence[str]) -> frozenset[TopicPartition] | None:
        """The queues assigned to this member; None while no broker has reported the members."""
        known = [broker.members for name, broker in self._brokers.items() if self.is_known(name)]
        members = sorted(frozenset().union(*known))
        if self._asks.client_id not in members:
            return None
        computed_from = (topics, members, self._routes.changes)
        if computed_from != self._computed_from:
            shares = [self._share(self._routes.queues(topic), members, self._asks.client_id) for topic in topics]
            self._computed_from, self._targets = computed_from, frozenset().union(*shares)
        return self._targets

    def keep(self, wanted: Iterable[TopicPartition]) -> None:
        """Send the heartbeats, lock renewals and requests for locks on `wanted` that are due."""
        now_s = time.monotonic()
        links = self._routes.brokers()
        for name in set(self._brokers) - set(links):
            del self._brokers[name]
        missing = set() if self._held.issuperset(wanted) else set(wanted) - self._held - self.locked
        for name, link in links.items():
            broker = self._broker(name)
            if not link.is_up:
                continue
            if broker.greeted != link.connection:
                broker.greeted = link.connection
                broker.locked = {}
                self.locked = {tp for tp in self.locked if tp.broker != name}
                broker.heartbeat_at_s = 0.0
            if now_s >= broker.heartbeat_at_s:
                broker.heartbeat_at_s = now_s + HEARTBEAT_S
                self._beat(broker, link)
            if broker.connection != link.connection:
                continue
            if now_s >= broker.renew_at_s and (ours := {tp for tp in self._held if tp.broker == name}):
                broker.renew_at_s = now_s + LOCK_RENEW_S
                self._lock(broker, link, ours)
            settled = not broker.is_back or now_s - broker.known_since_s >= RETURN_S
            if settled and now_s >= broker.retry_at_s and (new := {tp for tp in missing if tp.broker == name}):
                broker.retry_at_s = now_s + LOCK_RETRY_S
                self._lock(broker, link, new)

    def _beat(self, broker: _Broker, link: Link) -> None:
        connection = link.connection

        def beaten(frame: Frame | None) -> None:
            if frame is None:
                return
            if frame.code != Code.SUCCESS:
                self.refusal = refusal(frame, link.address)
                return
            self.refusal = None
            if broker.connection != connection:
                broker.is_back = broker.connection > 0
                broker.connection, broker.known_since_s = connection, time.monotonic()
                broker.renew_at_s = broker.retry_at_s = 0.0

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == Code.SUCCESS:
                members = read_members(frame)
                broker.members = frozenset(members)
                has_twin = members.count(self._asks.client_id) > 1
                broker.twin_since_s = (broker.twin_since_s or time.monotonic()) if has_twin else None

        link.ask(self._asks.heartbeat(self._subscriptions), beaten)
        link.ask(self._asks.members(), answered)

    @property
    def has_twin(self) -> bool:
        """Whether another process has the same client id, and with it all locks of this one."""
        since = [broker.twin_since_s for broker in self._brokers.values() if broker.twin_since_s is not None]
        return bool(since) and time.monotonic() - min(since) >= TWIN_S

    def _lock(self, broker: _Broker, link: Link, tps: set[TopicPartition]) -> None:
        connection, good_until_s = link.connection, time.monotonic() + LOCK_GOOD_S

        def answered(frame: Frame | None) -> None:
            if frame is None or frame.code != Code.SUCCESS or link.connection != connection:
                return
            got = self._asks.read_locked(tps, frame)
            for tp in got:
                if tp not in self._held:
                    self.locked.add(tp)
                elif broker.locked.get(tp, 0.0) < time.monotonic():
                    self.returned.add(tp)
                broker.locked[tp] = good_until_s
            for tp in tps - got:
                broker.locked.pop(tp, None)
                if tp in self._held:
                    self.lost.add(tp)

        link.ask(self._asks.lock(tps), answered)


ASK_TIMEOUT_S = 2.0
BROKER_HINT = "the address is the one that the broker tells the name server: check its brokerIP1 and listenPort"
_TWIN = "another process has this one's client id, so both read every queue: give them other hostnames or state.dir"


class RocketMqCluster:
    """Connections to name servers and brokers, which know this place by the client id, also after a restart.

    Raises:
        ConfigError: A certificate cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        client_id: str,
        topics: Collection[str],
        take_request: Callable[[Frame], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self.asks = Asks(client_id, settings.group, settings.namespace or "")
        self.network = Network(sign_of(settings), tls_of(settings), take_request)
        self.routes = Routes(self.network, self.asks, (settings.name_servers or "").split(","), list(topics))
        self.brokers = Brokers(self.network, self.routes.link)
        self._until_s = 0.0

    def queues(self) -> list[TopicPartition]:
        """All queues of the source's topics."""
        return [tp for topic in self._settings.topics for tp in self.routes.queues(topic)]

    def fetcher(self) -> QueueFetcher:
        """A reader of single messages, with connections of its own; the caller closes it."""
        sign, tls = sign_of(self._settings), tls_of(self._settings)
        return QueueFetcher(self.asks, sign, tls, lambda: self.routes.addresses)

    def await_routes(self) -> None:
        """Wait until name servers know all topics of the source; `start_timeout` begins now. Raises like `join`."""
        settings, missing = self._settings, list(self._settings.topics)
        self._until_s = time.monotonic() + settings.start_timeout_ms / 1000
        while True:
            left_s = self._left_s
            try:
                missing, reason = self.routes.find(missing, min(ASK_TIMEOUT_S, max(1.0, left_s))), ""
            except NoAnswerError as error:
                reason = str(error)
            except RefusedError as error:
                reason = unless_refused(error)
            if not missing:
                return
            if left_s <= 0:
                what = "could not be reached" if reason else f"do not know the topic {', '.join(missing)}"
                hint = "create the topic, start its broker, or correct source.rocketmq.topics"
                if reason:
                    hint = "check source.rocketmq.name_servers, and that a name server runs and is reachable from here"
                raise self._late(f"the name servers at {settings.name_servers} {what}", reason, hint)
            self.network.turn(0.1)

    @property
    def _left_s(self) -> float:
        return self._until_s - time.monotonic()

    def _late(self, what: str, reason: str, hint: str) -> UnavailableError:
        """The error of a start that took longer than `start_timeout`."""
        waited = f"for {self._settings.start_timeout_ms / 1000:g} s (source.rocketmq.start_timeout)"
        return UnavailableError(f"RocketMQ: {what} {waited}{': ' if reason else ''}{reason}", hint=hint)

    def _silence(self) -> str:
        """Why no broker answers."""
        return "; ".join(f"{link.address}: {link.problem or 'no answer'}" for link in self.routes.brokers().values())

    def check_filter(self, links: Sequence[Link], subscription: Subscription) -> None:
        """Raise `ConfigError` if one of these brokers cannot filter so; silent ones refuse each pull later."""
        check = MemberAsks(self.asks).check(subscription)
        answers = self.network.ask_all([(link, check) for link in links], ASK_TIMEOUT_S)
        for link, frame in zip(links, answers, strict=True):
            if frame is not None and frame.code != Code.SUCCESS:
                raise ConfigError(
                    f"RocketMQ cannot filter by source.rocketmq.sql: {refusal(frame, link.address)}",
                    hint="correct source.rocketmq.sql, or set enablePropertyFilter=true on the brokers",
                )


def unless_refused(error: RefusedError) -> str:
    """The error's text; raises `CredentialsError` if rights are missing."""
    if is_refusal(error):
        raise refused(error)
    return str(error)


class RemotingCluster(RocketMqCluster):
    """The cluster of a member that pulls, filtered by the tags `a || b` of `expression`, `*`, or the SQL expression."""

    def __init__(
        self, settings: Settings, client_id: str, expression: str, take_request: Callable[[Frame], None]
    ) -> None:
        kind, retry = "SQL92" if settings.sql else "TAG", Asks(client_id, settings.group).retry_topic
        self.subscriptions = {topic: Subscription(topic, settings.sql or expression, kind) for topic in settings.topics}
        self.subscriptions[retry] = Subscription(retry)
        super().__init__(settings, client_id, self.subscriptions, take_request)
        self.members = Members(self.routes, self.asks, SHARES[settings.share], self.subscriptions.values())

    def join(self, waiting: Callable[[str], None]) -> None:
        """Find the topics, and become a member at the first broker that answers; the others' queues are taken later.

        Raises:
            UnavailableError: No name server or broker answers within the start-up time, or a topic is unknown.
            CredentialsError: A server refuses the credentials.
            ConfigError: A broker cannot filter by `source.rocketmq.sql`.
        """
        settings, routes = self._settings, self.routes
        waiting(f"the name servers at {settings.name_servers} to report the topic {', '.join(settings.topics)}")
        self.await_routes()
        where = ", ".join(routes.addresses.values())
        masterless = f"a master of {', '.join(sorted(routes.masterless))}, of which name servers know only slaves"
        waiting(f"a broker at {where}" if where else masterless)
        while not any(self.members.is_known(broker) for broker in routes.addresses):
            routes.refresh()
            self.members.keep(())
            self.network.turn(0.02)
            if self.members.refusal is not None:
                unless_refused(self.members.refusal)
            if self._left_s <= 0:
                raise self._late("no broker could be reached", self._silence() or masterless, BROKER_HINT)
        if settings.sql:
            links = [link for link in routes.brokers().values() if link.is_up]
            self.check_filter(links, self.subscriptions[settings.topics[0]])

    def await_start(self, begin: Callable[[], Collection[str]], waiting: Callable[[str], None]) -> None:
        """Wait until `begin` returns no silent broker: a commit at any decides for all. Raises `UnavailableError`."""
        while silent := ", ".join(sorted(begin())):
            waiting(f"the broker {silent}")
            if self._left_s <= 0:
                what = f"{silent} did not report whether the group is new, so source.rocketmq.start cannot be applied"
                hint = "start it when all brokers answer, or set source.rocketmq.start: earliest"
                raise self._late(what, "", hint)
            self.network.turn(0.1)
            self.routes.refresh()

    def link(self, tp: TopicPartition) -> Link | None:
        """The connection of a queue, None while this member does not have its lock."""
        return self.routes.link(tp.broker) if self.members.may_go_on(tp) else None

    def connection(self, tp: TopicPartition) -> int:
        """The number of the connection to a queue's broker, 0 if there is none."""
        link = self.routes.link(tp.broker)
        return link.connection if link is not None and link.is_up else 0

    def place(self, tp: TopicPartition, suggested: str) -> Node | None:
        """The node from which a queue is read: its master, or a slave if the master suggests it or is dead."""
        link = self.link(tp)
        if link is None and not self.members.is_orphaned(tp):
            return None
        slave = self.routes.slave(tp.broker, suggested) if link is None or suggested != MASTER else None
        if slave is not None and (slave.is_up or link is None):
            return Node(slave, is_slave=True)
        return Node(link) if link else None

    def problems(self, refused: Mapping[TopicPartition, Frame]) -> dict[str, str]:
        """Present problems with servers, membership, and queues that are refused: a key, and a sentence or no text."""
        problems = {"name servers": self.routes.problem}
        for name, link in self.routes.brokers().items():
            refusals = [f"{tp}: {frame.remark}" for tp, frame in refused.items() if tp.broker == name]
            problems[name] = f"{link.address}: {link.problem}" if link.problem else min(refusals, default="")
        problems["group"] = str(self.members.refusal or (_TWIN if self.members.has_twin else ""))
        return problems

    def unlock(self, tps: Iterable[TopicPartition]) -> None:
        for link, ask in self.members.release(tps):
            link.tell(ask)

    def leave(self, tps: Iterable[TopicPartition]) -> None:
        """Unlock these queues, and leave the group."""
        self.network.ask_all(self.members.release(tps) + self.members.leave(), ASK_TIMEOUT_S)
