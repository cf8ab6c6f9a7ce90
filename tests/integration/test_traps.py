"""The traps of the Kafka client that were met, each shown closed: on the source alone, or on the whole daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from kafka import KafkaProducer

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import LaneState, PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.errors import ConfigError
from sidecar.sources.base import ReadPast
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.config import consumer_config
from sidecar.sources.kafka.lane import FastLane, load
from sidecar.sources.kafka.source import KafkaSource
from sidecar.state.interface import Rules
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce, unique
from tests.support.listening import Listening
from tests.support.memory_state import MemoryState
from tests.support.process import wait_until
from tests.support.receiver import Receiver, Request
from tests.support.scene import Scene, await_rest

RULES = b"same"
QUEUE_BYTES = 1 << 20
BAD_NAMES = 50
"""Python calls a method in another way once it is hot."""


class NotUtf8(str):
    """A header name that the client writes as other bytes than UTF-8."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


class HoldingReceiver(Receiver):
    """The receiver, which stores and answers some requests only when it is told to.

    Attributes:
        held: How many have come.
        go: Set it to let them go on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.held = self._wanted = 0

    def __enter__(self) -> HoldingReceiver:
        return self

    def hold(self, count: int) -> None:
        """Hold the next so many."""
        self._wanted = self.held + count

    def store(self, request: Request, marker: bytes = b"") -> list[int]:
        """Wait, then store."""
        with self._lock:
            is_held = self.held < self._wanted
            self.held += is_held
        if is_held:
            self.go.wait(50)
        return super().store(request, marker)


class Opened:
    """The source alone, joined to a group.

    Args:
        settings: Of the source.
        lane: Reads for it; a text if the client does.
    """

    def __init__(self, settings: KafkaSettings, lane: FastLane | str) -> None:
        self.listener = Listening()
        self.source = KafkaSource(settings, SourceContext(MemoryState(), Rules(RULES), QUEUE_BYTES), lane)
        self.offsets: list[int] = []
        self.position = 0

    def poll(self) -> bool:
        """Read once; gives whether anything came."""
        before = len(self.offsets)
        for one in self.source.poll(0.02):
            if isinstance(one, Run):
                self.offsets += self.source.columns.offsets(one.messages)
                self.position = one.last + 1
            else:
                assert isinstance(one, ReadPast)
                self.position = one.position
        return len(self.offsets) > before

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Read on until the condition holds."""
        wait_until(lambda: condition() or (self.poll() and condition()), 15, what)


@pytest.fixture
def settings(kafka: Broker, topic: str, group: str) -> KafkaSettings:
    """A topic of one partition, read by a new group."""
    return KafkaSettings(bootstrap_servers=kafka.bootstrap, group_id=group, topics=[topic])


@pytest.fixture(params=["Python", "the lane"])
def lane(request: pytest.FixtureRequest) -> FastLane | str:
    """Both ways to read."""
    if request.param == "Python":
        return "off"
    try:
        return FastLane(load(), QUEUE_BYTES)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
def opened(settings: KafkaSettings, lane: FastLane | str) -> Iterator[Opened]:
    """The source alone, joined to its group when the test polls."""
    opened = Opened(settings, lane)
    opened.source.open(opened.listener)
    yield opened
    opened.source.close()


# The source alone


def test_the_clients_pace_is_set(settings: KafkaSettings) -> None:
    """What the client fetches ahead is bounded and quick: its own defaults halve the rate and hold 64 MB."""
    config = consumer_config(settings, QUEUE_BYTES)
    assert config["fetch.queue.backoff.ms"] == 10
    assert config["queued.max.messages.kbytes"] == QUEUE_BYTES >> 10
    assert config["fetch.max.bytes"] == QUEUE_BYTES // 4
    assert config["message.max.bytes"] <= config["fetch.max.bytes"]  # else the client raises the latter to the former
    assert (config["session.timeout.ms"], config["heartbeat.interval.ms"]) == (9_000, 500)


