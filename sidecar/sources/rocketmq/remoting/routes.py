"""Routes of topics, requested from name servers, and connections to brokers and their runs. Reads no message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask, Link, Network, NoAnswerError, refusal
from sidecar.sources.rocketmq.wire.requests import Asks, Route, read_boot, read_route

REFRESH_S = 5.0
FORGET_S = 60.0
"""Time for which a broker that name servers no longer report is kept, because it may return."""


class NameServers:
    """Asks name servers."""

    def __init__(self, network: Network, asks: Asks, addresses: Sequence[str]) -> None:
        self._network = network
        self._asks = asks
        self.addresses = list(addresses)
        self._unreachable = ""
        """Why no server can be reached."""
        self._refused: dict[str, str] = {}
        """The error of the last request for a route, by topic."""
        for address in self.addresses:
            network.link(address)

    @property
    def problem(self) -> str:
        return self._unreachable or min(self._refused.values(), default="")

    def call(self, topic: str, timeout_s: float) -> Frame:
        """The answer to the request for a topic's route; raises `NoAnswerError`, or `RefusedError` if one refuses."""
        problems = []
        for link in sorted(map(self._network.link, self.addresses), key=lambda link: not link.is_up):
            try:
                return self._network.call(link, self._asks.route(topic), timeout_s, also=[Code.TOPIC_NOT_EXIST])
            except NoAnswerError as error:
                problems.append(str(error))
        raise NoAnswerError("; ".join(problems))

    def ask(self, topics: Sequence[str], answered: Callable[[str, Route], None]) -> None:
        """Request the routes of these topics without waiting; pass each route to `answered`."""
        links = [self._network.link(address) for address in self.addresses]
        up = [link for link in links if link.is_up]
        self._unreachable = (
            "" if up else "; ".join(f"{link.address}: {link.problem or 'not connected'}" for link in links)
        )
        for topic in topics if up else ():
            up[0].ask(self._asks.route(topic), partial(self._answered, topic, up[0], answered))

    def _answered(self, topic: str, link: Link, answered: Callable[[str, Route], None], frame: Frame | None) -> None:
        if frame is None:
            return
        self._refused.pop(topic, None)
        if frame.code not in (Code.SUCCESS, Code.TOPIC_NOT_EXIST):
            self._refused[topic] = str(refusal(frame, link.address))
        elif (route := self.read(topic, frame)) is not None:
            answered(topic, route)

    def read(self, topic: str, frame: Frame) -> Route | None:
        """The route in an answer, without queues if the topic is unknown; None if it cannot be read: a problem."""
        if frame.code == Code.TOPIC_NOT_EXIST:
            return Route("", {}, ())
        try:
            return read_route(topic, frame)
        except ProtocolError as error:
            self._refused[topic] = str(error)
            return None


