"""The whole daemon over librocketmq in its child process: each wanted message once, whatever dies in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.native.cluster import NativeCluster
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.messages import decode
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription
from tests.scenarios.ledger import handed_twins
from tests.support import rocketmq_flow as flows
from tests.support.postgresql import Database
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import BROKER, Message, RefusedError, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, Bodies, await_all, configuration
from tests.support.rocketmq_made_again import made_again


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node of these tests alone: they kill it."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node") as node:
        yield node


@pytest.fixture
def source(node: RocketMqNode) -> dict[str, Any]:
    """The source section without topic and group."""
    return flows.source_of("native", node)


def answer(node: RocketMqNode, ask: Ask) -> bytes:
    """The body of the broker's answer, empty while it refuses."""
    try:
        return node.ask_broker(ask.code, ask.fields)[1]
    except RefusedError:
        return b""


def child_of(daemon: Daemon) -> int:
    """The child's process id."""
    children: list[int] = [
        child.pid
        for child in psutil.Process(daemon.pid).children()
        if "sidecar.sources.rocketmq.native.child" in child.cmdline()
    ]
    assert len(children) == 1, children
    return children[0]


@pytest.mark.proof
def test_of_what_is_sent_twice_one_is_delivered_whoever_gets_it(
    node: RocketMqNode, source: dict[str, Any], postgresql: Database, tmp_path: Path
) -> None:
    """Two members with one ledger, both killed between claim and answer: of each key one copy arrives, and once."""
    assert handed_twins(node, source, tmp_path, postgresql, 2_000, 2).exact


@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, marks=pytest.mark.proof), signal.SIGSTOP])
def test_a_child_that_ends_or_hangs_is_replaced(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path, how: signal.Signals
) -> None:
    """What it held comes again to the next one: lost 0, twice 0; the log tells it."""
    bodies = Bodies(node)
    with Receiver(out=tmp_path / "rows") as receiver:
        receiver.fail("slow", delay_ms=15)
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            bodies.send(2_000)
            wait_until(lambda: receiver.stats["rows"] > 200, PATIENCE_S, "it delivers", detail=daemon.log_tail)
            before = child_of(daemon)
            os.kill(before, how)
            bodies.send(1_000)
            await_all(daemon, bodies, receiver)
            assert child_of(daemon) != before
            word = "SIGKILL" if how is signal.SIGKILL else "silent"
            assert any(word in one["reason"] for one in daemon.events("native.ended"))
            daemon.stop()
        assert bodies.tally(receiver).exact


