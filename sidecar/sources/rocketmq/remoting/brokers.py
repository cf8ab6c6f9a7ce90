"""Requests to several brokers at once, and the present run of each broker's process. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.frames import Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask, Link, Network
from sidecar.sources.rocketmq.wire.requests import Asks, read_boot

PATIENCE_S = 2.0
"""Longest time that the loop waits for answers about start offsets."""

LinkOf = Callable[[str], Link | None]


class Boot(NamedTuple):
    """A run of a broker's process."""

    connection: int
    """Connection of the answer: no connection outlives its process."""
    stamp: int
    """See `read_boot`."""


class Brokers:
    """The brokers of a group.

    Args:
        link_of: The connection to a broker.
    """

    def __init__(self, network: Network, asks: Asks, link_of: LinkOf) -> None:
        self.link_of = link_of
        self._network = network
        self._asks = asks
        self._boots: dict[str, Boot] = {}

    def boots(self, brokers: Iterable[str]) -> dict[str, Boot]:
        """The present runs of these brokers, as far as they report them."""
        for name in brokers:
            link, known = self.link_of(name), self._boots.get(name)
            if link is not None and known and link.is_up and known.connection == link.connection:
                continue
            self._boots.pop(name, None)  # that run may be over
            if link is not None:
                (frame,) = self._network.ask_all([(link, Ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))], PATIENCE_S)
                if frame is not None:
                    self._boots[name] = Boot(link.connection, read_boot(frame))
        return self._boots

    def ask(self, asks: Sequence[tuple[TopicPartition, Ask]]) -> list[Frame | None]:
        """The answers, in the order of the requests: None without an answer, and all None if a queue has no master."""
        places = [(link, ask) for tp, ask in asks if (link := self.link_of(tp.broker)) is not None]
        if len(places) < len(asks):
            return [None] * len(asks)
        return self._network.ask_all(places, PATIENCE_S)