def test_a_callback_that_raises_is_heard(
    settings: KafkaSettings, lane: FastLane | str, kafka: Broker, topic: str
) -> None:
    """An error in a callback comes out of `poll`, instead of being swallowed together with what was fetched."""
    opened = Opened(settings, lane)

    def fail() -> None:
        raise ZeroDivisionError("in a callback")

    opened.listener.on_committed = fail
    opened.source.open(opened.listener)
    opened.until(lambda: opened.listener.found, "the partition is assigned")
    (found,) = opened.listener.found
    opened.source.commit([CommitItem(found.tp, found.scope, PartitionState(0, 0))])
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        opened.until(lambda: False, "the callback is called")
    with pytest.raises(ZeroDivisionError):
        opened.source.close()


def test_a_commit_may_end_while_partitions_are_taken(opened: Opened, kafka: Broker, topic: str, group: str) -> None:
    """Its end is told then: where the client asks for topics in one callback, the next one aborts the process."""

    def commit() -> None:
        (found,) = opened.listener.found
        opened.source.commit([CommitItem(found.tp, found.scope, PartitionState(0, 0))])
        wait_until(lambda: (topic, 0) in kafka.committed(group), 15, "the broker has it")

    opened.listener.on_assigned = commit
    opened.until(lambda: opened.listener.results, "its end is told")
    assert opened.listener.results == [{TopicPartition(topic, 0): True}]


def test_a_change_of_metadata_alone_is_committed(opened: Opened, kafka: Broker, topic: str, group: str) -> None:
    """Two commits of the same offset with another state both reach the broker, the second with its metadata."""
    opened.until(lambda: opened.listener.found, "the partition is assigned")
    (found,) = opened.listener.found
    seen = []
    for state in (PartitionState(0, 0), PartitionState(0, 7, {42: LaneState(3, ((0, 2),))})):
        told = len(opened.listener.results)
        opened.source.commit([CommitItem(found.tp, found.scope, state)])
        opened.until(lambda told=told: len(opened.listener.results) > told, "the commit ended")  # type: ignore[misc]
        assert opened.listener.results[-1] == {found.tp: True}
        seen.append(kafka.committed(group)[topic, 0])
    assert seen[0][0] == seen[1][0] == 0
    assert seen[0][1] != seen[1][1] != ""


def test_a_pause_at_the_assignment_holds(opened: Opened, kafka: Broker, topic: str) -> None:
    """Paused the moment it is assigned, a partition gives nothing until it is resumed, and then everything."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v")] * 100)
    listener = opened.listener
    listener.on_assigned = lambda: opened.source.pause([one.tp for one in listener.found])
    opened.until(lambda: listener.found, "the partition is assigned")
    until_s = time.monotonic() + 1.5
    opened.until(lambda: time.monotonic() > until_s, "some time passes")
    assert opened.offsets == []
    opened.source.pause([])
    opened.until(lambda: len(opened.offsets) >= 100, "all is read")
    assert opened.offsets == list(range(100))


def test_a_pause_loses_nothing_that_was_fetched_ahead(opened: Opened, kafka: Broker, topic: str) -> None:
    """Paused and resumed again and again in mid-flow, every message comes once and in order."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v" * 100)] * 20_000)
    tp = TopicPartition(topic, 0)
    opened.until(lambda: opened.offsets, "reading has begun")
    while opened.position < 20_000:
        opened.source.pause([tp])
        opened.poll()
        opened.source.pause([])
        read = len(opened.offsets)
        opened.until(lambda read=read: len(opened.offsets) >= min(20_000, read + 2_000), "reading goes on")  # type: ignore[misc]
    assert opened.offsets == list(range(20_000))


