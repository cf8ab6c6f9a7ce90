"""`sidecar check` with a real RocketMQ: what is there, what is not, and that nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checking import Checked, checked
from tests.support.kafka import unique
from tests.support.process import free_ports
from tests.support.rocketmq import RocketMqNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node of this file alone: it is frozen and killed."""
    with RocketMqNode(tmp_path_factory.mktemp("check") / "node") as node:
        yield node


def check(folder: Path, servers: str, topics: list[str], group: str = "g", **change: Any) -> Checked:
    """The outcome for these topics."""
    source = {"name_servers": servers, "group": group, "topics": topics}
    return checked(folder, {"source": {"rocketmq": source}, "sink": {"console": {}}, **change})


def test_all_is_well_and_nothing_changes(node: RocketMqNode, tmp_path: Path) -> None:
    """A line for each name server, topic and broker; no group, no commit, no lock comes of it."""
    topics, group = sorted(node.create_topic(unique("topic"), 2) for _ in range(2)), unique("group")
    outcome = check(tmp_path, node.name_server, topics, group)
    assert (outcome.code, outcome.bad) == (0, [])
    assert outcome.of(f"topic {topics[0]}")["text"] == "2 queues on 1 broker"
    assert outcome.of("broker ")["text"] == f"it answers about {', '.join(topics)} and group {group}"
    assert node.committed(group, topics[0], 2) == {}
    assert node.members(group) == []
    assert node.is_free(group, topics[0], 0)


def test_the_locks_of_a_member_stay(node: RocketMqNode, tmp_path: Path) -> None:
    """The group may be at work: another still may not lock the queue."""
    topic, group = node.create_topic(unique("topic"), 1), node.create_group(unique("group"))
    with node.locked(group, "member", topic, 0) as got:
        assert got
        assert check(tmp_path, node.name_server, [topic], group).code == 0
        assert not node.is_free(group, topic, 0)


def test_a_wrong_address_is_told(node: RocketMqNode, tmp_path: Path) -> None:
    """Nobody listens there, the name is unknown, or it is a broker: each with what to correct."""
    topic = node.create_topic(unique("topic"), 1)
    broker = next(iter(node.brokers().values()))
    for servers, code, text in (
        (f"127.0.0.1:{free_ports(1)[0]}", 69, "refused"),
        ("nowhere.invalid:9876", 69, "cannot be looked up"),
        (broker, 78, "not a name server"),
    ):
        outcome = check(tmp_path, servers, [topic])
        found = outcome.of("name server ")
        assert (outcome.code, len(outcome.bad), text in found["text"]) == (code, 1, True), found
        assert "correct source.rocketmq.name_servers" in found["cure"]


def test_a_missing_topic_is_told(node: RocketMqNode, tmp_path: Path) -> None:
    """With its name; the topic that is there is told too."""
    topic, gone = node.create_topic(unique("topic"), 1), unique("gone")
    outcome = check(tmp_path, node.name_server, [gone, topic])
    assert (outcome.code, [finding["subject"] for finding in outcome.bad]) == (69, [f"topic {gone}"])
    assert "create the topic" in outcome.bad[0]["cure"]
    assert outcome.of(f"topic {topic}")["ok"]


def test_a_broker_that_does_not_answer_is_told(node: RocketMqNode, tmp_path: Path) -> None:
    """The name server still knows it: its address is named; once it does not, the topic's line says what to start."""
    topic = node.create_topic(unique("topic"), 1)
    node.freeze()
    outcome = check(tmp_path, node.name_server, [topic])
    found = outcome.of("broker ")
    assert (outcome.code, found["text"], "start it" in found["cure"]) == (69, "no answer", True)
    node.thaw()
    node.kill()
    outcome = check(tmp_path, node.name_server, [topic])
    assert (outcome.code, "start its broker" in outcome.of(f"topic {topic}")["cure"]) == (69, True)
    node.start()
