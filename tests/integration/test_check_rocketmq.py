"""`sidecar check` with a real RocketMQ: what is there, what is not, and that nothing changes."""

from __future__ import annotations

from pathlib import Path

from tests.support.checking import Checked, checked
from tests.support.kafka import unique
from tests.support.process import free_ports
from tests.support.rocketmq import Node


def check(folder: Path, servers: str, topics: list[str], group: str = "g") -> Checked:
    """The outcome for these topics."""
    source = {"name_servers": servers, "group": group, "topics": topics}
    return checked(folder, {"source": {"rocketmq": source}, "sink": {"console": {}}})


def test_all_is_well_and_nothing_changes(rocketmq: Node, tmp_path: Path) -> None:
    """A line for each name server, topic and broker; no group, no commit, no lock comes of it."""
    topics, group = sorted(rocketmq.create_topic(unique("topic"), 2) for _ in range(2)), unique("group")
    outcome = check(tmp_path, rocketmq.name_server, topics, group)
    assert (outcome.code, outcome.bad) == (0, [])
    assert outcome.of(f"topic {topics[0]}")["text"] == "2 queues on 1 broker"
    assert outcome.of("broker ")["text"] == f"it answers about {', '.join(topics)} and group {group}"
    assert rocketmq.committed(group, topics[0], 2) == {}
    assert rocketmq.members(group) == []
    assert rocketmq.is_free(group, topics[0], 0)


def test_the_locks_of_a_member_stay(rocketmq: Node, tmp_path: Path) -> None:
    """The group may be at work: another still may not lock the queue."""
    topic, group = rocketmq.create_topic(unique("topic"), 1), rocketmq.create_group(unique("group"))
    with rocketmq.locked(group, "member", topic, 0) as got:
        assert got
        assert check(tmp_path, rocketmq.name_server, [topic], group).code == 0
        assert not rocketmq.is_free(group, topic, 0)


def test_a_wrong_address_is_told(rocketmq: Node, tmp_path: Path) -> None:
    """Nobody listens there, the name is unknown, or it is a broker: each with what to correct."""
    topic = rocketmq.create_topic(unique("topic"), 1)
    broker = next(iter(rocketmq.brokers().values()))
    for servers, code, text in (
        (f"127.0.0.1:{free_ports(1)[0]}", 69, "refused"),
        ("nowhere.invalid:9876", 69, "cannot be looked up"),
        (broker, 78, "not a name server"),
    ):
        outcome = check(tmp_path, servers, [topic])
        found = outcome.of("name server ")
        assert (outcome.code, len(outcome.bad), text in found["text"]) == (code, 1, True), found
        assert "correct source.rocketmq.name_servers" in found["cure"]


def test_a_missing_topic_is_told(rocketmq: Node, tmp_path: Path) -> None:
    """With its name; the topic that is there is told too."""
    topic, gone = rocketmq.create_topic(unique("topic"), 1), unique("gone")
    outcome = check(tmp_path, rocketmq.name_server, [gone, topic])
    assert (outcome.code, [finding["subject"] for finding in outcome.bad]) == (69, [f"topic {gone}"])
    assert "create the topic, start its broker" in outcome.bad[0]["cure"]
    assert outcome.of(f"topic {topic}")["ok"]
