"""Partitions whose leader is away: they wait alone, in sight, while everything else goes on. Two real brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from sidecar.config.source.kafka import KafkaSettings
from sidecar.sources.kafka.group import evict
from tests.support.kafka import Broker, KafkaBroker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, Row, value_hash
from tests.support.scene import Scene

WAITING = "cannot be read yet: "


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The controller, which also leads the group's coordinator."""
    with KafkaBroker(tmp_path_factory.mktemp("first") / "broker") as broker:
        yield broker


@pytest.fixture(scope="module")
def second(first: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of the same cluster, which may go away."""
    with KafkaBroker(tmp_path_factory.mktemp("second") / "broker", joins=first) as broker:
        yield broker


@pytest.fixture
def scene(first: KafkaBroker, second: KafkaBroker, group: str, tmp_path: Path) -> Iterator[Scene]:
    """A topic whose partition 0 is led by the first broker and partition 1 by the second."""
    topic = unique("topic")
    for future in first.admin.create_topics([NewTopic(topic, 2, replica_assignment=[[1], [2]])]).values():
        future.result(20)
    wait_until(lambda: leaders(first, topic) == [1, 2], 20, "both partitions have their leaders")
    with Receiver() as receiver:
        yield Scene(first, tmp_path, receiver, topic, group)
    if not second.running:
        second.start()


def leaders(broker: Broker, topic: str) -> list[int]:
    """Who leads the partitions."""
    try:
        known = broker.admin.list_topics(topic, timeout=5).topics[topic].partitions
    except KafkaException:  # the one that was asked has just died
        return []
    return [one.leader for _, one in sorted(known.items())]


def lose(scene: Scene, second: KafkaBroker) -> Row:
    """The second broker takes one message and dies, and the first knows."""
    produce(scene.broker.bootstrap, scene.topic, [Outgoing(1, b"waits", None, [("tag", b"a")])])
    second.kill()
    wait_until(lambda: leaders(scene.broker, scene.topic) == [1, -1], 20, "partition 1 has no leader")
    return (scene.topic, 1, 0, value_hash(b"waits"))


def deliver(scene: Scene, seconds: float) -> float:
    """Messages for partition 0 arrive one after the other for so long; the longest time that one took, in seconds."""
    until_s, longest_s = time.monotonic() + seconds, 0.0
    while (begun_s := time.monotonic()) < until_s:
        rows = scene.receiver.stats["rows"]
        produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"%f" % begun_s, None, [("tag", b"a")])])
        wait_until(lambda rows=rows: scene.receiver.stats["rows"] > rows, 9, "a message arrives")  # type: ignore[misc]
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return longest_s


def throw_out(scene: Scene) -> None:
    """The group's members are removed: what they have is lost to them at once."""
    kafka = KafkaSettings(bootstrap_servers=scene.broker.bootstrap, group_id=scene.group, topics=[scene.topic])
    evict(kafka, [member.member_id for member in scene.broker.members(scene.group)])


def waits(daemon: Daemon) -> bool:
    """Whether its status tells of a partition that waits."""
    return any(WAITING in problem for problem in daemon.status()["problems"])


def test_a_partition_without_a_leader_keeps_back_no_other(
    scene: Scene, first: KafkaBroker, second: KafkaBroker
) -> None:
    """From the start and through rebalances the others are delivered; when the leader is back, it is read by itself."""
    row = lose(scene, second)
    with scene.daemon("one") as one:
        one.wait_ready()
        assert deliver(scene, 2) < 9
        assert waits(one)
        assert [event["what"] for event in one.events("kafka.failed") if WAITING in event["reason"]] == ["start"]
        with scene.daemon("two") as two:
            wait_until(lambda: len(first.members(scene.group)) == 2, 20, "both are members", detail=two.log_tail)
            assert deliver(scene, 6) < 9
            wait_until(lambda: waits(one) != waits(two), 10, "one of them has the partition", detail=two.log_tail)
            two.stop()
        wait_until(lambda: waits(one), 10, "it has the partition again", detail=one.log_tail)
        throw_out(scene)
        wait_until(lambda: one.events("partitions.lost"), 10, "it lost its partitions", detail=one.log_tail)
        assert deliver(scene, 2) < 9
        assert waits(one)
        second.start()
        wait_until(lambda: row in scene.receiver.rows(), 15, "what waited arrives", detail=one.log_tail)
        wait_until(lambda: not one.status()["problems"], 10, "nothing is told any more", detail=one.log_tail)
        assert scene.receiver.stats["repeated_parts"] == 0
        one.stop()


def test_a_stop_with_a_partition_that_waits_is_a_stop(scene: Scene, second: KafkaBroker) -> None:
    """SIGTERM while a partition has no leader ends with 0, and the next life reads it when it can."""
    row = lose(scene, second)
    with scene.daemon() as daemon:
        wait_until(lambda: daemon.events("kafka.failed"), 15, "the partition waits", detail=daemon.log_tail)
        daemon.stop()
        daemon.start()
        second.start()
        wait_until(lambda: row in scene.receiver.rows(), 30, "what waited arrives", detail=daemon.log_tail)
        daemon.stop()
    assert scene.receiver.rows().count(row) == 1