class Routes:
    """The routes of these topics, and the connections to their brokers."""

    def __init__(self, network: Network, asks: Asks, name_servers: Sequence[str], topics: Sequence[str]) -> None:
        self._network = network
        self._name_servers = NameServers(network, asks, name_servers)
        self._topics = list(topics)
        self._routes: dict[str, Route] = {}
        self._gone_since_s: dict[tuple[str, str], float] = {}
        """The time since when the route lacks a broker, by topic and broker."""
        self._refresh_at_s = 0.0
        self.changes = 0
        """Incremented whenever a queue or an address is added or removed."""
        self.addresses: dict[str, str] = {}
        """Addresses by broker name; replaced as a whole, so that another thread may read it."""
        self._slaves: dict[str, Mapping[str, str]] = {}
        self.masterless: set[str] = set()
        """Brokers with a slave and no master, according to the name servers."""

    @property
    def problem(self) -> str:
        """The present problem with the name servers, or an empty text."""
        gone = min((topic for topic, route in self._routes.items() if not route.queues), default="")
        return self._name_servers.problem or (f"they no longer know a broker of {gone}" if gone else "")

    @property
    def cluster(self) -> str:
        return min((route.cluster for route in self._routes.values()), default="")

    def queues(self, topic: str) -> tuple[TopicPartition, ...]:
        return self._routes[topic].queues if topic in self._routes else ()

    def name_server(self) -> Link | None:
        """The connection to a name server that is up, None if there is none."""
        return next((link for link in map(self._network.link, self._name_servers.addresses) if link.is_up), None)

    def link(self, broker: str) -> Link | None:
        address = self.addresses.get(broker)
        return self._network.link(address) if address else None

    def slave(self, broker: str, number: str = "") -> Link | None:
        """The connection to the slave with this number, else to any slave."""
        slaves = self._slaves.get(broker, {})
        address = slaves.get(number) or next((slaves[other] for other in sorted(slaves)), None)
        return self._network.link(address) if address else None

    def brokers(self) -> dict[str, Link]:
        return {name: self._network.link(address) for name, address in self.addresses.items()}

    def find(self, topics: Sequence[str], timeout_s: float) -> list[str]:
        """Request the routes of these topics and wait; return the topics that no name server knows."""
        missing = []
        for topic in topics:
            frame = self._name_servers.call(topic, timeout_s)
            if frame.code == Code.TOPIC_NOT_EXIST:
                missing.append(topic)
            elif (route := self._name_servers.read(topic, frame)) is not None:
                self._merge(topic, route)
        return missing

    def refresh(self) -> None:
        """Request the routes every 5 s, without waiting; those that fail remain unchanged."""
        now_s = time.monotonic()
        if now_s < self._refresh_at_s:
            return
        self._refresh_at_s = now_s + REFRESH_S
        self._forget_gone(now_s)
        self._name_servers.ask(self._topics, self._merge)

    def _merge(self, topic: str, route: Route) -> None:
        """Keep the queues of a missing broker for a while: it went down, or the topic was deleted; pulls show which."""
        self._meet_slaves(route)
        known = self._routes.get(topic)
        if known is None:
            if not route.queues:
                return
            merged = route
        else:
            here = {tp.broker for tp in route.queues}
            for broker in {tp.broker for tp in known.queues} - here:
                self._gone_since_s.setdefault((topic, broker), time.monotonic())
            for broker in here:
                self._gone_since_s.pop((topic, broker), None)
            kept = tuple(tp for tp in known.queues if tp.broker not in here)
            addresses = {**known.addresses, **route.addresses}
            merged = Route(route.cluster or known.cluster, addresses, route.queues + kept)
        self._set(topic, merged)

    def _meet_slaves(self, route: Route) -> None:
        for name, slaves in route.slaves.items():
            for address in set(self._slaves.get(name, {}).values()) - {*slaves.values(), *route.addresses.values()}:
                self._network.unlink(address)
            self._slaves[name] = slaves
            self.masterless -= {name}
            if slaves and name not in route.addresses:
                self.masterless.add(name)

    def _forget_gone(self, now_s: float) -> None:
        for (topic, broker), since_s in list(self._gone_since_s.items()):
            if now_s - since_s > FORGET_S:
                del self._gone_since_s[topic, broker]
                route = self._routes[topic]
                queues = tuple(tp for tp in route.queues if tp.broker != broker)
                addresses = {name: address for name, address in route.addresses.items() if name != broker}
                self._set(topic, Route(route.cluster, addresses, queues))

    def _set(self, topic: str, route: Route) -> None:
        before = self._routes.get(topic)
        if before is not None and before.addresses == route.addresses and set(before.queues) == set(route.queues):
            return
        self._routes[topic] = route
        self.changes += 1
        used = {tp.broker for route in self._routes.values() for tp in route.queues}
        merged = {name: address for route in self._routes.values() for name, address in route.addresses.items()}
        addresses = {name: address for name, address in merged.items() if name in used}
        for address in set(self.addresses.values()) - set(addresses.values()) - set(self._name_servers.addresses):
            self._network.unlink(address)
        for address in addresses.values():
            self._network.link(address)
        self.addresses = addresses


PATIENCE_S = 2.0
"""Longest time that the loop waits for answers about start offsets."""


class Brokers:
    """The brokers of a group."""

    def __init__(self, network: Network, link_of: Callable[[str], Link | None]) -> None:
        self.link_of = link_of
        self._network = network
        self._boots: dict[str, tuple[int, int]] = {}
        """By broker, the connection of the answer, which never outlives a process, and the start of the process."""

    def boots(self, brokers: Iterable[str]) -> dict[str, int]:
        """The starts of the processes of these brokers, by broker: milliseconds, 0 if not reported."""
        for name in brokers:
            link, known = self.link_of(name), self._boots.get(name)
            if link is not None and known and link.is_up and known[0] == link.connection:
                continue
            self._boots.pop(name, None)  # that run may be over
            if link is not None:
                (frame,) = self._network.ask_all([(link, Ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))], PATIENCE_S)
                if frame is not None:
                    self._boots[name] = link.connection, read_boot(frame)
        return {name: stamp for name, (_, stamp) in self._boots.items()}

    def boot_of(self, broker: str, connection: int) -> int:
        """The start of the process that this connection leads to, as last asked; 0 if unknown."""
        known, stamp = self._boots.get(broker, (0, 0))
        return stamp if known == connection else 0

    def ask(self, asks: Sequence[tuple[TopicPartition, Ask]]) -> list[Frame | None]:
        """The answers, in the order of the requests: None without an answer, and all None if a queue has no master."""
        places = [(link, ask) for tp, ask in asks if (link := self.link_of(tp.broker)) is not None]
        if len(places) < len(asks):
            return [None] * len(asks)
        return self._network.ask_all(places, PATIENCE_S)
