"""Connections to a simulated broker and its name server, on which requests and answers stay for some turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sidecar.sources.rocketmq.wire.frames import Code, Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask, Network
from tests.simulation.leased_broker import Chance
from tests.simulation.remoting_broker import ADDRESS, TOPIC, Clock, SimulatedBroker, answer_of


@dataclass(slots=True, eq=False)
class _Asked:
    ask: Ask
    answered: Any
    until_s: float
    suspended_until_s: float
    answer: Frame | None = None


def _order(one: _Asked) -> tuple[int, int]:
    return one.ask.code, int(one.ask.fields.get("queueId", 0))


class SimulatedLink:
    """A connection: requests and answers stay on their way for some turns, and overtake others of other kinds."""

    problem = ""

    def __init__(self, network: SimulatedNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._broker = network.broker if address == ADDRESS else None
        self._stops = network.broker.stops
        self.connection = 0
        self._asked: list[_Asked] = []

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""
        return self.connection > 0

    def ask(self, ask: Ask, answered: Any, timeout_s: float = 10.0) -> None:
        """See `Link.ask`."""
        if not self.is_up:
            answered(None)
            return
        now_s = self._network.clock.now_s
        suspend_s = int(ask.fields.get("suspendTimeoutMillis", 0)) / 1000
        self._asked.append(_Asked(ask, answered, now_s + timeout_s, now_s + suspend_s))

    def tell(self, ask: Ask) -> None:
        """See `Link.tell`."""
        self.ask(ask, lambda _: None)

    def check(self, now_s: float) -> None:
        """What happens of it in a turn."""
        if self._broker is not None and (not self._broker.is_up or self._stops != self._broker.stops):
            self._stops = self._broker.stops
            self.drop()
        if not self.is_up and (self._broker is None or self._broker.is_up):
            self._network.connections += 1
            self.connection, self.problem = self._network.connections, ""
        late = False
        for one in sorted(self._asked, key=_order):  # not in that of sets of names, which no seed decides
            if one not in self._asked:
                continue
            is_pull = one.ask.code == RequestCode.PULL_MESSAGE
            if one.answer is None and not (late and not is_pull):
                late |= not self._work(one, now_s) and not is_pull
            elif one.answer is not None or one.until_s <= now_s:
                self._end(one)

    def _work(self, one: _Asked, now_s: float) -> bool:
        """Whether the broker looked at it; all but pulls it takes in their order."""
        chance = self._network.chance
        if chance(0.3):
            return False
        one.answer = self._answer(one, now_s)
        if (one.answer is not None and not chance(0.3)) or one.until_s <= now_s:
            self._end(one)
        return True

    def _end(self, one: _Asked) -> None:
        self._asked.remove(one)
        one.answered(one.answer)

    def _answer(self, one: _Asked, now_s: float) -> Frame | None:
        if self._broker is None:
            is_ours = one.ask.fields["topic"] == TOPIC
            return self._network.broker.route() if is_ours else answer_of(Code.TOPIC_NOT_EXIST)
        found = self._broker.answer(one.ask)
        if found is None and one.suspended_until_s <= now_s:
            found = self._broker.answer(one.ask._replace(fields={**one.ask.fields, "suspendTimeoutMillis": "0"}))
        return found

    def drop(self) -> None:
        """The connection broke: what was asked may have been done or not."""
        self.connection, self.problem = 0, "refused"
        asked, self._asked = self._asked, []
        for one in asked:
            one.answered(None)

    def die(self) -> None:
        """Its process was killed: some of what it asked last is done all the same."""
        for one in self._asked:
            if self._network.chance(0.5):
                break
            if one.answer is None and self._broker is not None and self._broker.is_up:
                self._broker.answer(one.ask)
        self._asked = []

    def close(self) -> None:
        """Disconnect for good."""
        self.drop()


class SimulatedNetwork(Network):
    """All links; time goes on while it waits, and whatever happens in the world happens then.

    Args:
        broker: The broker.
        clock: The simulated time.
        chance: What goes wrong.
        happen: Has things happen.
        take_request: Takes what the broker says on its own.
    """

    def __init__(
        self, broker: SimulatedBroker, clock: Clock, chance: Chance, happen: Callable[[], None],
        take_request: Callable[[Frame], None],
    ) -> None:  # fmt: skip
        self.broker, self.clock, self.chance, self._happen = broker, clock, chance, happen
        self.sign = self.tls = None
        self.take_request = take_request
        self.links = {}
        self.connections = 0

    def link(self, address: str) -> Any:
        """See `Network.link`."""
        found = self.links.get(address)
        if found is None:
            found = self.links[address] = SimulatedLink(self, address)  # type: ignore[assignment]
        return found

    def turn(self, timeout_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """See `Network.turn`."""
        self.chance.crash()
        self.clock.now_s += 0.001 + timeout_s * self.chance.random.random()
        self.broker.tick()
        self._happen()
        for link in list(self.links.values()):
            link.check(self.clock.now_s)

    def die(self) -> None:
        """Its process was killed."""
        for link in self.links.values():
            link.die()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Disconnect from all."""
        for address in list(self.links):
            self.unlink(address)
