"""Checks of RocketMQ: name servers, routes of topics, brokers. Joins no group, pulls no message."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing

from sidecar.check.findings import Finding, failed
from sidecar.config.address import address
from sidecar.config.source.rocketmq import RocketMqSource
from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_UNAVAILABLE
from sidecar.sources.rocketmq.config import is_refusal, refused, sign_of, tls_of
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.dial import text_of
from sidecar.sources.rocketmq.wire.frames import Frame, ProtocolError
from sidecar.sources.rocketmq.wire.network import Link, Network, RefusedError
from sidecar.sources.rocketmq.wire.requests import Asks, Route, read_route

ASK_S = 4.0


def check_rocketmq(settings: RocketMqSource) -> Iterator[Finding]:
    """Look at the servers that the file names, the topics, and the brokers that have them."""
    if settings.endpoints:
        for endpoint in settings.endpoints.split(","):
            yield _endpoint(endpoint)
        return
    with closing(Network(sign_of(settings), tls_of(settings), lambda _: None)) as network:
        cluster = _Cluster(network, settings)
        yield from cluster.name_servers()
        yield from cluster.topics()
        yield from cluster.brokers()


def _endpoint(endpoint: str) -> Finding:
    subject, (host, port) = f"endpoint {endpoint}", address(endpoint, "localhost:8081")
    try:
        with socket.create_connection((host, port), ASK_S):
            return Finding(subject, "reachable; rights are not checked with client: grpc")
    except (OSError, UnicodeError) as error:
        text = text_of(error)
        return Finding(subject, text, "start the proxy, or correct source.rocketmq.endpoints", EXIT_UNAVAILABLE)


class _Cluster:
    def __init__(self, network: Network, settings: RocketMqSource) -> None:
        self._network = network
        self._settings = settings
        self._asks = Asks("check", settings.group, settings.namespace or "")
        self._alive: Link | None = None
        self._routes: dict[str, Route] = {}

    def name_servers(self) -> Iterator[Finding]:
        """Each name server."""
        links = [self._network.link(one.strip()) for one in (self._settings.name_servers or "").split(",")]
        asked = [(link, self._asks.route(self._settings.topics[0])) for link in links]
        for link, answer in zip(links, self._network.ask_all(asked, ASK_S), strict=True):
            subject = f"name server {link.address}"
            if answer is None:
                cure = "start it, or correct source.rocketmq.name_servers"
                yield Finding(subject, link.problem or "no answer", cure, EXIT_UNAVAILABLE)
            else:
                self._alive = self._alive or link
                yield Finding(subject, "it answers")

    def topics(self) -> Iterator[Finding]:
        """Each topic's route, as the first name server that answers has it."""
        if self._alive is None:
            return
        topics = self._settings.topics
        answers = self._network.ask_all([(self._alive, self._asks.route(topic)) for topic in topics], ASK_S)
        for topic, answer in zip(topics, answers, strict=True):
            yield self._topic(topic, answer)

    def _topic(self, topic: str, answer: Frame | None) -> Finding:
        subject, cure = f"topic {topic}", "create the topic, or correct source.rocketmq.topics"
        if answer is None:
            return Finding(subject, "the name server does not answer", "check its log", EXIT_UNAVAILABLE)
        if answer.code == Code.TOPIC_NOT_EXIST:
            return Finding(subject, "it does not exist", cure, EXIT_UNAVAILABLE)
        if answer.code != Code.SUCCESS:
            return self._refused(subject, RefusedError(answer, self._alive.address if self._alive else ""))
        try:
            route = read_route(topic, answer)
        except ProtocolError as error:
            return Finding(subject, str(error), "check the name server", EXIT_UNAVAILABLE)
        if not route.queues:
            return Finding(subject, "no broker that can be read has it", cure, EXIT_UNAVAILABLE)
        self._routes[topic] = route
        queues, brokers = len(route.queues), len({tp.broker for tp in route.queues})
        return Finding(subject, f"{queues} queues on {brokers} {'broker' if brokers == 1 else 'brokers'}")

    def brokers(self) -> Iterator[Finding]:
        """Each broker that has a topic: asked for what the group has committed, it judges the rights too."""
        queues = {tp.broker: tp for route in self._routes.values() for tp in route.queues}
        places: Mapping[str, str] = {
            name: at for route in self._routes.values() for name, at in route.addresses.items() if name in queues
        }
        links = {name: self._network.link(at) for name, at in places.items()}
        asked = [(link, self._asks.committed(queues[name])) for name, link in links.items()]
        for (name, link), answer in zip(links.items(), self._network.ask_all(asked, ASK_S), strict=True):
            yield self._broker(name, link, queues[name], answer)

    def _broker(self, name: str, link: Link, queue: TopicPartition, answer: Frame | None) -> Finding:
        subject = f"broker {name} at {link.address}"
        if answer is None:
            cure = "start it; if it runs, it must be reachable at this address, which is its brokerIP1"
            return Finding(subject, link.problem or "no answer", cure, EXIT_UNAVAILABLE)
        if answer.code not in (Code.SUCCESS, Code.QUERY_NOT_FOUND):
            return self._refused(subject, RefusedError(answer, link.address))
        return Finding(subject, f"it answers about {queue.topic} and group {self._settings.group}")

    def _refused(self, subject: str, error: RefusedError) -> Finding:
        if is_refusal(error):
            return failed(subject, refused(error))
        return Finding(subject, str(error), "check the server's log", EXIT_UNAVAILABLE)
