"""Changelogs in Kafka that are read without a claim: what is found of them. A fake client has the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.partition_state import NO_STORES, PartitionState, Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.kafka import unclaimed as module
from sidecar.delay.changelog.kafka.topics import number_of
from sidecar.delay.changelog.kafka.unclaimed import PATIENCE_S, CommitLook, Unclaimed, UnclaimedRestorer
from sidecar.delay.changelog.records import RecordLineage, topic_hash
from sidecar.delay.changelog.takeover import Start
from sidecar.delay.rows import ORIGIN_MAX
from sidecar.errors import CredentialsError, SidecarError, UnavailableError
from sidecar.sources.kafka.offsets import LogBounds
from sidecar.state.offset_map import Identity, encode
from tests.support.spark.tasks import make_settings

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
RULES, NOW = b"rule", 77 << 20
STATE = PartitionState(10, 25, stores=Stores(7, (), 3))


class Broker:
    """A cluster with the partitions of the source and of its changelog, and the group's commits."""

    def __init__(self) -> None:
        self.changelogs: dict[str, int | KafkaError] = {"held-orders": 2}
        self.commits: dict[TopicPartition, Any] = {A: (-1001, None, None), B: (-1001, None, None)}
        self.ends: dict[TopicPartition, Any] = {}
        self.ids: dict[str, Any] = {"orders": "id", "held-orders": "log-id"}
        self.fails: KafkaException | None = None
        self.patience_s = 0.0

    # The consumer and the offsets

    def list_topics(self, name: str, timeout: float) -> Any:
        assert timeout == self.patience_s > 0
        found = self.changelogs.get(name, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        known = found if isinstance(found, int) else 0
        error = None if isinstance(found, int) else found
        return SimpleNamespace(topics={name: SimpleNamespace(error=error, partitions=range(known))})

    def close(self) -> None:
        """Nothing is open."""

    def within(self, seconds: float) -> None:
        self.patience_s = seconds

    def left_s(self) -> float:
        return self.patience_s

    def partitions(self, topics: list[str]) -> list[TopicPartition]:
        if self.fails:
            raise self.fails
        return [A, B]

    def bounds(self, tps: list[TopicPartition]) -> dict[TopicPartition, Any]:
        return {tp: self.ends.get(tp, LogBounds(4, 9)) for tp in tps}

    # The admin client and the ids

    def list_consumer_group_offsets(self, asked: list[Any], request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == self.patience_s > 0
        (one,) = asked
        wanted = {(tp.topic, tp.partition) for tp in one.topic_partitions}
        found = [
            SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, metadata=metadata, error=error)
            for tp, (offset, metadata, error) in self.commits.items()
            if tp[:2] in wanted
        ]
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(topic_partitions=found))
        return {one.group_id: future}

    def find(self, topics: Any, timeout_s: float) -> dict[str, Any]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """One where nothing is committed."""
    broker = Broker()
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: broker)
    for name in ("AdminClient", "Offsets"):
        monkeypatch.setattr(module, name, lambda _: broker)
    monkeypatch.setattr(module, "TopicIds", lambda *_: broker)
    monkeypatch.setattr(module, "await_topics", lambda *_: "cluster")
    return broker


def look() -> CommitLook:
    """Looks at the changelogs of `orders`."""
    return CommitLook(make_settings("http://localhost:1/").source.kafka, lambda topic: f"held-{topic}", RULES, NOW)


def found(*tps: TopicPartition) -> dict[TopicPartition, Unclaimed]:
    """What is found of these partitions."""
    return look().run(lambda tp: tp in tps)


def test_a_changelog_is_found_with_the_commit_of_its_partition(broker: Broker) -> None:
    """As the next owner would go on."""
    identity = Identity("cluster", "g", "id", 42)
    broker.commits[A] = 10, encode(identity, RULES, STATE), None
    broker.ends[TopicPartition("held-orders", 0)] = LogBounds(2, 8)
    lineage = RecordLineage(42, topic_hash("id"))
    assert found(A) == {A: Unclaimed(number_of("log-id"), 2, 8, Start(STATE.stores, lineage, 10, 25, NOW))}
    assert broker.patience_s == PATIENCE_S


@pytest.mark.parametrize(("offset", "origin"), [(-1001, ORIGIN_MAX), (0, 0), (6, 6)])
def test_a_commit_of_another_program_has_an_offset_alone(broker: Broker, offset: int, origin: int) -> None:
    """Without one, nothing tells that messages are read again."""
    broker.commits[A] = offset, "theirs", None
    assert found(A)[A].start == Start(NO_STORES, RecordLineage((1 << 64) - 1, topic_hash("id")), origin, origin, NOW)


def test_only_wanted_partitions_that_have_one_are_looked_at(broker: Broker) -> None:
    """A topic that got more partitions since has no changelog of them yet; one that is missing is told."""
    assert sorted(found(A, B)) == [A, B]
    assert found() == {}
    broker.changelogs["held-orders"] = 1
    assert sorted(found(A, B)) == [A]
    del broker.changelogs["held-orders"]
    one = look()
    assert (one.run(lambda _: True), one.missing) == ({}, ["held-orders"])


def test_a_broker_without_ids_knows_topics_by_name(broker: Broker) -> None:
    """Of the changelog and of the source."""
    broker.ids = {}
    only = found(A)[A]
    assert (only.store, only.start.lineage.topic) == (number_of("held-orders"), topic_hash(""))


@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError._TIMED_OUT, UnavailableError), (KafkaError.TOPIC_AUTHORIZATION_FAILED, CredentialsError)],
)
@pytest.mark.parametrize("step", ["topics", "changelog", "bounds", "source id", "log id", "commit"])
def test_an_answer_that_is_an_error_is_told(broker: Broker, step: str, code: int, kind: type[SidecarError]) -> None:
    """Of whatever it is: what is refused, and what may come."""
    error = KafkaError(code, "it says so")
    match step:
        case "topics":
            broker.fails = KafkaException(error)
        case "changelog":
            broker.changelogs["held-orders"] = error
        case "bounds":
            broker.ends[TopicPartition("held-orders", 0)] = error
        case "source id":
            broker.ids["orders"] = error
        case "log id":
            broker.ids["held-orders"] = error
        case "commit":
            broker.commits[A] = -1, None, error
    with pytest.raises(kind):
        found(A, B)


class Restorer:
    """Reads two pieces."""

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[Any]]:
        """The records."""
        yield [begin, 1]
        yield [end]


def test_nothing_is_appended_to_what_is_only_read() -> None:
    """The takeover gets the offset that its claim would have; records are counted once they were read."""
    counted: list[int] = []
    known = {A: Unclaimed(5, 2, 8, Start(NO_STORES, RecordLineage(1, 2), 0, 0, 0))}
    restorer: Any = UnclaimedRestorer(Restorer(), known, counted.append)  # type: ignore[arg-type]
    assert restorer.open(A) == 5
    assert restorer.append(A, [ChangelogEntry(b"k", b"v")]) == 8
    assert restorer.append(A, [ChangelogEntry(b"k", b"v"), ChangelogEntry(b"l", b"v")]) == 10
    assert list(restorer.read(A, 8, 3)) == [[3, 1], [8]]
    assert counted == [2, 1]
