"""Commits of states to Kafka: what is committed, and what is told of their ends. The consumer is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Stamp
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.source import KafkaCommits
from sidecar.state.interface import Rules
from sidecar.state.offset_map import Identity, Origin, decode

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OURS = Identity("cluster", "g", "id", 9)
FAILED = KafkaError(KafkaError.REBALANCE_IN_PROGRESS, "rebalancing")


class Scene:
    """Two owned partitions; what was committed, kept and told."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Any], bool]] = []
        self.kept: list[set[TopicPartition]] = []
        self.told: list[dict[TopicPartition, bool]] = []
        self.events: list[str] = []
        self.fails: KafkaError | None = None
        self.refused: set[int] = set()
        self.closed = 0
        self.identities = {A: OURS, B: OURS}
        listener = SimpleNamespace(
            committed=lambda results, seconds: self.told.append(dict(results)),
            event=lambda name, level, fields: self.events.append(f"{level} {name} {fields['reason']}"),
        )
        memories = SimpleNamespace(keep=lambda rows: self.kept.append({*rows}), close=self._close)
        self.commits = KafkaCommits(
            cast(Any, self), cast(Any, listener), Rules(b"rule"), self.identities, cast(Any, memories)
        )

    def _close(self) -> None:
        self.closed += 1

    def commit(self, offsets: list[Any], asynchronous: bool) -> list[Any] | None:
        """See `ck.Consumer`."""
        if self.fails:
            raise KafkaException(self.fails)
        self.asked.append((offsets, asynchronous))
        return None if asynchronous else self.done(*(tp.partition for tp in offsets))

    def done(self, *partitions: int) -> list[Any]:
        """What the broker says of these."""
        return [
            SimpleNamespace(topic="orders", partition=number, error=FAILED if number in self.refused else None)
            for number in partitions
        ]

    def end(self, *partitions: int, error: KafkaError | None = None) -> bool:
        """The oldest commit ends."""
        return self.commits.ended(error, self.done(*partitions))


def item(tp: TopicPartition = A, scope: str = OURS.scope, watermark: int = 5) -> CommitItem:
    """A state to commit."""
    return CommitItem(tp, scope, PartitionState(watermark, watermark), stamp=Stamp(3, 4))


@pytest.fixture
def scene() -> Scene:
    """Nothing is committed."""
    return Scene()


def test_a_state_is_the_metadata_of_its_watermark(scene: Scene) -> None:
    """With the identity of the partition and the rules in force."""
    scene.commits.begin_commit([item(watermark=7), item(B)])
    (((one, other), asynchronous),) = scene.asked
    assert (one.topic, one.partition, one.offset, other.partition, asynchronous) == ("orders", 0, 7, 1, True)
    decoded = decode(one.metadata, 7, OURS, b"rule")
    assert (decoded.origin, decoded.state, decoded.stamp) == (Origin.OURS, PartitionState(7, 7), Stamp(3, 4))


def test_the_end_of_a_commit_is_told_by_partition(scene: Scene) -> None:
    """What succeeded is kept; a partition that the broker does not name has failed."""
    scene.commits.begin_commit([item(), item(B)])
    assert (scene.told, scene.kept) == ([], [])
    scene.refused = {1}
    assert not scene.end(0, 1)
    assert (scene.told, scene.kept) == ([{A: True, B: False}], [{A}])
    assert scene.events[0].startswith("warning commit.failed ")
    scene.refused = set()
    for _ in range(2):
        scene.commits.begin_commit([item(), item(B)])
    assert scene.end(0, 1)
    assert (scene.told[-1], scene.kept[-1]) == ({A: True, B: True}, {A, B})


def test_a_commit_that_fails_as_a_whole_is_told_so(scene: Scene) -> None:
    """At its end, or at once."""
    scene.commits.begin_commit([item()])
    assert not scene.end(0, error=FAILED)
    assert (scene.told, scene.kept) == ([{A: False}], [set()])
    scene.fails = FAILED
    scene.commits.begin_commit([item(B)])
    assert scene.told[-1] == {B: False}
    assert len(scene.events) == 2
    assert scene.commits.now([item()]) == {A: False}
    assert (len(scene.events), scene.told[-1]) == (3, {B: False})


@pytest.mark.parametrize("is_now", [True, False])
def test_a_state_of_an_earlier_ownership_is_never_committed(scene: Scene, is_now: bool) -> None:
    """The partition may have moved while the journal was written, and come back as another one."""
    scene.identities[A] = Identity("cluster", "g", "id", 10)
    del scene.identities[B]
    items = [item(), item(B)]
    if is_now:
        assert scene.commits.now(items) == {}
    else:
        scene.commits.begin_commit(items)
        assert scene.told == [{}]
    assert scene.asked == []


def test_a_commit_now_comes_after_those_under_way(scene: Scene) -> None:
    """Their ends are not told any more, and what they have is not kept: it is older."""
    scene.commits.begin_commit([item()])
    assert scene.commits.now([item(watermark=6)]) == {A: True}
    assert (scene.asked[-1][1], scene.kept) == (False, [{A}])
    assert scene.end(0)
    assert (scene.told, scene.kept) == ([], [{A}])
    scene.refused = {0}
    assert scene.commits.now([item(), item(B)]) == {A: False, B: True}
    assert scene.kept[-1] == {B}


def test_rows_that_are_left_are_written_at_the_end(scene: Scene) -> None:
    """By the memory of the host."""
    scene.commits.close()
    assert scene.closed == 1


def test_places_have_no_broker(scene: Scene) -> None:
    """Kafka's partitions are known by topic and number."""
    scene.commits.begin_commit([item()])
    assert isinstance(scene.asked[0][0][0], Place)
