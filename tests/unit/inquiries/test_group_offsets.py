"""What the broker has of a partition of the group, as an operator sees it. A fake client has the answers."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import CredentialsError, SidecarError, UnavailableError
from sidecar.inquiries import offsets as module
from sidecar.inquiries.offsets import GroupOffsets, PartitionOffsets
from sidecar.sources.kafka.offsets import LogBounds
from sidecar.state.offset_map import Identity, encode
from tests.support.futures import ended
from tests.support.spark.tasks import make_settings

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
RULES = b"rule"
IDENTITY = Identity("cluster", "g", "id", 42)


@pytest.mark.parametrize(
    ("committed", "low", "high", "lag"),
    [(10, 5, 50, 40), (50, 5, 50, 0), (3, 5, 50, 45), (None, 5, 50, 45), (None, 0, 0, 0), (60, 5, 50, 0), (0, 0, 9, 9)],
)
def test_lag_is_what_can_still_be_read(committed: int | None, low: int, high: int, lag: int) -> None:
    """What the log has lost before it was read is none of it, and neither is an offset behind the log's end."""
    assert PartitionOffsets(TopicPartition("orders", 0), committed, None, low, high, "").lag == lag


def error(code: int) -> KafkaException:
    """An error of the broker."""
    return KafkaException(KafkaError(code, "it says so"))


class Broker:
    """A cluster with two partitions, and what the group has committed there: offset and metadata."""

    def __init__(self) -> None:
        self.commits: dict[TopicPartition, tuple[int, str | None]] = {}
        self.bounds_of: dict[TopicPartition, Any] = {A: LogBounds(5, 50), B: LogBounds(0, 9)}
        self.topic_id: Any = "id"
        self.fails: dict[str, KafkaException] = {}
        self.altered: dict[TopicPartition, int] = {}
        self.found: Any = 7

    # The admin client

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        members = [SimpleNamespace(client_id="c1", host="/h1"), SimpleNamespace(client_id="c2", host="h2")]
        return {names[0]: ended(self.fails.get("members", SimpleNamespace(members=members)))}

    def list_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        (one,) = asked
        found = [
            SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, metadata=metadata)
            for tp, (offset, metadata) in self.commits.items()
        ]
        return {one.group_id: ended(self.fails.get("commits", SimpleNamespace(topic_partitions=found)))}

    def alter_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        (one,) = asked
        self.altered = {TopicPartition(each.topic, each.partition): each.offset for each in one.topic_partitions}
        refused = self.fails.get("one")
        each = SimpleNamespace(error=refused.args[0] if refused else None)
        return {one.group_id: ended(self.fails.get("reset", SimpleNamespace(topic_partitions=[each])))}

    # The offsets

    def within(self, seconds: float) -> None:
        """The time that is left."""

    def left_s(self) -> float:
        return 1.0

    def partitions(self, topics: list[str]) -> list[TopicPartition]:
        if "partitions" in self.fails:
            raise self.fails["partitions"]
        return [B, A]

    def bounds(self, tps: list[TopicPartition]) -> dict[TopicPartition, Any]:
        return self.bounds_of

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        if "time" in self.fails:
            raise self.fails["time"]
        return cast(int, self.found)

    # The ids

    def find(self, topics: Any, timeout_s: float) -> dict[str, Any]:
        return {} if self.topic_id is None else dict.fromkeys(topics, self.topic_id)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """One where nothing is committed."""
    broker = Broker()
    consumer = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: consumer)
    monkeypatch.setattr(module, "AdminClient", lambda _: broker)
    monkeypatch.setattr(module, "Offsets", lambda _: broker)
    monkeypatch.setattr(module, "TopicIds", lambda *_: broker)
    monkeypatch.setattr(module, "await_topics", lambda *_: "cluster")
    return broker


def group() -> GroupOffsets:
    """The group's offsets."""
    return GroupOffsets(make_settings("http://localhost:1/").source.kafka, RULES)


def committed(broker: Broker, metadata: str | None, offset: int = 10) -> PartitionOffsets:
    """What is told of a commit."""
    broker.commits[A] = offset, metadata
    with group() as offsets:
        return offsets.partitions()[0]


def test_partitions_are_told_in_their_order(broker: Broker) -> None:
    """A partition without a commit has none."""
    broker.commits[B] = -1001, None
    with group() as offsets:
        assert offsets.members() == ["c1 on h1", "c2 on h2"]
        assert offsets.partitions() == [
            PartitionOffsets(A, None, None, 5, 50, ""), PartitionOffsets(B, None, None, 0, 9, "")
        ]  # fmt: skip


def test_a_commit_of_sidecar_has_its_state(broker: Broker) -> None:
    """And the scope in which its offsets are messages."""
    state = PartitionState(10, 25)
    found = committed(broker, encode(IDENTITY, RULES, state))
    assert found == PartitionOffsets(A, 10, 25, 5, 50, "sidecar", state, IDENTITY.scope)


@pytest.mark.parametrize(
    ("metadata", "writer"),
    [
        (encode(IDENTITY, b"othe", PartitionState(10, 25)), "sidecar, under other rules"),
        (encode(Identity("cluster", "g", "old", 42), RULES, PartitionState(10, 25)), "sidecar, for an earlier topic"),
        (encode(Identity("cluster", "h", "id", 42), RULES, PartitionState(10, 25)), "another program"),
        ("", "another program"),
        (None, "another program"),
    ],
)
def test_any_other_commit_has_an_offset_alone(broker: Broker, metadata: str | None, writer: str) -> None:
    """With who may have made it."""
    found = committed(broker, metadata)
    assert (found.committed, found.seen, found.state, found.scope) == (10, None, None, "")
    assert found.writer.startswith(writer)


def test_a_broker_without_topic_ids_has_commits_too(broker: Broker) -> None:
    """Their topic's id is empty."""
    broker.topic_id = None
    identity = Identity("cluster", "g", "", 42)
    assert committed(broker, encode(identity, RULES, PartitionState(0, 1)), offset=0).writer == "sidecar"


@pytest.mark.parametrize("step", ["members", "commits", "partitions", "time", "reset", "one", "bounds", "ids"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError._TIMED_OUT, UnavailableError), (KafkaError.GROUP_AUTHORIZATION_FAILED, CredentialsError)],
)
def test_an_answer_that_is_an_error_is_told(broker: Broker, step: str, code: int, kind: type[SidecarError]) -> None:
    """Of whatever it is: what is refused, and what may come."""
    broker.fails[step] = error(code)
    if step == "bounds":
        broker.bounds_of[B] = error(code).args[0]
    if step == "ids":
        broker.topic_id = error(code).args[0]
    with pytest.raises(kind), group() as offsets:
        offsets.members()
        offsets.partitions()
        offsets.at_time(A, 5)
        offsets.reset({A: 3})


def test_a_reset_commits_offsets_alone(broker: Broker) -> None:
    """As any tool does; and an offset is found by time."""
    with group() as offsets:
        offsets.reset({A: 3, B: 4})
        assert offsets.at_time(A, 5) == 7
        broker.found = None
        assert offsets.at_time(A, 5) is None
    assert broker.altered == {A: 3, B: 4}


def test_a_cluster_that_is_not_there_is_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is closed."""
    closed: list[bool] = []
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: SimpleNamespace(close=lambda: closed.append(True)))

    def away(*_: Any) -> str:
        raise UnavailableError("no broker")

    monkeypatch.setattr(module, "await_topics", away)
    with pytest.raises(UnavailableError, match="no broker"), group():
        pass
    assert closed == [True]
