"""Partitions that the fast lane reads are assigned, taken away, paused and resumed: nothing is lost, twice or stuck."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import confluent_kafka as ck
import pytest
import sidecar_fastlane as fastlane

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.lane import FastLane
from sidecar.sources.kafka.source import KafkaSource
from sidecar.state.interface import Rules
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.lane import built, lane_of
from tests.support.listening import Listening
from tests.support.memory_state import MemoryState
from tests.support.process import wait_until
from tests.support.produce import make_producer

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

PARTITIONS, STEPS, BURST = 8, 400, 8
EACH = 400
"""Messages that come to each partition before each burst of steps."""
QUEUE_BYTES = 2_000
PROMPT = {"queued.max.messages.kbytes": 64, "fetch.wait.max.ms": 10}


@pytest.fixture(scope="module")
def library() -> fastlane.Library:
    """The compiled part."""
    return fastlane.Library(built())


@dataclass
class Owner:
    """What a member of a group does with its partitions; it takes each message as soon as it comes.

    Args:
        lane: Reads.
        consumer: Its client.
        tps: All partitions.
    """

    lane: FastLane
    consumer: ck.Consumer
    tps: list[TopicPartition]
    positions: Counter[TopicPartition] = field(default_factory=Counter)
    owned: set[TopicPartition] = field(default_factory=set)
    paused: set[TopicPartition] = field(default_factory=set)
    strayed: int = 0

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """As the source does it."""
        some = set(tps) - self.owned
        self.lane.forward(some)
        self.consumer.incremental_assign([ck.TopicPartition(tp.topic, tp.partition, self.positions[tp]) for tp in some])
        self.lane.forward(some)
        self.owned |= some

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Give them up."""
        some = set(tps) & self.owned
        self.pause(self.paused - some)
        self.consumer.incremental_unassign(places(some))
        self.owned -= some

    def assign_again(self, tps: Iterable[TopicPartition]) -> None:
        """Give them up, and take them at once."""
        self.unassign(tps)
        self.assign(tps)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Exactly these."""
        some = set(tps) & self.owned
        if some - self.paused:
            self.consumer.pause(places(some - self.paused))
        if self.paused - some:
            self.consumer.resume(places(self.paused - some))
        self.paused = some

    def read(self, timeout_s: float) -> None:
        """Take what comes; a message that went past the lane makes its partition start over."""
        while (message := self.consumer.poll(0)) is not None:
            assert message.error() is None, message.error()
            self.strayed += 1
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            self.assign_again([tp])
        for run in self.lane.read(timeout_s)[0]:
            assert isinstance(run, Run)
            assert run.tp in self.owned - self.paused, f"{run.tp} is not read now"
            assert offsets_of(run) == list(range(self.positions[run.tp], run.last + 1))
            self.positions[run.tp] = run.last + 1


def places(tps: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
    """Partitions as the client names them."""
    return [ck.TopicPartition(tp.topic, tp.partition) for tp in tps]


def offsets_of(run: Run) -> list[int]:
    """The offset of each message of a run."""
    return [message.offset for message in run.messages]


def test_partitions_that_come_and_go_at_once_lose_nothing(
    library: fastlane.Library, kafka: Broker, make_topic: MakeTopic
) -> None:
    """400 times partitions are given up, taken, paused or resumed without a wait: each offset comes once, in order."""
    topic, chance = make_topic(PARTITIONS, name="moved"), random.Random(11)
    producer, produced = make_producer(kafka.bootstrap), 0
    tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with lane_of(library, kafka.bootstrap, QUEUE_BYTES, **PROMPT) as (lane, consumer):
        owner = Owner(lane, consumer, tps)
        owner.assign(tps)
        for step in range(STEPS):
            if step % BURST == 0:
                for number in range(PARTITIONS * EACH):
                    producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
                producer.flush()
                produced += EACH
            some = chance.sample(tps, chance.randint(1, PARTITIONS))
            chance.choice([owner.unassign, owner.assign, owner.pause, owner.assign_again, owner.assign_again])(some)
            if chance.random() < 0.3:
                owner.read(0)
            if step % BURST == BURST - 1:
                owner.assign(tps)
                owner.pause([])
                goals = {tp: min(produced, owner.positions[tp] + 1) for tp in tps}
                wait_until(partial(reached, owner, goals), 20, "each is read on", detail=lambda: dict(owner.positions))
        goals = dict.fromkeys(tps, produced)
        wait_until(partial(reached, owner, goals), 30, "all is read", detail=lambda: dict(owner.positions))
    assert owner.strayed < STEPS // 10


def reached(owner: Owner, goals: Mapping[TopicPartition, int]) -> bool:
    """Read on; whether each partition has come so far."""
    owner.read(0.01)
    return all(owner.positions[tp] >= goal for tp, goal in goals.items())


def test_a_partition_whose_messages_go_past_the_lane_is_taken_again(
    library: fastlane.Library, kafka: Broker, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source reloads it, and then each message comes through the lane."""
    produce(kafka.bootstrap, topic, (Outgoing(0, b"%d" % number) for number in range(1_000)))
    forward, forwarded = FastLane.forward, list[bool]()

    def forgets(lane: FastLane, tps: Iterable[TopicPartition]) -> None:
        forwarded.append(len(forwarded) >= 2)
        if forwarded[-1]:
            forward(lane, tps)

    monkeypatch.setattr(FastLane, "forward", forgets)
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap, group_id=group, topics=[topic])
    lane, listener = FastLane(library, 1 << 20), Listening()
    source = KafkaSource(settings, SourceContext(MemoryState(), Rules(b"same"), 1 << 20), lane)
    source.open(listener)
    offsets = list[int]()

    def all_came() -> bool:
        for run in source.poll(0.02):
            assert isinstance(run, Run)
            assert run.sorter is not None
            offsets.extend(offsets_of(run))
        return len(offsets) >= 1_000

    wait_until(all_came, 30, "all come through the lane", detail=lambda: (len(offsets), forwarded))
    source.close()
    assert offsets == list(range(1_000))
    assert TopicPartition(topic, 0) in listener.gone
