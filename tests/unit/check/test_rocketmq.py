"""The check of RocketMQ: what it makes of the answers of name servers and brokers. A fake network has them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from sidecar.check import rocketmq as checked
from sidecar.check.findings import Finding
from sidecar.check.rocketmq import check_rocketmq
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from tests.support.process import free_ports

BROKERS = {"a": "h1:10911", "b": "h2:10911"}


def frame(code: int = Code.SUCCESS, body: Any = None, remark: str = "") -> Frame:
    """An answer."""
    return Frame(code, 1, 1, remark, {"offset": "5"}, orjson.dumps(body) if body is not None else b"")


def route(**queues: int) -> Frame:
    """A route: by broker, how many queues can be read."""
    brokers = [{"brokerName": name, "cluster": "c", "brokerAddrs": {"0": BROKERS[name]}} for name in queues]
    readable = [{"brokerName": name, "readQueueNums": count, "perm": 6} for name, count in queues.items()]
    return frame(body={"brokerDatas": brokers, "queueDatas": readable})


class Link:
    """A connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.problem = ""


Answers = Callable[[str, Any], Frame | None]


class Network:
    """Servers that answer a request, by address, with these answers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._links: dict[str, Link] = {}
        self.asked: list[tuple[str, int]] = []
        self.is_closed = False

    def link(self, address: str) -> Link:
        """The connection to an address."""
        return self._links.setdefault(address, Link(address))

    def ask_all(self, asks: Sequence[tuple[Link, Any]], timeout_s: float) -> list[Frame | None]:
        """All answers; a server that gives none has a problem."""
        self.asked += [(link.address, ask.code) for link, ask in asks]
        found = [self._answers(link.address, ask) for link, ask in asks]
        for (link, _), answer in zip(asks, found, strict=True):
            if answer is None and link.address != "silent:9876":
                link.problem = "Connection refused"
        return found

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks `orders` and `bills` at servers with these answers."""

    def look(answers: Answers, **more: Any) -> list[Finding]:
        network = Network(answers)
        monkeypatch.setattr(checked, "Network", lambda *_: network)
        given = {"group": "g", "topics": ["orders", "bills"], "name_servers": "h0:9876", **more}
        found = list(check_rocketmq(RocketMqSettings.model_validate(given)))
        assert network.is_closed
        look.asked = network.asked  # type: ignore[attr-defined]
        return found

    return look


def healthy(address: str, ask: Any) -> Frame | None:
    """What a healthy cluster answers."""
    if address.endswith(":9876"):
        return route(a=4, b=2) if ask.fields.get("topic") == "orders" else route(a=1)
    return frame()


def texts(found: Sequence[Finding]) -> list[tuple[str, str]]:
    """Subjects and texts."""
    return [(each.subject, each.text) for each in found]


def test_what_is_there_is_told(look: Any) -> None:
    """Each broker is asked by its own topics, three things of each."""
    found = look(healthy)
    assert texts(found) == [
        ("name server h0:9876", "it answers"),
        ("topic orders", "6 queues on 2 brokers"),
        ("topic bills", "1 queues on 1 broker"),
        ("broker a at h1:10911", "it answers about bills, orders and group g"),
        ("broker b at h2:10911", "it answers about orders and group g"),
    ]
    assert all(each.ok and not each.cure for each in found)
    assert [sum(at == address for at, _ in look.asked) for address in ("h1:10911", "h2:10911")] == [6, 3]


def test_name_servers_are_judged_one_by_one(look: Any) -> None:
    """The first that answers is asked about the topics."""

    def answers(address: str, ask: Any) -> Frame | None:
        answer = {"away:9876": None, "silent:9876": None, "broker:9876": frame(Code.NOT_SUPPORTED)}
        return answer[address] if address in answer else healthy(address, ask)

    found = look(answers, name_servers="away:9876, silent:9876,broker:9876,h0:9876,h9:9876")
    assert [(each.text, each.exit_code) for each in found[:5]] == [
        ("Connection refused", 69), ("no answer", 69),
        ("it knows no routes: a broker or a proxy, not a name server", 78), ("it answers", 0), ("it answers", 0),
    ]  # fmt: skip
    assert "source.rocketmq.name_servers" in found[0].cure and "9876" in found[2].cure
    assert {address for address, _ in look.asked[5:7]} == {"h0:9876"}
    assert "h9:9876" not in [address for address, _ in look.asked[5:]]


