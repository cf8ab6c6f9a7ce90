"""Startup on RocketMQ: waits until topics are known and a broker accepts this member, and reports what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.errors import ConfigError, UnavailableError
from sidecar.sources.rocketmq.config import is_refusal, refused
from sidecar.sources.rocketmq.remoting.members import Members
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.wire.frames import Code
from sidecar.sources.rocketmq.wire.network import Link, Network, NoAnswerError, RefusedError
from sidecar.sources.rocketmq.wire.requests import Asks, MemberAsks, Subscription

ASK_TIMEOUT_S = 2.0
BROKER_HINT = "the address is the one that the broker tells the name server: check its brokerIP1 and listenPort"


class Joining:
    """A startup; `start_timeout` begins when it is created.

    Args:
        routes: Queues and brokers of the topics.
        waiting: Takes the servers that startup waits for, as text.
    """

    def __init__(
        self,
        settings: Settings,
        network: Network,
        asks: Asks,
        routes: Routes,
        members: Members,
        waiting: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._network = network
        self._asks = asks
        self._routes = routes
        self._members = members
        self._waiting = waiting
        self._until_s = time.monotonic() + settings.start_timeout_ms / 1000

    def await_routes(self) -> None:
        topics, servers = ", ".join(self._settings.topics), self._settings.name_servers
        self._waiting(f"the name servers at {servers} to report the topic {topics}")
        await_routes(self._settings, self._network, self._routes, self._until_s)

    def await_brokers(self) -> None:
        """Wait for the first broker that answers; the others' queues are taken when these answer.

        Raises:
            UnavailableError: No broker answers within the start-up time.
            CredentialsError: A broker refuses the credentials.
        """
        where = ", ".join(self._routes.addresses.values())
        masterless = f"a master of {', '.join(sorted(self._routes.masterless))}, of which name servers know only slaves"
        self._waiting(f"a broker at {where}" if where else masterless)
        while not any(self._members.is_known(broker) for broker in self._routes.addresses):
            self._routes.refresh()
            self._members.keep(())
            self._network.turn(0.02)
            if self._members.refusal is not None:
                unless_refused(self._members.refusal)
            if self._left_s <= 0:
                links = self._routes.brokers().values()
                reason = "; ".join(f"{link.address}: {link.problem or 'no answer'}" for link in links)
                raise unavailable(self._settings, "no broker could be reached", reason or masterless, BROKER_HINT)

    def check_filter(self, subscription: Subscription) -> None:
        """Check the filter at the reachable brokers; others that cannot apply it refuse each pull later.

        Raises:
            ConfigError: A broker cannot filter by this subscription.
        """
        links = [link for link in self._routes.brokers().values() if link.is_up]
        check_filter(self._network, self._asks, links, subscription)

    def await_start(self, begin: Callable[[], Collection[str]]) -> None:
        """Wait until all brokers have reported where a new group begins: a commit at any of them decides for all.

        Args:
            begin: Asks the brokers, and returns those that did not answer.

        Raises:
            UnavailableError: A broker is silent for the whole start-up time.
        """
        while silent := begin():
            self._waiting(f"the broker {', '.join(sorted(silent))}")
            if self._left_s <= 0:
                raise unavailable(
                    self._settings,
                    f"{', '.join(sorted(silent))} did not report whether the group is new, "
                    "so source.rocketmq.start cannot be applied",
                    "",
                    "start it when all brokers answer, or set source.rocketmq.start: earliest",
                )
            self._network.turn(0.1)
            self._routes.refresh()

    @property
    def _left_s(self) -> float:
        return self._until_s - time.monotonic()


def check_filter(network: Network, asks: Asks, links: Sequence[Link], subscription: Subscription) -> None:
    """Check a filter at these brokers; those that do not answer are passed over.

    Raises:
        ConfigError: A broker cannot filter by this subscription.
    """
    check = MemberAsks(asks).check(subscription)
    answers = network.ask_all([(link, check) for link in links], ASK_TIMEOUT_S)
    for link, frame in zip(links, answers, strict=True):
        if frame is not None and frame.code != Code.SUCCESS:
            raise ConfigError(
                f"RocketMQ cannot filter by source.rocketmq.sql: {RefusedError(frame, link.address)}",
                hint="correct source.rocketmq.sql, or set enablePropertyFilter=true on the brokers",
            )


def await_routes(settings: Settings, network: Network, routes: Routes, until_s: float) -> None:
    """Wait until name servers know all topics.

    Raises:
        UnavailableError: They do not until `until_s`, monotonic.
        CredentialsError: They refuse the credentials.
    """
    missing, reason = list(settings.topics), ""
    while True:
        left_s = until_s - time.monotonic()
        try:
            missing, reason = routes.find(missing, min(ASK_TIMEOUT_S, max(1.0, left_s))), ""
        except NoAnswerError as error:
            reason = str(error)
        except RefusedError as error:
            reason = unless_refused(error)
        if not missing:
            return
        if left_s <= 0:
            reason_why = "could not be reached" if reason else f"do not know the topic {', '.join(missing)}"
            raise unavailable(
                settings,
                f"the name servers at {settings.name_servers} {reason_why}",
                reason,
                "check source.rocketmq.name_servers, and that a name server runs and is reachable from here" if reason
                else "create the topic, start its broker, or correct source.rocketmq.topics",
            )  # fmt: skip
        network.turn(0.1)


def unavailable(settings: Settings, what: str, reason: str, hint: str) -> UnavailableError:
    """The error of a startup that took longer than `start_timeout`."""
    waited = f"for {settings.start_timeout_ms / 1000:g} s (source.rocketmq.start_timeout)"
    return UnavailableError(f"RocketMQ: {what} {waited}{': ' if reason else ''}{reason}", hint=hint)


def unless_refused(error: RefusedError) -> str:
    """The error's text, unless rights are missing.

    Raises:
        CredentialsError: Rights are missing.
    """
    if is_refusal(error):
        raise refused(error)
    return str(error)
