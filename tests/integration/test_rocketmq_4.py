"""RocketMQ 4.9 with access control 1.0: the whole daemon, signed, with no more rights than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.errors import CredentialsError
from tests.scenarios.rocketmq_messages import PATIENCE_S, QUEUES, Flow, await_all, configuration
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import RocketMqNode
from tests.support.rocketmq_access import PASSWORD, sign
from tests.support.rocketmq_reader import Reader
from tests.support.scene import await_rest

USER = "operator"  # 4.9 wants more than six characters
KEYS = {"access_key": "sidecar", "secret_key": "sidecar-secret"}
ACL = f"""\
accounts:
- accessKey: {USER}
  secretKey: '{PASSWORD}'
  admin: true
- accessKey: {KEYS["access_key"]}
  secretKey: {KEYS["secret_key"]}
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node of 4.9 that lets nobody in without a signature."""
    folder = tmp_path_factory.mktemp("rocketmq") / "node"
    with RocketMqNode(folder, config={"aclEnable": "true"}, sign=partial(sign, user=USER), version=4, acl=ACL) as node:
        yield node


def test_the_daemon_on_4_9(old: RocketMqNode, group: str, tmp_path: Path) -> None:
    """Killed in mid-flow it loses nothing and repeats nothing; what is settled is committed."""
    topic = old.create_topic(unique("topic"), QUEUES)
    flow = Flow(old, topic, giants=500)
    with Receiver() as receiver:
        receiver.fail("slow", delay_ms=15)
        config = configuration(old, topic, group, receiver.url)
        config["source"]["rocketmq"] |= KEYS
        with Daemon(tmp_path, config) as daemon:
            flow.send(2_000)
            wait_until(lambda: receiver.stats["rows"] > 200, PATIENCE_S, "it delivers", detail=daemon.log_tail)
            daemon.kill9()
            daemon.start()
            flow.send(500)
            await_all(daemon, flow, receiver)
            ends = {(topic, queue): end for queue, end in old.end_offsets(topic, QUEUES).items()}
            await_rest(daemon, PATIENCE_S, ends)
            daemon.stop()
        assert flow.tally(receiver).exact
    assert old.committed(group, topic, QUEUES) == old.end_offsets(topic, QUEUES)


def test_a_wrong_key_ends_the_start(old: RocketMqNode, group: str) -> None:
    """What the broker refused is told, and what to check."""
    topic = old.create_topic(unique("topic"), 1)
    with pytest.raises(CredentialsError) as caught:
        Reader(old, group, [topic], access_key="sidecar", secret_key="wrong-secret")
    assert "access_key" in caught.value.hint


def test_messages_that_were_handed_back_come_again(old: RocketMqNode, group: str) -> None:
    """The retry topic of a group of 4.9 is read along."""
    topic = old.create_topic(unique("topic"), 1)
    old.send(topic, [b"again"], queues=1)
    with Reader(old, group, [topic], access_key=USER, secret_key=PASSWORD) as reader:
        reader.read(1)
        (first,) = next(messages for messages in reader.messages.values() if messages)
        old.send_back(group, topic, first.position, level=1)
        assert reader.read(2) == [b"again"] * 2


def test_a_reset_while_a_member_reads_is_obeyed(old: RocketMqNode, group: str) -> None:
    """A broker of 4.9 moves nothing of a group that is there: it tells the members, and they go on from there."""
    topic = old.create_topic(unique("topic"), 1)
    sent = [b"%d" % i for i in range(10)]
    old.send(topic, sent, queues=1)
    with Reader(old, group, [topic], access_key=USER, secret_key=PASSWORD) as reader:
        reader.read(10)
        reader.commit()
        old.ask_broker(222, {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"})
        reader.until(lambda: reader.told("partition.reset"), "the reset is told")
        assert reader.read(10) == sent
