"""Routes and name servers: what stays, and what is told of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sidecar.sources.rocketmq.remoting.routes import NameServers, Routes
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.network import Ask, NoAnswerError
from sidecar.sources.rocketmq.wire.requests import Asks

GOOD = (
    b'{"brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": "h:1"}}],'
    b' "queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": 1}]}'
)


class NameServer:
    """Is connected, and answers by topic: code and body."""

    address = "ns:9876"
    is_up = True
    problem = ""

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        self.answers = answers

    def link(self, _: str) -> NameServer:
        return self

    def unlink(self, _: str) -> None:
        pass

    def ask(self, ask: Ask, answered: Callable[[Frame | None], None]) -> None:
        code, body = self.answers[ask.fields["topic"]]
        answered(Frame(code, 1, 1, "no permission", {}, body))


def test_a_refusal_is_told_until_the_topic_is_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that is refused, or that cannot be read, is a problem, whatever is answered of other topics."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.routes.REFRESH_S", 0.0)
    server = NameServer({"good": (0, GOOD), "bad": (16, b"")})
    routes = Routes(server, Asks("me", "g"), ["ns:9876"], ["bad", "good"])  # type: ignore[arg-type]
    routes.refresh()
    assert "no permission (code 16)" in routes.problem
    server.answers["bad"] = (0, b"no route")
    routes.refresh()
    assert "no JSON" in routes.problem
    server.answers["bad"] = (0, GOOD)
    routes.refresh()
    assert routes.problem == ""


def test_all_name_servers_that_do_not_answer_are_told() -> None:
    """Each with its own reason."""

    class Network:
        def link(self, address: str) -> SimpleNamespace:
            return SimpleNamespace(address=address, is_up=False)

        def call(self, link: SimpleNamespace, *_: object, **__: object) -> Frame:
            raise NoAnswerError(f"{link.address} does not answer")

    servers = NameServers(Network(), Asks("me", "g"), ["a:1", "b:2"])  # type: ignore[arg-type]
    with pytest.raises(NoAnswerError, match=r"^a:1 does not answer; b:2 does not answer$"):
        servers.call("orders", 1.0)


def test_a_topic_whose_brokers_are_forgotten_is_told_until_one_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away for long is no longer in the routes, and its own problem is gone with it."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.routes.REFRESH_S", 0.0)
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.routes.FORGET_S", -1.0)
    server = NameServer({"orders": (0, GOOD)})
    routes = Routes(server, Asks("me", "g"), ["ns:9876"], ["orders"])  # type: ignore[arg-type]
    routes.refresh()
    assert (routes.problem, list(routes.addresses)) == ("", ["b"])
    server.answers["orders"] = (17, b"")
    routes.refresh()
    routes.refresh()
    assert (routes.problem, list(routes.addresses)) == ("they no longer know a broker of orders", [])
    server.answers["orders"] = (0, GOOD)
    routes.refresh()
    assert routes.problem == ""


def test_a_broker_of_which_only_slaves_are_known_has_no_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until name servers know one again; its queues wait for it."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.routes.REFRESH_S", 0.0)
    without = GOOD.replace(b'{"0": "h:1"}', b'{"1": "h:2"}')
    server = NameServer({"orders": (0, GOOD)})
    routes = Routes(server, Asks("me", "g"), ["ns:9876"], ["orders"])  # type: ignore[arg-type]
    routes.refresh()
    assert routes.masterless == set()
    server.answers["orders"] = (0, without)
    routes.refresh()
    assert routes.masterless == {"b"}
    server.answers["orders"] = (0, GOOD)
    routes.refresh()
    assert routes.masterless == set()


def test_a_broker_with_master_and_slave_has_a_master() -> None:
    """It is asked, and its slaves are not."""
    server = NameServer({"orders": (0, GOOD.replace(b'{"0": "h:1"}', b'{"0": "h:1", "1": "h:2"}'))})
    routes = Routes(server, Asks("me", "g"), ["ns:9876"], ["orders"])  # type: ignore[arg-type]
    routes.refresh()
    assert (routes.masterless, routes.addresses) == (set(), {"b": "h:1"})
