"""Routes and name servers: what stays, and what is told of what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.rocketmq.frames import Frame
from sidecar.rocketmq.network import Ask
from sidecar.rocketmq.requests import Asks
from sidecar.sources import rocketmq_routes
from sidecar.sources.rocketmq_routes import Routes

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

    def ask(self, ask: Ask, answered: Callable[[Frame | None], None]) -> None:
        code, body = self.answers[ask.fields["topic"]]
        answered(Frame(code, 1, 1, "no permission", {}, body))


def test_a_refusal_is_told_until_the_topic_is_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that is refused, or that cannot be read, is a problem, whatever is answered of other topics."""
    monkeypatch.setattr(rocketmq_routes, "REFRESH_S", 0.0)
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
