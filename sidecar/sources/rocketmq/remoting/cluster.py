"""The cluster as one client sees it: connections, routes, start, membership, the node of each queue. Reads nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.rocketmq.config import is_refusal, refused, sign_of, tls_of
from sidecar.sources.rocketmq.remoting.fetch import QueueFetcher
from sidecar.sources.rocketmq.remoting.members import SHARES, Members
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.routes import Brokers, Routes
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.network import Link, Network, NoAnswerError, RefusedError
from sidecar.sources.rocketmq.wire.requests import MASTER, Asks, MemberAsks, Subscription

ASK_TIMEOUT_S = 2.0
BROKER_HINT = "the address is the one that the broker tells the name server: check its brokerIP1 and listenPort"
_TWIN = "another process has this one's client id, so both read every queue: give them other hostnames or state.dir"


class RocketMqCluster:
    """Connections to name servers and brokers.

    Args:
        client_id: Identifies this place, also after a restart: it owns the brokers' locks.

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
        self.brokers = Brokers(self.network, self.asks, self.routes.link)
        self._until_s = 0.0

    def queues(self) -> list[TopicPartition]:
        """All queues of the source's topics."""
        return [tp for topic in self._settings.topics for tp in self.routes.queues(topic)]

    def fetcher(self) -> QueueFetcher:
        """A reader of single messages, with connections of its own; the caller closes it."""
        sign, tls = sign_of(self._settings), tls_of(self._settings)
        return QueueFetcher(self.asks, sign, tls, lambda: self.routes.addresses)

    def await_routes(self) -> None:
        """Wait until name servers know all topics of the source; `start_timeout` begins now.

        Raises:
            UnavailableError: They do not within the start-up time.
            CredentialsError: They refuse the credentials.
        """
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
        """Check a filter at these brokers; those that do not answer are passed over, and refuse each pull later.

        Raises:
            ConfigError: A broker cannot filter by this subscription.
        """
        check = MemberAsks(self.asks).check(subscription)
        answers = self.network.ask_all([(link, check) for link in links], ASK_TIMEOUT_S)
        for link, frame in zip(links, answers, strict=True):
            if frame is not None and frame.code != Code.SUCCESS:
                raise ConfigError(
                    f"RocketMQ cannot filter by source.rocketmq.sql: {RefusedError(frame, link.address)}",
                    hint="correct source.rocketmq.sql, or set enablePropertyFilter=true on the brokers",
                )


def unless_refused(error: RefusedError) -> str:
    """The error's text, unless rights are missing.

    Raises:
        CredentialsError: Rights are missing.
    """
    if is_refusal(error):
        raise refused(error)
    return str(error)


class RemotingCluster(RocketMqCluster):
    """The cluster of a member that pulls.

    Args:
        expression: The tags that brokers filter by, `a || b`, or `*`; ignored if there is an SQL expression.

    Attributes:
        subscriptions: By topic, the retry topic among them.
    """

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

        Args:
            waiting: Takes the servers that the start waits for, as text.

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
        """Wait until all brokers have reported where a new group begins: a commit at any of them decides for all.

        Args:
            begin: Asks the brokers, and returns those that did not answer.

        Raises:
            UnavailableError: A broker is silent for the whole start-up time.
        """
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
