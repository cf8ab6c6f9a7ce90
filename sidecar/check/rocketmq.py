"""Checks of RocketMQ: name servers, routes of topics, brokers. Joins no group, pulls no message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from sidecar.check.findings import Finding
from sidecar.config.base import address
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.dialer import Dialer
from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE
from sidecar.sources.rocketmq.config import is_refusal, sign_of, tls_of
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.network import Ask, Link, Network, RefusedError, refusal, text_of
from sidecar.sources.rocketmq.wire.requests import Asks, MemberAsks, Route, read_route

ASK_S = 4.0


def check_rocketmq(settings: RocketMqSettings) -> Iterator[Finding]:
    """Check the name servers of the file, the topics, and the brokers that have them."""
    if settings.endpoints:
        for endpoint in settings.endpoints.split(","):
            yield _endpoint(endpoint)
        return
    with closing(Network(sign_of(settings), tls_of(settings), lambda _: None)) as network:
        cluster = _RocketMqChecker(network, settings)
        yield from cluster.name_servers()
        yield from cluster.topics()
        yield from cluster.brokers()


def _endpoint(endpoint: str) -> Finding:
    subject, (host, port) = f"endpoint {endpoint}", address(endpoint, "localhost:8081")
    try:
        with Dialer(host, port).connect(time.monotonic() + ASK_S):
            return Finding(subject, "reachable; rights are not checked with client: grpc")
    except (OSError, UnicodeError) as error:
        text = text_of(error)
        return Finding(subject, text, "start the proxy, or correct source.rocketmq.endpoints", EXIT_UNAVAILABLE)


class _RocketMqChecker:
    def __init__(self, network: Network, settings: RocketMqSettings) -> None:
        self._network = network
        self._settings = settings
        self._asks = Asks("check", settings.group, settings.namespace or "")
        self._alive: Link | None = None
        self._routes: dict[str, Route] = {}

    def name_servers(self) -> Iterator[Finding]:
        links = [self._network.link(one.strip()) for one in (self._settings.name_servers or "").split(",")]
        asked = [(link, self._asks.route(self._settings.topics[0])) for link in links]
        for link, answer in zip(links, self._network.ask_all(asked, ASK_S), strict=True):
            subject = f"name server {link.address}"
            if answer is None:
                cure = "start it, or correct source.rocketmq.name_servers"
                yield Finding(subject, link.problem or "no answer", cure, EXIT_UNAVAILABLE)
            elif answer.code == Code.NOT_SUPPORTED:
                cure = "correct source.rocketmq.name_servers: the port of a name server is usually 9876"
                yield Finding(subject, "it knows no routes: a broker or a proxy, not a name server", cure, EXIT_CONFIG)
            else:
                self._alive = self._alive or link
                yield Finding(subject, "it answers")

    def topics(self) -> Iterator[Finding]:
        """Each topic's route, from the first name server that answers."""
        if self._alive is None:
            return
        topics = self._settings.topics
        answers = self._network.ask_all([(self._alive, self._asks.route(topic)) for topic in topics], ASK_S)
        for topic, answer in zip(topics, answers, strict=True):
            yield self._topic(topic, answer)

    def _topic(self, topic: str, answer: Frame | None) -> Finding:
        subject, cure = f"topic {topic}", "create the topic, start its broker, or correct source.rocketmq.topics"
        if answer is None:
            return Finding(subject, "the name server does not answer", "check its log", EXIT_UNAVAILABLE)
        if answer.code == Code.TOPIC_NOT_EXIST:
            return Finding(subject, "it does not exist, or no broker that has it is registered", cure, EXIT_UNAVAILABLE)
        if answer.code != Code.SUCCESS:
            return self._refused(subject, [refusal(answer, self._alive.address if self._alive else "")])
        try:
            route = read_route(topic, answer)
        except ProtocolError as error:
            return Finding(subject, str(error), "check the name server", EXIT_UNAVAILABLE)
        if not route.queues:
            return Finding(subject, "no readable broker has it", cure, EXIT_UNAVAILABLE)
        self._routes[topic] = route
        queues, brokers = len(route.queues), len({tp.broker for tp in route.queues})
        return Finding(subject, f"{queues} queues on {brokers} {'broker' if brokers == 1 else 'brokers'}")

    def brokers(self) -> Iterator[Finding]:
        """Each broker that has a topic: it answers a member's requests, so it judges the rights too."""
        queues = {(tp.broker, tp.topic): tp for route in self._routes.values() for tp in route.queues}
        addresses = {name: at for route in self._routes.values() for name, at in route.addresses.items()}
        links = {name: self._network.link(addresses[name]) for name, _ in sorted(queues) if name in addresses}
        asked = [(name, ask) for (name, _), tp in queues.items() if name in links for ask in self._questions(tp)]
        answers = self._network.ask_all([(links[name], ask) for name, ask in asked], ASK_S)
        for name, link in links.items():
            found = [answer for (asked_of, _), answer in zip(asked, answers, strict=True) if asked_of == name]
            topics = sorted(topic for broker, topic in queues if broker == name)
            yield self._broker(f"broker {name} at {link.address}", link, found, topics)

    def _questions(self, tp: TopicPartition) -> list[Ask]:
        """Requests that change nothing, one for each right that a member needs."""
        # An unlock needs the rights of locks and reads; it leaves a queue alone that another client has locked.
        return [self._asks.committed(tp), self._asks.high(tp), MemberAsks(self._asks).unlock([tp])]

    def _broker(self, subject: str, link: Link, answers: list[Frame | None], topics: list[str]) -> Finding:
        if None in answers:
            cure = "start it; if it runs, it must be reachable at this address, which is its brokerIP1"
            return Finding(subject, link.problem or "no answer", cure, EXIT_UNAVAILABLE)
        bad = [one for one in answers if one is not None and one.code not in (Code.SUCCESS, Code.QUERY_NOT_FOUND)]
        if bad:
            return self._refused(subject, [refusal(one, link.address) for one in bad])
        return Finding(subject, f"it answers about {', '.join(topics)} and group {self._settings.group}")

    def _refused(self, subject: str, errors: list[RefusedError]) -> Finding:
        text = "; ".join(dict.fromkeys(str(error).partition(" answered ")[2] for error in errors))
        if not any(map(is_refusal, errors)):
            return Finding(subject, text, "check the server's log", EXIT_UNAVAILABLE)
        cure = "check access_key and secret_key under source.rocketmq"
        if "permission" in text.lower():
            topics, group = ", ".join(self._settings.topics), self._settings.group
            cure = f"allow this user the actions Sub and Get on the topics {topics} and the group {group}"
        return Finding(subject, text, cure, EXIT_NO_PERMISSION)