def test_a_broker_that_was_killed(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Back again: messages go on soon, nothing lost or twice."""
    assert flows.outages(node, source, tmp_path, 4_000, 1, within_s=PATIENCE_S).exact


def test_a_topic_made_again_while_it_is_read(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Each message of the new one arrives once, though at once it reaches beyond the old offsets; the log tells it."""
    assert made_again(node, source, tmp_path, [("flowing", 0.0)], 4_000).exact


def test_where_a_queue_starts_over_outlasts_a_late_commit(node: RocketMqNode, source: dict[str, Any]) -> None:
    """A commit of the killed child that the broker takes after ours is overwritten before the next child reads."""
    bodies = Bodies(node)
    bodies.send(100)
    cluster = NativeCluster(RocketMqSettings(**source, group=bodies.group, topics=[bodies.topic]), "client")
    try:
        cluster.open()
        other = QueueMark(offset=0, position=1, stored_ms=1)
        for tp in cluster.queues():
            cluster.marks.read(tp, other)
        assert set(cluster.rewinds.commit()) == set(cluster.queues())
        node.commit(bodies.group, bodies.topic, 3, 7)
        assert not cluster.rewinds.are_kept()
        assert cluster.rewinds.are_kept()
        assert node.committed(bodies.group, bodies.topic, QUEUES) == dict.fromkeys(range(QUEUES), 0)
    finally:
        cluster.network.close()


def test_a_retried_message_is_not_mistaken_for_another(
    node: RocketMqNode, source: dict[str, Any], tmp_path: Path
) -> None:
    """Handed back by another consumer, it comes from the retry queue; rows tell the place."""
    bodies = Bodies(node)
    node.send(bodies.topic, [Message(b"again", tag="paid", keys="k1 k2", properties={"colour": "rot"}, queue=0)])
    ask = Asks("", bodies.group).pull(TopicPartition(bodies.topic, 0, BROKER), 0, Subscription(bodies.topic))
    (stored,) = decode(wait_until(lambda: answer(node, ask), PATIENCE_S, "it can be read"))
    node.send_back(bodies.group, bodies.topic, stored.position, level=1)
    node.commit(bodies.group, bodies.topic, 0, 1)
    with Receiver() as receiver:
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            node.send(bodies.topic, [Message(b"first", tag="paid", queue=0)])
            wait_until(lambda: receiver.stats["rows"] == 2, PATIENCE_S, "all arrive", detail=daemon.log_tail)
            daemon.stop()
        found = [orjson.loads(line) for body in receiver.bodies for line in body.splitlines()]
    rows = {row["value"].encode(): row for row in found}
    assert set(rows) == {b"again", b"first"}
    first, again = rows[b"first"], rows[b"again"]
    assert (first["topic"], first["broker"], first["partition"], first["offset"]) == (bodies.topic, BROKER, 0, 1)
    assert (again["topic"], again["broker"], again["offset"]) == (f"%RETRY%{bodies.group}", BROKER, 0)
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert (again["keys"], again["properties"]["colour"]) == (["k1", "k2"], "rot")
    assert again["message_id"] == again["properties"]["UNIQ_KEY"]
    assert first["offset_message_id"].startswith("7F000001")


def test_a_damaged_body_holds_up_nothing(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """It comes as it is stored, and the log tells it; a body that is packed otherwise than by zlib comes whole."""
    bodies = Bodies(node)
    kinds = ("damaged", "lz4", "")
    sent = [Message(b"packed by " + how.encode() + bytes(5_000), tag="paid", queue=1, compress=how) for how in kinds]
    with Receiver() as receiver:
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            daemon.wait_ready()
            bodies.send_these(sent)
            await_all(daemon, bodies, receiver)
            (told,) = daemon.events("body.not_unpacked")
            assert (told["topic"], told["broker"], told["partition"]) == (bodies.topic, BROKER, 1)
            assert not daemon.events("native.ended")
            daemon.stop()
        assert bodies.tally(receiver).exact


def test_a_new_group_begins_where_it_is_told(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """With `start: latest` what was there before is not delivered, whatever librocketmq would begin with."""
    bodies = Bodies(node)
    node.send(bodies.topic, [Message(b"old", tag="paid")] * 8, queues=8)
    wait_until(lambda: sum(node.end_offsets(bodies.topic, 8).values()) == 8, PATIENCE_S, "they are stored")
    with Receiver() as receiver:
        config = configuration(source | {"start": "latest"}, bodies, receiver.url)
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            bodies.send(100)
            await_all(daemon, bodies, receiver)
            daemon.stop()
        assert bodies.tally(receiver).exact


def test_what_is_not_there_ends_the_start(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """An unknown topic and name servers that are away: 69 and a sentence."""
    bodies = Bodies(node)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"topics": ["no-such-topic"]}, "do not know the topic no-such-topic"),
        ({"name_servers": "127.0.0.1:9"}, "could not be reached"),
    ]
    for number, (change, words) in enumerate(cases):
        config = configuration(source, bodies, "http://localhost:9/")
        config["source"]["rocketmq"] |= {"start_timeout": "3s", **change}
        daemon = Daemon(tmp_path, config, name=f"wrong-{number}")
        daemon.start()
        daemon.wait(69, PATIENCE_S)
        assert words in daemon.log_path.read_text()
