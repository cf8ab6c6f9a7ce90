"""The cluster of `client: native` on Sidecar's own connections: topics, brokers, and where a group starts.

librocketmq does not report a missing topic, decides itself where a new group starts, and continues at its offset in a
topic that was recreated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sidecar.config.source.rocketmq import RocketMqSource as RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.base import POPPED
from sidecar.sources.rocketmq.config import sign_of
from sidecar.sources.rocketmq.native.marks import Marks, mark_at
from sidecar.sources.rocketmq.native.rewinds import Rewinds
from sidecar.sources.rocketmq.remoting.brokers import Brokers
from sidecar.sources.rocketmq.remoting.joining import BROKER_HINT, await_routes, unavailable, unless_refused
from sidecar.sources.rocketmq.remoting.pulls.popped import Popped
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.network import Ask, Network, NoAnswerError, RefusedError
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription, commit_waves, read_offset

ASK_AGAIN_S = 0.5


class NativeCluster:
    """Asks name servers and brokers."""

    def __init__(self, settings: RocketMqSettings, client_id: str) -> None:
        assert settings.name_servers is not None
        self._settings = settings
        self.asks = Asks(client_id, settings.group, settings.namespace or "")
        self._network = Network(sign_of(settings), None, lambda frame: None)
        self._ask_at_s = 0.0
        self._routes = Routes(self._network, self.asks, settings.name_servers.split(","), settings.topics)
        self._brokers = Brokers(self._network, self.asks, self._routes.link)
        self.marks = Marks(self.asks, self._routes.link)
        self.rewinds = Rewinds(self.asks, self._brokers, self.marks)
        self._popped = Popped(self.asks, self._routes, settings.topics)
        self._names: dict[str, str] = {}
        """Names of brokers, by their addresses in `_named_of`."""
        self._named_of: Mapping[str, str] = {}

    def open(self) -> None:
        """Find the topics, and commit the start of a new group.

        Raises:
            UnavailableError: Servers cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
        await_routes(self._settings, self._network, self._routes, until_s)
        while (problem := self._begin()) and time.monotonic() < until_s:
            self._network.turn(0.2)
        if problem:
            raise unavailable(self._settings, "no broker could be asked where the group stands", problem, BROKER_HINT)

    # Start of a new group

    @property
    def queues(self) -> list[TopicPartition]:
        """All queues of the topics."""
        return [tp for topic in self._settings.topics for tp in self._routes.queues(topic)]

    def _begin(self) -> str:
        """Commit the start of a group without commits; return the problem, or an empty text.

        A broker that is down delays nothing: its queues are read from the offset that it reports later.
        """
        try:
            answers = self._ask([(tp, self.asks.committed(tp)) for tp in self.queues])
            committed = {tp: read_offset(frame) for tp, frame in answers.items() if frame.code == Code.SUCCESS}
            if committed:
                self._note(committed)
                return ""
            starts = self._ask([(tp, _ask_start(self.asks, tp, self._settings.start)) for tp in answers])
            for tps in commit_waves(starts):
                self._ask([(tp, self.asks.commit(tp, read_offset(starts[tp]))) for tp in tps])
        except (NoAnswerError, ProtocolError) as error:
            return str(error)
        except RefusedError as error:
            return unless_refused(error)
        return ""

    def _note(self, committed: Mapping[TopicPartition, int]) -> None:
        """Note the message before each committed offset as read."""
        asks = [
            (tp, self.asks.pull(tp, offset - 1, Subscription(tp.topic), messages_max=1))
            for tp, offset in committed.items()
            if offset > 0
        ]
        for (tp, _), frame in zip(asks, self._brokers.ask(asks), strict=True):
            mark = mark_at(committed[tp] - 1, frame) if frame is not None else None
            if mark is not None:
                self.marks.read(tp, mark)

    def _ask(self, asks: list[tuple[TopicPartition, Ask]]) -> dict[TopicPartition, Frame]:
        answers = zip(asks, self._brokers.ask(asks), strict=True)
        frames = {tp: frame for (tp, _), frame in answers if frame is not None}
        for tp, frame in frames.items():
            if frame.code not in (Code.SUCCESS, Code.QUERY_NOT_FOUND):
                raise RefusedError(frame, self._routes.addresses[tp.broker])
        if not frames:
            links = self._routes.brokers().values()
            raise NoAnswerError("; ".join(f"{link.address}: {link.problem or 'no answer'}" for link in links))
        return frames

    # While messages arrive

    def turn(self) -> None:
        """Update routes and marks, without waiting."""
        self._routes.refresh()
        self._network.turn(0)
        self.marks.ask(time.monotonic())
        self._popped.ask(time.monotonic())
        away = {name for name, link in self._routes.brokers().items() if link.problem}
        if away and time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + ASK_AGAIN_S
            self._ask_for(away)

    def _ask_for(self, away: set[str]) -> None:
        """Ask unreachable brokers for anything: a broker counts as back once it has answered."""
        links = self._routes.brokers()
        for tp in {tp.broker: tp for tp in self.queues if tp.broker in away}.values():
            if links[tp.broker].is_up:
                links[tp.broker].ask(self.asks.low(tp), lambda frame: None)

    def broker_at(self, address: str) -> str:
        """The name of the broker at an address, or the address if it is unknown."""
        if self._routes.addresses is not self._named_of:
            self._named_of = self._routes.addresses
            self._names = {known: name for name, known in self._named_of.items()}
        return self._names.get(address, address)

    @property
    def is_away(self) -> bool:
        """Whether no broker can be reached, or the name servers know none."""
        return all(link.problem for link in self._routes.brokers().values())

    def problems(self) -> Mapping[str, str]:
        """Present problems: a key, and a sentence."""
        links = self._routes.brokers().items()
        problems = {name: f"{link.address}: {link.problem}" for name, link in links if link.problem}
        others = {"name servers": self._routes.problem, POPPED: self._popped.problem}
        return problems | {key: text for key, text in others.items() if text}

    def close(self) -> None:
        """Disconnect."""
        self._network.close()


def _ask_start(asks: Asks, tp: TopicPartition, start: str | int) -> Ask:
    """The request for the offset where a new group begins to read a queue."""
    if isinstance(start, int):
        return asks.at_time(tp, start)
    return asks.low(tp) if start == "earliest" else asks.high(tp)
