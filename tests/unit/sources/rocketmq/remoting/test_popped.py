"""Messages in retry topics that only consumers by pop read: counted by what brokers answer, and told."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from sidecar.sources.rocketmq.remoting.popped import EVERY_S, Popped
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.wire.frames import Code, Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks
from tests.support.rocketmq_bytes import Stored, stored

POPPED = ("1ST_POP_TIME", b"1795943835691")


class Node:
    """A name server and a broker with one retry topic, which answer at once.

    Args:
        topic: Its name at the brokers.
        begin: The first offset that is there.
        end: The offset that the next message gets.
        committed: What the group has committed, if anything.
        properties: Of the messages.
    """

    is_up = True

    def __init__(
        self, topic: str, begin: int = 0, end: int = 200, committed: int | None = None, properties: Any = (POPPED,)
    ) -> None:
        self.topic, self.begin, self.end, self.committed, self.properties = topic, begin, end, committed, properties
        self.asked = 0

    def name_server(self) -> Node | None:
        """As of `Routes`."""
        return self

    def link(self, broker: str) -> Node:
        """As of `Routes`."""
        assert broker == "broker-a"
        return self

    def ask(self, ask: Ask, answered: Any, timeout_s: float) -> None:
        """Answer."""
        assert timeout_s > 0
        self.asked += 1
        answered(self._answer(ask))

    def _answer(self, ask: Ask) -> Frame | None:
        if ask.fields["topic"] != self.topic:
            return Frame(Code.TOPIC_NOT_EXIST, 1, 1, "", {}, b"")
        if ask.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            brokers = [{"brokerName": "broker-a", "brokerAddrs": {"0": "a:1"}, "cluster": "c"}]
            queues = [{"brokerName": "broker-a", "perm": 6, "readQueueNums": 1}]
            return Frame(0, 1, 1, "", {}, orjson.dumps({"brokerDatas": brokers, "queueDatas": queues}))
        if ask.code == RequestCode.QUERY_CONSUMER_OFFSET:
            known = self.committed is not None
            return Frame(0 if known else Code.QUERY_NOT_FOUND, 1, 1, "", {"offset": str(self.committed)}, b"")
        offset = int(ask.fields["queueOffset"])
        ends = {"minOffset": str(self.begin), "maxOffset": str(self.end)}
        if not self.begin <= offset < self.end:
            code = Code.PULL_NOT_FOUND if offset == self.end else Code.PULL_OFFSET_MOVED
            return Frame(code, 1, 1, "", ends, b"")
        return Frame(0, 1, 1, "", ends, stored(Stored(offset=offset, properties=self.properties)))


def popped(node: Node, namespace: str = "") -> Popped:
    """Of the group `g`, which reads `orders`; asked once."""
    found = Popped(Asks("me", "g", namespace), cast(Routes, node), ["orders"])
    found.ask(0.0)
    return found


@pytest.mark.parametrize(
    ("topic", "namespace"),
    [("%RETRY%g_orders", ""), ("%RETRY%g+orders", ""), ("%RETRY%ns%g+ns%orders", "ns")],
    ids=["of old brokers", "of new brokers", "in a namespace"],
)
def test_what_members_over_grpc_left_is_told(topic: str, namespace: str) -> None:
    """With its number, whichever name the broker gives the topic."""
    assert "200 messages" in popped(Node(topic), namespace).problem


@pytest.mark.parametrize(
    ("node", "count"),
    [
        (Node("%RETRY%g_orders", committed=150), 50),
        (Node("%RETRY%g_orders", begin=120), 80),
        (Node("%RETRY%g_orders", committed=200), 0),
        (Node("%RETRY%g_orders", begin=200), 0),
        (Node("%RETRY%g_orders", end=0), 0),
        (Node("%RETRY%g_orders", properties=[("RETRY_TOPIC", b"orders")]), 0),
        (Node("%RETRY%other_orders"), 0),
    ],
    ids=["some read", "some expired", "all read", "all expired", "none", "of the group g_orders", "of another group"],
)
def test_only_what_nobody_has_read_counts(node: Node, count: int) -> None:
    """What the group's members read over gRPC is committed, and what expired is gone."""
    assert popped(node).problem.partition(" ")[0] == (str(count) if count else "")


def test_the_problem_ends_once_all_are_read() -> None:
    """They are counted once a minute."""
    node = Node("%RETRY%g_orders")
    found = popped(node)
    asked, node.committed = node.asked, 200
    found.ask(EVERY_S - 1)
    assert node.asked == asked
    found.ask(EVERY_S)
    assert not found.problem


def test_the_problem_ends_with_the_topic() -> None:
    """An operator deleted it."""
    node = Node("%RETRY%g_orders")
    found = popped(node)
    node.topic = ""
    found.ask(EVERY_S)
    assert not found.problem


@pytest.mark.parametrize(
    "at", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE]
)
@pytest.mark.parametrize("answer", [None, Frame(Code.NO_PERMISSION, 1, 1, "", {}, b""), Frame(0, 1, 1, "", {}, b"")])
def test_an_answer_that_tells_nothing_changes_nothing(
    at: RequestCode, answer: Frame | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last count holds until there is another one."""
    node = Node("%RETRY%g_orders")
    found = popped(node)
    real = node._answer
    if answer is not None and at == RequestCode.QUERY_CONSUMER_OFFSET and not answer.code:
        answer = answer._replace(code=Code.NO_PERMISSION)
    monkeypatch.setattr(node, "_answer", lambda ask: answer if ask.code == at else real(ask))
    found.ask(EVERY_S)
    assert "200 messages" in found.problem


@pytest.mark.parametrize("is_server", [True, False], ids=["no name server", "no broker"])
def test_nobody_is_asked_who_is_away(is_server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known then."""
    node = Node("%RETRY%g_orders")
    monkeypatch.setattr(node, "name_server" if is_server else "link", lambda *_: None)
    assert not popped(node).problem