def test_without_a_name_server_nothing_else_is_asked(look: Any) -> None:
    """Nobody knows the brokers."""
    assert len(look(lambda *_: None)) == 1


@pytest.mark.parametrize(
    ("answer", "text", "cure", "code"),
    [
        (None, "the name server does not answer", "check its log", 69),
        (frame(Code.TOPIC_NOT_EXIST), "it does not exist, or no broker that has it is registered", "create the", 69),
        (frame(1, remark="busy"), "busy (code 1)", "check the server's log", 69),
        (frame(Code.NO_PERMISSION, remark="no"), "no (code 16)", "check access_key and secret_key", 77),
        (frame(body={"brokerDatas": []}), "", "check the name server", 69),
        (route(), "no readable broker has it", "create the topic", 69),
    ],
)
def test_a_topic_is_judged_by_its_route(look: Any, answer: Frame | None, text: str, cure: str, code: int) -> None:
    """The other topics are looked at all the same."""

    def answers(address: str, ask: Any) -> Frame | None:
        answers.count += address == "h0:9876"  # type: ignore[attr-defined]
        is_first = answers.count == 1  # type: ignore[attr-defined]  # which only finds a server that answers
        return answer if ask.fields.get("topic") == "orders" and not is_first else healthy(address, ask)

    answers.count = 0  # type: ignore[attr-defined]
    _, finding, other, *brokers = look(answers)
    assert (finding.subject, finding.exit_code) == ("topic orders", code)
    assert text in finding.text and cure in finding.cure
    assert other.ok and [each.subject for each in brokers] == ["broker a at h1:10911"]


@pytest.mark.parametrize(
    ("answers", "text", "cure", "code"),
    [
        ([frame(), None, frame()], "Connection refused", "which is its brokerIP1", 69),
        ([frame(Code.QUERY_NOT_FOUND), frame(), frame()], "it answers about orders and group g", "", 0),
        ([*[frame(1, remark="busy")] * 2, frame(2)], "busy (code 1); without a reason (code 2)", "log", 69),
        ([frame(Code.NO_PERMISSION, remark="no permission")] * 3, "no permission (code 16)",
         "allow this user the actions Sub and Get on the topics orders, bills and the group g", 77),
        ([frame(1, remark="AclException: wrong signature")] * 3, "AclException", "check access_key and secret_key", 77),
    ],
)  # fmt: skip
def test_a_broker_is_judged_by_its_answers(
    look: Any, answers: list[Frame | None], text: str, cure: str, code: int
) -> None:
    """Each right is asked for; equal reasons are told once."""
    left = list(answers)
    found = look(lambda address, ask: left.pop(0) if address == "h2:10911" else healthy(address, ask))
    assert (found[-1].subject, found[-1].exit_code) == ("broker b at h2:10911", code)
    assert text in found[-1].text and cure in found[-1].cure and bool(cure) == bool(found[-1].cure)
    assert found[-2].ok


def test_an_endpoint_is_only_reached(look: Any) -> None:
    """Of a proxy nothing else is asked; each is told."""
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as alive:
        good = f"127.0.0.1:{alive.getsockname()[1]}"
        given = {"group": "g", "topics": ["orders"], "client": "grpc", "endpoints": f"{good},127.0.0.1:{port}"}
        first, second = check_rocketmq(RocketMqSettings.model_validate(given))
    assert first == Finding(f"endpoint {good}", "reachable; rights are not checked with client: grpc")
    assert (second.subject, second.exit_code) == (f"endpoint 127.0.0.1:{port}", 69)
    assert "refused" in second.text and "source.rocketmq.endpoints" in second.cure
