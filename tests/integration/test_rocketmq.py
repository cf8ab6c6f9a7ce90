"""The whole daemon between a real RocketMQ and a receiver: each wanted message once, through kills and rebalances."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.scenarios.rocketmq_messages import PATIENCE_S, QUEUES, Flow, await_all, configuration, owned
from tests.support.kafka import unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import BROKER, Message, Node
from tests.support.scene import await_rest


@pytest.fixture
def topic(rocketmq: Node) -> str:
    """A topic of 8 queues."""
    return rocketmq.create_topic(unique("topic"), QUEUES)


def test_messages_flow_in_envelopes_with_all_that_rocketmq_tells(
    rocketmq: Node, topic: str, group: str, tmp_path: Path
) -> None:
    """A tag's messages come in its group, with broker, ids, keys, properties; the part's name has the broker."""
    with Receiver() as receiver:
        body = b"\x00binary \xff" + bytes(1 << 20)
        rocketmq.send(
            topic,
            [Message(body, tag="paid", keys="k1 k2", properties={"colour": "rot"}), Message(b"other", tag="draft")],
        )
        with Daemon(tmp_path, configuration(rocketmq, topic, group, receiver.url)) as daemon:
            wait_until(lambda: receiver.rows(), PATIENCE_S, "it arrives", detail=daemon.log_tail)
            status = await_rest(daemon, PATIENCE_S)
            daemon.stop()
    (line,) = receiver.bodies[0].splitlines()
    found = orjson.loads(line)
    assert (found["topic"], found["partition"], found["offset"], found["broker"]) == (topic, 0, 0, BROKER)
    assert (found["tag"], found["keys"], found["reconsume_times"]) == ("paid", ["k1", "k2"], 0)
    assert found["properties"]["colour"] == "rot"
    assert found["message_id"] == found["properties"]["UNIQ_KEY"]
    assert len(found["offset_message_id"]) == 32
    (part,) = receiver.parts()
    assert f":{BROKER}:0:0-0" in part["part"]
    assert {one["broker"] for one in status["partitions"]} == {BROKER}


def test_kills_lose_nothing_and_repeat_no_name(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """Killed 3 times in mid-flow, its state kept: each message is stored once, and it goes on at once."""
    flow = Flow(rocketmq, topic)
    with Receiver() as receiver:
        receiver.fail("slow", delay_ms=15)
        with Daemon(tmp_path, configuration(rocketmq, topic, group, receiver.url)) as daemon:
            for number in range(3):
                flow.send(2_000)
                before = receiver.stats["rows"]
                wait_until(
                    lambda before=before: receiver.stats["rows"] >= min(before + 200, flow.wanted.total()),  # type: ignore[misc]
                    PATIENCE_S, f"life {number} delivers", detail=daemon.log_tail,
                )  # fmt: skip
                daemon.kill9()
                daemon.start()
            flow.send(1_000)
            await_all(daemon, flow, receiver)
            daemon.stop()
        assert flow.tally(receiver).exact


def test_a_stop_in_mid_flow_repeats_nothing_at_all(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """Stopped in order and started without its state, it sends nothing twice, and the receiver need not remember."""
    flow = Flow(rocketmq, topic)
    with Receiver(remember=False) as receiver:
        config = configuration(rocketmq, topic, group, receiver.url)
        with Daemon(tmp_path, config, name="first") as daemon:
            flow.send(2_000)
            wait_until(lambda: receiver.stats["rows"] > 200, PATIENCE_S, "it delivers", detail=daemon.log_tail)
            daemon.stop()
        with Daemon(tmp_path, config, name="second") as daemon:
            flow.send(1_000)
            await_all(daemon, flow, receiver)
        assert flow.tally(receiver).exact


@pytest.mark.proof
def test_members_come_and_go(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """Three members join, leave in order and join again: nothing is lost or twice, and no queue is had by two."""
    flow = Flow(rocketmq, topic)
    with Receiver(remember=False) as receiver:
        config = configuration(rocketmq, topic, group, receiver.url)
        members = [Daemon(tmp_path, config, name=f"member-{number}") for number in range(3)]
        with ended_after(members):
            members[0].start()
            for member in (members[1], members[2]):
                flow.send(500)
                member.start()
                await_sharing(members)
            flow.send(500)
            members[0].stop()
            await_sharing(members)
            flow.send(500)
            members[0].start()
            await_sharing(members)
            members[2].stop()
            flow.send(500)
            await_sharing(members)
            wait_until(lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived")
            for member in members[:2]:
                await_rest(member, PATIENCE_S)
                member.stop()
        assert flow.tally(receiver).exact


def test_a_queue_is_settled_before_another_member_has_it(
    rocketmq: Node, topic: str, group: str, tmp_path: Path
) -> None:
    """A member joins when some tags are delivered and others wait for their linger: nothing comes twice."""
    flow = Flow(rocketmq, topic)
    with Receiver(remember=False) as receiver:
        batch = {"max_messages": 5, "linger": "60s"}
        config = configuration(rocketmq, topic, group, receiver.url, batch=batch)
        members = [Daemon(tmp_path, config, name=f"member-{number}") for number in range(2)]
        with ended_after(members):
            members[0].start()
            flow.send(500)
            wait_until(lambda: receiver.stats["rows"] > 50, PATIENCE_S, "some are delivered")
            members[1].start()
            await_sharing(members)
            for member in members:
                member.stop()
        assert flow.tally(receiver).exact


def await_sharing(members: list[Daemon]) -> None:
    """Wait until every running member has queues and together they have all; none is ever had by two at an instant."""

    def shared() -> bool:
        here = [member for member in members if member.running]
        had = [owned(member) for member in here]
        return all(had) and sum(map(len, had)) == len(set().union(*had)) == QUEUES

    wait_until(shared, PATIENCE_S, "the queues are shared", detail=lambda: [one.log_tail() for one in members])


def test_queues_that_are_removed_leave_the_status(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """The totals go on counting their messages."""
    flow = Flow(rocketmq, topic)
    with (
        Receiver() as receiver,
        Daemon(tmp_path, configuration(rocketmq, topic, group, receiver.url)) as daemon,
    ):
        flow.send(1_000)
        await_all(daemon, flow, receiver)
        rocketmq.create_topic(topic, 2)
        wait_until(lambda: queues(daemon, topic) == {0, 1}, PATIENCE_S, "they leave", detail=daemon.status)
        assert daemon.status()["delivered"] == flow.wanted.total()
        daemon.stop()


def queues(daemon: Daemon, topic: str) -> set[int]:
    """The queues of a topic that are in the status."""
    return {one["partition"] for one in daemon.status()["partitions"] if one["topic"] == topic}


def test_a_wrong_configuration_is_told(rocketmq: Node, group: str, tmp_path: Path) -> None:
    """A topic that is not there ends the start with 69 and a sentence, and so do name servers that are away."""
    for servers, topic, words in (
        (rocketmq.name_server, "no-such-topic", "do not know the topic no-such-topic"),
        ("127.0.0.1:9", "orders", "could not be reached"),
    ):
        config = configuration(rocketmq, topic, group, "http://localhost:9/")
        config["source"]["rocketmq"] |= {"name_servers": servers, "start_timeout": "3s"}
        daemon = Daemon(tmp_path, config, name=unique("wrong"))
        daemon.start()
        daemon.wait(69, PATIENCE_S)
        assert words in daemon.log_path.read_text()