def test_a_resumed_partition_is_fetched_at_once(
    settings: KafkaSettings, lane: FastLane | str, kafka: Broker, make_topic: MakeTopic
) -> None:
    """The client's thread would sleep on, for up to a second, beside a partition that goes on."""
    topic = make_topic(2)
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v" * 1_000)] * 20_000)
    opened = Opened(settings.model_copy(update={"topics": [topic]}), lane)
    opened.source.open(opened.listener)
    opened.until(lambda: opened.offsets, "reading has begun")
    waits = []
    for _ in range(15):
        opened.source.pause([TopicPartition(topic, 0)])
        paused_s = time.monotonic()
        opened.until(lambda paused_s=paused_s: time.monotonic() > paused_s + 0.15, "the client is idle")  # type: ignore[misc]
        opened.source.pause([])
        resumed_s, read = time.monotonic(), len(opened.offsets)
        opened.until(lambda read=read: len(opened.offsets) > read, "it is read again")  # type: ignore[misc]
        waits.append(time.monotonic() - resumed_s)
    opened.source.close()
    assert sorted(waits)[len(waits) // 2] < 0.25, waits
    assert opened.offsets == list(range(len(opened.offsets)))


def test_the_first_message_ends_a_long_wait(opened: Opened, kafka: Broker, topic: str) -> None:
    """An idle daemon does not sleep while a message is there."""
    opened.until(lambda: opened.listener.found, "the partition is assigned")
    sender = threading.Timer(0.5, lambda: produce(kafka.bootstrap, topic, [Outgoing(0, b"v")]))
    begun_s = time.monotonic()
    sender.start()
    while not [one for one in opened.source.poll(20.0) if isinstance(one, Run)]:
        pass
    assert time.monotonic() - begun_s < 15


def test_a_partition_that_was_paused_is_read_when_it_comes_back(opened: Opened, kafka: Broker, topic: str) -> None:
    """The client would keep it paused over the end of its assignment, for ever."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v" * 100)] * 20_000)
    tp = TopicPartition(topic, 0)
    opened.until(lambda: opened.offsets, "reading has begun")
    opened.source.pause([tp])
    until_s = time.monotonic() + 0.5
    opened.until(lambda: time.monotonic() > until_s, "the client has paused it")
    del opened.offsets[:]
    opened.source.reload(tp)
    opened.until(lambda: len(opened.offsets) >= 20_000, "it is read from its begin")
    assert opened.offsets == list(range(20_000))


def test_a_late_commit_names_no_partition_that_moved(opened: Opened, kafka: Broker, group: str) -> None:
    """After a partition was given up, a commit under its earlier ownership is dropped: a new owner's would be lost."""
    opened.until(lambda: opened.listener.found, "the partition is assigned")
    (old,) = opened.listener.found
    opened.source.reload(old.tp)
    (_, new) = opened.listener.found
    assert old.scope != new.scope
    assert opened.source.commit_now([CommitItem(old.tp, old.scope, PartitionState(5, 5))]) == {}
    assert kafka.committed(group) == {}
    assert opened.source.commit_now([CommitItem(new.tp, new.scope, PartitionState(3, 3))]) == {new.tp: True}
    assert kafka.committed(group)[new.tp.topic, new.tp.partition][0] == 3


# The whole daemon


def test_an_idle_daemon_uses_little(scene: Scene) -> None:
    """At rest it takes less than 5 % of a core, and a message that comes then is delivered soon."""

    def cpu_s(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with scene.daemon() as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        used, begun = cpu_s(daemon.pid), time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 3, 5, "three seconds pass")
        assert (cpu_s(daemon.pid) - used) / (time.monotonic() - begun) < 0.05
        rows = scene.send([b"fresh"])
        wait_until(lambda: set(rows) <= set(scene.receiver.rows()), 5, "a fresh message arrives")
        scene.await_all(daemon)


def test_a_stop_during_a_rebalance_is_a_stop(kafka: Broker, group: str, tmp_path: Path) -> None:
    """A member that is asked to stop while another one joins commits what is settled and ends with 0."""
    topic = kafka.create_topic(unique("topic"), 4)
    with Receiver() as receiver:
        scene = Scene(kafka, tmp_path, receiver, topic, group)
        with scene.daemon("first") as first, scene.daemon("second") as second:
            second.kill9()
            scene.send((b"%d" % i for i in range(500)), partition=0)
            scene.await_all(first)
            second.start()
            wait_until(lambda: second.events("daemon.started"), 15, "the second one joins", detail=second.log_tail)
            first.stop(15)
            scene.send((b"%d" % i for i in range(500)), partition=3)
            scene.await_all(second)
            assert len(scene.receiver.rows()) == 1_000


def test_an_answer_after_the_partition_moved_changes_nothing(kafka: Broker, group: str, tmp_path: Path) -> None:
    """A slow answer that comes when the partition is another member's is not counted, and the books still balance."""
    topic = kafka.create_topic(unique("topic"), 2)
    with HoldingReceiver() as receiver:
        scene = Scene(kafka, tmp_path, receiver, topic, group)
        slow = {"sink": {"http": {"timeout": "60s"}}}
        with scene.daemon("first", **slow) as first:
            first.wait_ready()
            receiver.hold(2)
            scene.send([b"slow 0"], partition=0)
            scene.send([b"slow 1"], partition=1)
            wait_until(lambda: receiver.held == 2, 20, "both are being sent", detail=first.log_tail)
            with scene.daemon("second", **slow) as second:
                second.wait_ready()
                rows = scene.receiver.rows
                wait_until(rows, 30, "the second one delivers", detail=second.log_tail)  # the first one has let go then
                receiver.go.set()
                wait_until(lambda: sorted(rows()) == sorted(scene.expected), 30, "both arrived", detail=second.log_tail)
                status = await_rest(first)
                assert (status["delivered"], status["released"]) == (1, 1)
                assert await_rest(second)["delivered"] == 1
                wait_until(lambda: receiver.stats["repeated_parts"] == 1, 10, "the slow one comes too")

                def committed() -> bool:
                    return {kafka.committed(group)[topic, partition][0] for partition in (0, 1)} == {1}

                wait_until(committed, 10, "both are committed", detail=second.log_tail)


def test_a_header_name_that_is_not_utf8_stops_nothing(scene: Scene) -> None:
    """The client gives null pointers for such names; the daemon delivers the message, with U+FFFD as Java has it."""
    producer = KafkaProducer(bootstrap_servers=scene.broker.bootstrap)
    headers = [(NotUtf8("name"), b"1"), ("tag", b"a"), ("none", b"")]
    for number in range(BAD_NAMES):
        producer.send(scene.topic, b"%d" % number, headers=headers)
    producer.close()
    with scene.daemon() as daemon:
        daemon.wait_ready()
        assert await_rest(daemon, 15, {(scene.topic, 0): BAD_NAMES})["delivered"] == BAD_NAMES
        daemon.stop()
    rows = [orjson.loads(line) for body in scene.receiver.bodies for line in body.splitlines()]
    assert [row["headers"] for row in rows] == [
        [["\N{REPLACEMENT CHARACTER}", "1"], ["tag", "a"], ["none", ""]]
    ] * BAD_NAMES
    assert {row["tag"] for row in rows} == {"a"}


def test_a_dead_letter_of_one_megabyte_reaches_its_topic(scene: Scene) -> None:
    """A client produces less than 1 MB by default: the topic decides what is too large, and nothing waits for ever."""
    letters = scene.broker.create_topic(unique("dead"), config={"max.message.bytes": "2000000"})
    value = b"POISON" + b"x" * (1 << 20)
    scene.receiver.fail("status", status=422, marker="POISON")
    produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, value, None, [("tag", b"a")])])
    with scene.daemon(dead_letters={"kafka": {"topic": letters}}) as daemon:
        daemon.wait_ready()
        assert await_rest(daemon, 15, {(scene.topic, 0): 1})["dead_lettered"] == 1
        daemon.stop()
    assert scene.broker.end_offsets(letters) == {0: 1}
