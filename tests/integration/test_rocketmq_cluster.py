"""Several RocketMQ brokers behind one name server: two masters, and a slave of one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.records import TopicPartition
from tests.scenarios.rocketmq_messages import QUEUES, Flow, await_all, configuration, owned
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.reading import PATIENCE_S
from tests.support.receiver import Receiver
from tests.support.rocketmq import BROKER, RocketMqNode
from tests.support.rocketmq_reader import Reader

OTHER = "broker-b"
SENT = [b"%03d" % i for i in range(500)]
READ_FROM_SLAVES = {"slaveReadEnable": "true"}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A name server, and a master that has a slave."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "master", config=READ_FROM_SLAVES) as node:
        yield node


@pytest.fixture(scope="module")
def slave(master: RocketMqNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A slave of the master."""
    folder = tmp_path_factory.mktemp("rocketmq") / "slave"
    with RocketMqNode(folder, config=READ_FROM_SLAVES, joins=master, number=1) as node:
        yield node


@pytest.fixture
def fresh(slave: RocketMqNode) -> RocketMqNode:
    """The slave, just started: one whose master was away may take a minute or more to copy from it again."""
    slave.kill()
    slave.start()
    return slave


@pytest.fixture
def copied(master: RocketMqNode, slave: RocketMqNode) -> str:
    """A topic of one queue with 500 messages, which the slave has too."""
    topic = master.create_topic(unique("topic"), 1)
    slave.learn_topic(topic, 1)
    master.send(topic, SENT, queues=1)

    def has_all() -> bool:
        return slave.ends_here(topic, 1) == {0: len(SENT)}

    wait_until(has_all, 2 * PATIENCE_S, "the slave has its copies")
    return topic


@pytest.fixture
def other(master: RocketMqNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """Another master."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "other", joins=master, name=OTHER) as node:
        yield node


def test_one_of_two_brokers_dies(master: RocketMqNode, other: RocketMqNode, group: str) -> None:
    """The other one's queues are read and committed as before; back again, it goes on where it was."""
    topic = master.create_topic(unique("topic"), 2)
    master.create_topic(topic, 2, broker=OTHER)
    with Reader(master, group, [topic]) as reader:
        reader.own(4, topic)
        for broker in (BROKER, OTHER):
            master.send(topic, [f"{broker} {i}".encode() for i in range(20)], queues=2, broker=broker)
        reader.read(40)
        assert all(reader.commit().values())
        other.kill()
        reader.until(lambda: OTHER in reader.source.problems(), "it is missed")
        master.send(topic, [b"meanwhile"] * 10, queues=2)
        reader.read(50)
        ends = {tp.broker: ok for tp, ok in reader.commit().items() if tp.topic == topic}
        assert ends == {BROKER: True, OTHER: False}
        other.start()
        master.forget_links()
        reader.until(lambda: not reader.source.problems(), "it is well again")
        master.send(topic, [b"afterwards"] * 10, queues=2, broker=OTHER)
        assert len(reader.read(60)) == 60
        assert all(reader.commit().values())
    assert master.committed(group, topic, 2) == {0: 15, 1: 15}
    assert master.committed(group, topic, 2, broker=OTHER) == {0: 15, 1: 15}


@pytest.mark.parametrize("readable", ["true", pytest.param("false", marks=pytest.mark.proof)])
def test_a_master_with_too_much_to_do_sends_readers_to_its_slave(
    master: RocketMqNode, slave: RocketMqNode, copied: str, group: str, readable: str
) -> None:
    """Messages come from there, if it may be read; if not, from the master. None is left out either way."""
    slave.link(slave.broker_address).ask(25, {}, f"slaveReadEnable={readable}\n".encode())
    master.configure(accessMessageInMemoryMaxRatio="0")
    try:
        with Reader(master, group, [copied]) as reader:
            assert reader.read(500) == SENT
            assert [one.offset for one in reader.messages[TopicPartition(copied, 0, BROKER)]] == list(range(500))
            assert all(reader.commit().values())
            assert slave.broker_address in reader.source._cluster.network.links
    finally:
        master.configure(accessMessageInMemoryMaxRatio="40")
        slave.link(slave.broker_address).ask(25, {}, b"slaveReadEnable=true\n")


@pytest.mark.proof
def test_a_slave_is_read_while_its_master_is_dead(
    master: RocketMqNode, slave: RocketMqNode, copied: str, group: str
) -> None:
    """What it has of a queue is read and settled in the state file; the master is told when it is back."""
    assert slave.broker_address != master.broker_address
    with Reader(master, group, [copied]) as reader:
        reader.own(1, copied)
        master.kill()
        assert reader.read(500) == SENT
        assert all(reader.commit().values())
        master.start()
        reader.until(lambda: not reader.source.problems(), "the master is back")
        reader.until(lambda: master.committed(group, copied, 1) == {0: 500}, "it is told")
        master.send(copied, [b"x"], queues=1)
        assert len(reader.read(501)) == 501
        assert not reader.told("partition.reset") and not reader.told("topic.recreated")


def test_the_daemon_delivers_from_a_slave(
    master: RocketMqNode, fresh: RocketMqNode, group: str, tmp_path: Path
) -> None:
    """What a slave has is delivered while the master is dead, and nothing of it again after a stop meanwhile."""
    topic = master.create_topic(unique("topic"), QUEUES)
    fresh.learn_topic(topic, QUEUES)
    flow = Flow(master, topic)
    with Receiver(remember=False) as receiver:
        with Daemon(tmp_path, configuration(master, topic, group, receiver.url)) as daemon:
            wait_until(lambda: len(owned(daemon)) == QUEUES, PATIENCE_S, "it has its queues", detail=daemon.log_tail)
            daemon.process.send_signal(signal.SIGSTOP)  # else it has read them before the master dies
            flow.send(2_000)
            # What was sent stands in the queues a little later than in the log.
            wait_until(lambda: sum(master.end_offsets(topic, QUEUES).values()) == flow.sent, PATIENCE_S, "it is there")
            ends = master.end_offsets(topic, QUEUES)
            wait_until(lambda: fresh.ends_here(topic, QUEUES) == ends, 2 * PATIENCE_S, "the slave has its copies")
            master.kill()
            daemon.process.send_signal(signal.SIGCONT)
            wait_until(lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived", detail=daemon.log_tail)
            daemon.stop()
            master.start()
            daemon.start()
            flow.send(500)
            await_all(daemon, flow, receiver)
        assert flow.tally(receiver).exact
