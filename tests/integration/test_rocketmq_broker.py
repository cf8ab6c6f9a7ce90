"""A RocketMQ broker or name server that dies and comes back, with all it had or without: nothing lost or twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueProgress
from tests.support.kafka import unique
from tests.support.process import wait_until
from tests.support.reading import PATIENCE_S
from tests.support.rocketmq import BROKER, Message, RocketMqNode
from tests.support.rocketmq_reader import Reader


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node of these tests alone, which compacts each hundred messages within 2 s."""
    config = {"compactionCqMappedFileSize": "4600", "compactionMappedFileSize": "1048576"}
    config |= {"compactionScheduleInternal": "2000"}
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", config=config) as node:
        yield node


def test_a_broker_that_was_killed(node: RocketMqNode, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back again: members go on with what they had, even one that comes late, and read nothing twice.

    The broker's locks are gone then: the queues of a member that is not back yet are left to it for a while.
    """
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.cluster.RETURN_S", PATIENCE_S)
    topic = node.create_topic(unique("topic"), 4)
    with (
        Reader(node, group, [topic], client_id="a") as first,
        Reader(node, group, [topic], client_id="b") as second,
    ):
        first.until(lambda: second.turn() or len(_own(first, topic)) == len(_own(second, topic)) == 2, "both have two")
        ours, theirs = _own(first, topic), _own(second, topic)
        sent = [b"%d" % i for i in range(40)]
        node.send(topic, sent[:20])
        first.read(10)
        second.read(10)
        assert all(first.commit().values())
        node.kill()
        first.until(lambda: BROKER in first.source.problems(), "the broker is missed")
        assert not any(first.commit().values()), "what the broker cannot take is not committed"
        node.start()
        second.until(lambda: BROKER not in second.source.problems(), "the broker is back")
        second.until(lambda: all(map(second.source._cluster.members.may_go_on, theirs)), "its locks are had again")
        wait_until(lambda: second.turn() or node.members(group) == ["b"], PATIENCE_S, "the first is still away")
        second.until(
            lambda: second.source._cluster.members.targets([topic]) == frozenset(ours | theirs),
            "all queues are its turn",
        )
        assert _own(second, topic) == theirs
        node.send(topic, sent[20:])
        first.read(20)
        second.read(20)
        assert _own(first, topic) == ours
        assert Counter(first.bodies() + second.bodies()) == Counter(sent)
        assert all(first.commit().values()) and all(second.commit().values())
    assert node.committed(group, topic) == dict.fromkeys(range(4), 10)


def test_a_broker_that_lost_what_was_committed(node: RocketMqNode, group: str) -> None:
    """The state file goes on exactly where it was, and a log event says so."""
    topic = node.create_topic(unique("topic"), 1)
    node.send(topic, [b"old"] * 3, queues=1)
    with Reader(node, group, [topic]) as first:
        first.read(3)
        first.commit()
    node.delete_group(group)
    assert node.committed(group, topic, 1) == {}
    node.send(topic, [b"new"], queues=1)
    with Reader(node, group, [topic], state=first.state) as again:
        assert again.read(1) == [b"new"]
        assert again.told("commit.expired")


def test_compaction_makes_no_queue_another_one(node: RocketMqNode, group: str) -> None:
    """The message read last is removed while nobody reads, and those left are moved: only what is new is read."""
    topic = node.create_topic(unique("topic"), 1, attributes="+cleanup.policy=COMPACTION")
    keyed = [Message(b"%d" % i, keys=f"k{i % 50}") for i in range(600)]
    node.send(topic, keyed[:150], queues=1)
    with Reader(node, group, [topic]) as first:
        first.read(150)
        first.commit()
    node.send(topic, keyed[150:], queues=1)
    wait_until(lambda: first_left(node, topic) >= 150, PATIENCE_S, "the messages read are removed")
    with Reader(node, group, [topic], state=first.state) as again:
        again.until(lambda: again.bodies()[-1:] == [b"599"], "the rest is read")
        assert not again.told("topic.recreated")
        assert max(Counter(again.bodies()).values()) == 1
        again.commit()
    with Reader(node, group, [topic], state=again.state) as last:
        node.send(topic, [Message(b"new", keys="new")], queues=1)
        assert last.read(1) == [b"new"]


def first_left(node: RocketMqNode, topic: str) -> int:
    """The first offset that a topic of one queue has still."""
    fields = {"consumerGroup": "none", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
    fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return int(node.ask_broker(11, fields)[0]["minOffset"])


@pytest.mark.proof
def test_name_servers_that_are_away(node: RocketMqNode, group: str) -> None:
    """Without any name server what is known goes on; it is told, until one is back."""
    topic = node.create_topic(unique("topic"), 1)
    with Reader(node, group, [topic]) as reader:
        reader.own(1, topic)
        node.kill_name_server()
        reader.until(lambda: "name servers" in reader.source.problems(), "they are missed")
        node.send(topic, [b"meanwhile"], queues=1)
        assert reader.read(1) == [b"meanwhile"]
        assert all(reader.commit().values())
        node.start()
        reader.until(lambda: not reader.source.problems(), "it is well again")


@pytest.mark.proof
def test_a_broker_that_lost_all_messages(node: RocketMqNode, group: str) -> None:
    """Its queues begin at 0 again: what is sent from then on is read, whether it runs on or is started later."""
    running, later = node.create_topic(unique("topic"), 1), node.create_topic(unique("topic"), 1)
    node.send(running, [b"old"] * 5, queues=1)
    node.send(later, [b"old"] * 2, queues=1)
    other = unique("group")
    with Reader(node, other, [later]) as before:
        before.read(2)
        before.commit()
    with Reader(node, group, [running]) as reader:
        reader.read(5)
        reader.commit()
        node.kill()
        node.lose_store()
        node.start()
        node.send(running, [b"new"] * 3, queues=1)
        node.send(later, [b"new"] * 3, queues=1)
        reader.until(lambda: reader.told("topic.recreated"), "it is seen")
        assert reader.read(3) == [b"new"] * 3
    with Reader(node, other, [later], state=before.state) as after:
        assert after.read(3) == [b"new"] * 3
        assert after.told("topic.recreated")


@pytest.mark.parametrize("ahead_s", [600, pytest.param(-600, marks=pytest.mark.proof)], ids=["ahead", "behind"])
def test_no_clock_tells_what_is_new(node: RocketMqNode, group: str, ahead_s: int) -> None:
    """After its store was lost all messages are read, though the broker's clock was wrong when it stored the others."""
    topic = node.create_topic(unique("topic"), 1)
    node.send(topic, [b"old"] * 2, queues=1)
    with Reader(node, group, [topic]) as before:
        before.read(2)
        before.commit()
    for key, text in before.state.load_progress().items():
        found = QueueProgress.load(text)
        assert found is not None
        marks = tuple(mark._replace(stored_ms=mark.stored_ms + ahead_s * 1000) for mark in found.marks)
        before.state.save_progress({key: found._replace(marks=marks).dump()})
    node.kill()
    node.lose_store()
    node.start()
    node.send(topic, [b"new"] * 3, queues=1)
    with Reader(node, group, [topic], state=before.state) as after:
        assert after.read(3) == [b"new"] * 3


def test_a_broker_whose_files_are_an_older_copy(node: RocketMqNode, group: str) -> None:
    """It is read on after the newest message that is there still: what took the place of the others is not lost."""
    topic = node.create_topic(unique("topic"), 1)
    with Reader(node, group, [topic]) as reader:
        for at in range(0, 1_000, 50):
            if at == 600:
                node.stop()
                copy = node.copy_store()
                node.start()
            node.send(topic, [b"old %03d" % i for i in range(at, at + 50)], queues=1)
            reader.read(at + 50)
            reader.commit()
        node.kill()
        node.put_back(copy)
        node.start()
        new = [b"refilled %03d" % i for i in range(600)]
        node.send(topic, new, queues=1)
        reader.until(lambda: reader.told("partition.truncated"), "it is seen")
        reader.until(lambda: len(set(reader.bodies()) & set(new)) == 600, "all of it is read")
        again = len(reader.bodies()) - 600
        assert again <= 400, f"{again} messages came again"


def _own(reader: Reader, topic: str) -> set[TopicPartition]:
    return {tp for tp in reader.assignments if tp.topic == topic}
