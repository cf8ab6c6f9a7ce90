"""Membership over heartbeats: where a broker knows this member, who the others are, and when it is back."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.remoting.cluster import HEARTBEAT_S, RETURN_S, Members
from sidecar.sources.rocketmq.wire.frames import Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription

TP = TopicPartition("orders", 0, "b")


class BrokerLink:
    """Is connected, knows these members, and gives each lock."""

    address, problem = "b:1", ""

    def __init__(self) -> None:
        self.is_up = True
        self.connection = 1
        self.members = ["me", "other"]
        self.asked: list[int] = []

    def ask(self, ask: Ask, answered: Callable[[Frame | None], None]) -> None:
        self.asked.append(ask.code)
        body: dict[str, Any] = {}
        if ask.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            body = {"consumerIdList": self.members}
        if ask.code == RequestCode.LOCK_BATCH_MQ:
            body = {"lockOKMQSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}]}
        answered(Frame(0, 1, 1, "", {}, json.dumps(body).encode()))


class Scene:
    """A member of a group at one broker, on a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.now_s = BrokerLink(), 100.0
        monkeypatch.setattr("sidecar.sources.rocketmq.remoting.cluster.time.monotonic", lambda: self.now_s)
        routes: Any = SimpleNamespace(
            brokers=lambda: {"b": self.link}, link=lambda _: self.link, queues=lambda _: [TP], changes=0,
            masterless=set(),
        )  # fmt: skip
        self.shared: list[list[str]] = []

        def share(queues: Any, members: Any, me: str) -> Any:
            self.shared.append(list(members))
            return queues

        self.members = Members(routes, Asks("me", "g"), share, [Subscription("orders")])

    def keep(self, after_s: float = 0) -> None:
        """Time passes, and what is due is sent."""
        self.now_s += after_s
        self.members.keep([TP])

    @property
    def locks(self) -> int:
        """How often a lock was requested."""
        return self.link.asked.count(RequestCode.LOCK_BATCH_MQ)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Before its first heartbeat."""
    return Scene(monkeypatch)


def test_queues_are_shared_among_the_members_that_a_broker_reports(scene: Scene) -> None:
    """Nothing is assigned before, and the list of the last heartbeat counts."""
    assert scene.members.targets(["orders"]) is None
    scene.keep()
    assert (scene.members.targets(["orders"]), scene.shared) == (frozenset({TP}), [["me", "other"]])
    scene.link.members = ["me"]
    scene.keep(HEARTBEAT_S)
    scene.members.targets(["orders"])
    assert scene.shared[1:] == [["me"]]


def test_a_new_member_asks_for_locks_at_once(scene: Scene) -> None:
    """No earlier holder is waited for where the broker did not know this member before."""
    scene.keep()
    assert (scene.locks, scene.members.locked) == (1, {TP})


def test_a_broker_that_returned_is_left_to_its_earlier_holders(scene: Scene) -> None:
    """Locks of new queues are requested 5 s after it is back; heartbeats in between do not start the wait again."""
    scene.keep()
    scene.members.locked.clear()
    scene.link.connection = 2
    scene.keep(1)
    assert scene.locks == 1
    for _ in range(4):
        scene.keep(RETURN_S / 5)
        scene.members.changed()
    assert scene.locks == 1
    scene.keep(RETURN_S / 5)
    assert (scene.locks, scene.members.locked) == (2, {TP})


def test_a_heartbeat_is_sent_every_five_seconds_or_when_members_changed(scene: Scene) -> None:
    """A broker forgets a member that is silent; more of them would only cost time."""

    def beats() -> int:
        return scene.link.asked.count(RequestCode.HEART_BEAT)

    scene.keep()
    scene.keep(HEARTBEAT_S - 0.1)
    assert beats() == 1
    scene.keep(0.1)
    assert beats() == 2
    scene.members.changed()
    scene.keep()
    assert beats() == 3
    scene.link.is_up = False
    scene.keep(HEARTBEAT_S)
    assert beats() == 3
