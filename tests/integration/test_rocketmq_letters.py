"""Dead letters that stay with RocketMQ: the group's own topic for them, or the retry topic after a delay."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.rocketmq_messages import PATIENCE_S, configuration
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, Node
from tests.support.rocketmq_reader import Reader
from tests.support.scene import await_rest

POISON = b"\x00poison \xff"


def test_a_refused_message_goes_to_the_group_s_dead_letters(rocketmq: Node, group: str, tmp_path: Path) -> None:
    """With its body, tag and properties as they were; the others of its batch are delivered, and the books balance."""
    topic = rocketmq.create_topic(unique("topic"), 1)
    poison = Message(POISON, tag="paid", properties={"kind": "POISON"})
    rocketmq.send(topic, [Message(b"good", tag="paid"), poison, Message(b"better", tag="paid")], queues=1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="POISON")
        config = configuration(rocketmq, topic, group, receiver.url, dead_letters={"rocketmq": "dlq"})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            status = await_rest(daemon, PATIENCE_S, {(topic, 0): 3})
            daemon.stop()
    assert (status["dead_lettered"], status["delivered"], status["dead_letters_stored"]) == (1, 2, 0)
    with Reader(rocketmq, unique("group"), [f"%DLQ%{group}"]) as reader:
        assert reader.read(1) == [POISON]
        ((letter,),) = filter(None, reader.messages.values())
    assert b"kind\x01POISON\x02" in letter.properties
    assert b"RETRY_TOPIC\x01" + topic.encode() in letter.properties


def test_a_refused_message_comes_again_after_a_delay(rocketmq: Node, group: str, tmp_path: Path) -> None:
    """Handed back at a delay level, it is read from the retry topic, and delivered when nobody refuses it any more."""
    topic = rocketmq.create_topic(unique("topic"), 1)
    rocketmq.send(topic, [Message(POISON, tag="paid")], queues=1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, times=1)
        place = {"rocketmq": {"delay_level": 1}}
        with Daemon(tmp_path, configuration(rocketmq, topic, group, receiver.url, dead_letters=place)) as daemon:
            wait_until(lambda: receiver.rows(), PATIENCE_S, "it comes again", detail=daemon.log_tail)
            status = await_rest(daemon, PATIENCE_S, {(f"%RETRY%{group}", 0): 1})
    assert (status["dead_lettered"], status["delivered"]) == (1, 1)
    (row,) = receiver.rows()
    assert row[0] == f"%RETRY%{group}"
