"""Owned partitions: what is retried, what is a problem, and what a rebalance notes. No broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import KafkaError

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.partitions import Membership, Partitions
from sidecar.sources.kafka.start import KafkaStarts
from sidecar.sources.troubles import Troubles
from tests.support.memory_state import MemoryState

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Starts:
    """Knows no start offset, except of these."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.known: set[TopicPartition] = set()

    def find(self, tps: Sequence[TopicPartition], _: float) -> KafkaStarts:
        self.asked.append(list(tps))
        found: list[Any] = [SimpleNamespace(tp=tp, read_from=5) for tp in tps if tp in self.known]
        return found, {tp: KafkaError(KafkaError._TIMED_OUT) for tp in tps if tp not in self.known}

    def identity(self, assignment: Any) -> Any:
        return assignment.tp

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None: ...


class Scene:
    """Partitions whose start is unknown, and topics that are deleted when told."""

    def __init__(self, *topics: str) -> None:
        self.consumer = SimpleNamespace(
            incremental_assign=lambda _: None, incremental_unassign=lambda _: None, memberid=lambda: "me-1",
            pause=lambda _: None, resume=lambda _: None, position=lambda _: [],
        )  # fmt: skip
        self.starts, self.deleted = Starts(), dict[str, None]()
        self.told: list[str] = []
        self.troubles = Troubles(lambda name, *_: self.told.append(name), "kafka.failed", "kafka.recovered")
        ends: Any = SimpleNamespace(
            ask_soon=lambda: None, watch=lambda _: None, forget_partitions=lambda _: None, silent=False
        )
        topic_ids: Any = SimpleNamespace(watch=lambda _: self.deleted.items())
        self.settings = KafkaSettings.model_validate(
            {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": list(topics)}
        )
        self.assigned: list[list[TopicPartition]] = []
        listener: Any = SimpleNamespace(
            assigned=lambda found: self.assigned.append([each.tp for each in found]), revoking=lambda _: None
        )
        self.partitions = Partitions(
            self.consumer, self.settings, listener, self.troubles, self.starts, ends, topic_ids,  # type: ignore[arg-type]
        )  # fmt: skip
        self.listener = listener


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each retry is due."""
    monkeypatch.setattr("sidecar.sources.kafka.partitions.RETRY_S", 0.0)
    monkeypatch.setattr("sidecar.sources.kafka.partitions.RETRY_SHARE", 0)


def test_a_partition_that_was_given_up_is_not_retried() -> None:
    """Its start is requested until then, and it is a problem; then neither."""
    scene = Scene("orders")
    scene.partitions.give([TP, OTHER])
    scene.partitions.take_given()
    scene.partitions.drop([TP])
    scene.partitions.tend()
    assert scene.starts.asked[-1] == [OTHER]
    assert "orders[1] cannot be read yet" in scene.troubles.now["start"]
    scene.partitions.drop([OTHER])
    count = len(scene.starts.asked)
    scene.partitions.tend()
    assert (len(scene.starts.asked), "start" in scene.troubles.now) == (count, False)


@pytest.mark.parametrize(("named", "problem"), [("orders", True), ("^or.*", False)])
def test_a_deleted_topic_is_a_problem_if_the_configuration_names_it(named: str, problem: bool) -> None:
    """A topic that only matches a pattern may be deleted."""
    scene = Scene(named)
    scene.deleted["orders"] = None
    scene.partitions.tend()
    assert bool(scene.troubles.now.get("orders")) == problem
    assert not problem or "no longer exists" in scene.troubles.now["orders"]


def test_a_resumed_partition_is_sought_where_it_stands() -> None:
    """Else it waits for its next turn, up to a second; one that was not being read has no position."""
    scene, sought = Scene("orders"), list[Any]()
    scene.starts.known = {TP, OTHER}
    scene.partitions.give([TP, OTHER])
    scene.partitions.take_given()
    scene.partitions.pause([TP, OTHER])
    offsets = {TP.partition: 0, OTHER.partition: ck.OFFSET_INVALID}
    scene.consumer.position = lambda tps: [
        ck.TopicPartition(tp.topic, tp.partition, offsets[tp.partition]) for tp in tps
    ]
    scene.consumer.seek = sought.append
    scene.partitions.pause([])
    assert [(each.partition, each.offset) for each in sought] == [(TP.partition, 0)]


def test_the_member_that_got_partitions_is_in_the_state() -> None:
    """A successor after a crash evicts it by this id."""
    scene, state = Scene("orders"), MemoryState()
    consumer: Any = scene.consumer
    membership = Membership(consumer, None, scene.settings, state, scene.partitions, scene.listener, scene.troubles)
    membership.assigned(consumer, [ck.TopicPartition("orders", 0)])
    assert state.member() == ("g", "me-1")


def test_partitions_that_are_taken_are_told_and_the_others_later() -> None:
    """One whose start is unknown delays no other; an assignment of none is told, too, or a start would wait for it."""
    scene = Scene("orders")
    scene.starts.known = {TP}
    scene.partitions.give([TP, OTHER])
    scene.partitions.take_given()
    assert scene.assigned == [[TP]]
    scene.partitions.tend()
    assert scene.assigned == [[TP]]
    scene.starts.known = {OTHER}
    scene.partitions.tend()
    assert scene.assigned == [[TP], [OTHER]]
    scene.partitions.give([])
    scene.partitions.take_given()
    assert scene.assigned[2:] == [[]]
