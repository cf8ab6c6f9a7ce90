"""The cluster as one member sees it: connections, routes, membership, and the node of each queue. Reads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.config import sign_of, tls_of
from sidecar.sources.rocketmq.remoting.joining import ASK_TIMEOUT_S
from sidecar.sources.rocketmq.remoting.members import SHARES, Members
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.network import Link, Network
from sidecar.sources.rocketmq.wire.requests import MASTER, Asks, Subscription

_TWIN = "another process has this one's client id, so both read every queue: give them other hostnames or state.dir"


class RemotingCluster:
    """The cluster.

    Args:
        client_id: Identifies this place, also after a restart: it owns the brokers' locks.
        expression: The tags that brokers filter by, `a || b`, or `*`; ignored if there is an SQL expression.
        take_request: Called with requests that brokers send.

    Attributes:
        asks: Makes the requests.
        subscriptions: By topic, the retry topic among them.
        network: All connections.
        routes: Queues and brokers of the topics.
        members: Membership in the group.
    """

    def __init__(
        self, settings: Settings, client_id: str, expression: str, take_request: Callable[[Frame], None]
    ) -> None:
        self.asks = asks = Asks(client_id, settings.group, settings.namespace or "")
        kind = "SQL92" if settings.sql else "TAG"
        self.subscriptions = {topic: Subscription(topic, settings.sql or expression, kind) for topic in settings.topics}
        self.subscriptions[asks.retry_topic] = Subscription(asks.retry_topic)
        self.network = Network(sign_of(settings), tls_of(settings), take_request)
        name_servers = (settings.name_servers or "").split(",")
        self.routes = Routes(self.network, asks, name_servers, list(self.subscriptions))
        self.members = Members(self.routes, asks, SHARES[settings.share], self.subscriptions.values())

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
        """Present problems with servers and membership: a key, and a sentence for an operator; empty if there is none.

        Args:
            refused: The brokers' last answers for queues that they refuse.
        """
        problems = {"name servers": self.routes.problem}
        for name, link in self.routes.brokers().items():
            refusals = [f"{tp}: {frame.remark}" for tp, frame in refused.items() if tp.broker == name]
            problems[name] = f"{link.address}: {link.problem}" if link.problem else min(refusals, default="")
        problems["group"] = str(self.members.refusal or (_TWIN if self.members.has_twin else ""))
        return problems

    def unlock(self, tps: Iterable[TopicPartition]) -> None:
        """Unlock these queues."""
        for link, ask in self.members.release(tps):
            link.tell(ask)

    def leave(self, tps: Iterable[TopicPartition]) -> None:
        """Unlock these queues, and leave the group."""
        self.network.ask_all(self.members.release(tps) + self.members.leave(), ASK_TIMEOUT_S)
