"""Requests of an operator's command to a cluster, answered or failed in words. Joins no group, and decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from typing import Self

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import ConfigError, SidecarError, UnavailableError
from sidecar.sources.rocketmq.config import is_refusal, refused
from sidecar.sources.rocketmq.remoting.cluster import RocketMqCluster
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.network import Ask, Link, NoAnswerError, RefusedError, refusal
from sidecar.sources.rocketmq.wire.requests import MemberAsks, read_members

START_MS = 10_000
"""Longest wait for name servers: a person waits."""
PATIENCE_S = 10.0
NO_MEMBERS = 1
"""A broker's answer where a group has no member: its general error."""


class Inquiry(RocketMqCluster):
    """Asks name servers and brokers, between `with` and its end.

    Args:
        topics: Topics whose routes must be known; those of the source if it is empty.
        beside: Topics that need not exist.
        start_ms: Longest wait for name servers, if that of the source is longer.

    Raises:
        ConfigError: The client reaches no name server, or a certificate cannot be used.
        UnavailableError: No name server answers, or a topic is unknown.
        CredentialsError: A name server refuses the credentials.
    """

    def __init__(
        self, settings: Settings, topics: Sequence[str] = (), beside: Sequence[str] = (), *, start_ms: int = START_MS
    ) -> None:
        if settings.name_servers is None:
            raise ConfigError(
                "this command asks RocketMQ's name servers and brokers, and client: grpc has only proxies",
                hint="run it with a copy of the file that has client: remoting and name_servers",
            )
        asked = list(topics or settings.topics)
        most = {"start_timeout_ms": min(settings.start_timeout_ms, start_ms), "topics": asked}
        super().__init__(settings.model_copy(update=most), "sidecar-command", [*asked, *beside])
        self._beside = beside

    def __enter__(self) -> Self:
        try:
            self.await_routes()
            with suppress(NoAnswerError, RefusedError):
                self.routes.find(self._beside, PATIENCE_S)
        except BaseException:
            self.network.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.network.close()

    def queues(self) -> list[TopicPartition]:
        """All queues of the topics, in order."""
        return sorted([*super().queues(), *(tp for topic in self._beside for tp in self.routes.queues(topic))])

    def members(self) -> list[str]:
        """The client id of each member of the group, whichever broker knows it; raises like `answers`."""
        ask = MemberAsks(self.asks).members()
        answers = self.answers([(broker, ask) for broker in self.routes.addresses], also=[NO_MEMBERS])
        return sorted({member for frame in answers if frame.code == Code.SUCCESS for member in read_members(frame)})

    def link(self, broker: str) -> Link:
        """The connection to a broker's master; raises `UnavailableError` if name servers know none."""
        link = self.routes.link(broker)
        if link is None:
            raise UnavailableError(f"RocketMQ: the name servers know no master of {broker}", hint="start it")
        return link

    def answers(self, asks: Sequence[tuple[str, Ask]], also: Collection[int] = ()) -> list[Frame]:
        """The answers to requests to brokers, in their order; each has code 0 or one of `also`.

        Raises:
            UnavailableError: A broker does not answer within 10 s, or answers with an error.
            CredentialsError: A broker refuses.
        """
        links = [(self.link(broker), ask) for broker, ask in asks]
        frames = self.network.ask_all(links, PATIENCE_S)
        for (link, _), frame in zip(links, frames, strict=True):
            if problem := problem_of(link, frame, also):
                raise problem
        return [frame for frame in frames if frame is not None]

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        with closing(self.fetcher()) as fetcher:
            return fetcher.fetch(tp, offset)


def problem_of(link: Link, frame: Frame | None, also: Collection[int] = ()) -> SidecarError | None:
    """The error in a broker's answer; None if its code is 0 or one of `also`."""
    if frame is None:
        reason = link.problem or "no answer came in time"
        hint = "start it; if it runs, it must be reachable at this address, which is its brokerIP1"
        return UnavailableError(f"RocketMQ's broker at {link.address}: {reason}", hint=hint)
    if frame.code == Code.SUCCESS or frame.code in also:
        return None
    error = refusal(frame, link.address)
    if is_refusal(error):
        return refused(error)
    creates = "a daemon's first start creates the group, and so does `mqadmin updateSubGroup`"
    hint = creates if frame.code == Code.GROUP_NOT_EXIST else "check the broker's log"
    return UnavailableError(f"RocketMQ: {error}", hint=hint)
