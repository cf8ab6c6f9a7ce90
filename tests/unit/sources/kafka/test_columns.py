"""Messages of Kafka as columns: runs, digests, and headers that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.kafka import columns as module
from sidecar.sources.kafka.columns import Failed, KafkaColumns, LaneColumns, digest_of, runs_and_errors, runs_of


class Message:
    """A message as the client has it."""

    def __init__(self, offset: int = 5, partition: int = 0, topic: str = "orders", **more: Any) -> None:
        self.fields = {
            "offset": offset, "partition": partition, "topic": topic, "key": b"k", "value": b"v",
            "headers": [("a", b"b")], "timestamp": (1, 7), "leader_epoch": 3, "error": None, **more,
        }  # fmt: skip


def _reads(name: str) -> Callable[[Message], Any]:
    return lambda message: message.fields[name]


for _name in Message().fields:
    setattr(Message, _name, _reads(_name))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's messages are these; its headers need no repair."""
    monkeypatch.setattr(module, "Message", Message)
    monkeypatch.setattr(module, "headers_of", lambda message: message.fields["headers"])


class OfLane:
    """The same message as the fast lane has it."""

    def __init__(self, message: Message) -> None:
        self.__dict__.update(message.fields)


OTHERS: list[dict[str, Any]] = [
    {"key": b"l"}, {"value": b"w"}, {"key": None}, {"value": None}, {"headers": None}, {"headers": [("a", b"c")]},
    {"headers": [("a", None)]}, {"headers": [("ab", b"")]}, {"headers": [("a", b"b"), ("a", b"b")]},
    {"timestamp": (1, 8)}, {"timestamp": (2, 7)}, {"leader_epoch": 4}, {"key": b"kv", "value": b""},
]  # fmt: skip


def test_a_digest_tells_a_message_from_any_other_at_its_offset() -> None:
    """Its place is not in it; both ways to read give the same."""
    one: Any = Message()
    digests = [digest_of(one), *(digest_of(Message(**more)) for more in OTHERS)]  # type: ignore[arg-type]
    assert len(set(digests)) == len(digests)
    assert all(0 <= digest < 1 << 64 for digest in digests)
    assert digest_of(Message(9, 3, "bills")) == digests[0]  # type: ignore[arg-type]
    assert KafkaColumns().digest(one) == digests[0]
    lane: Any = [OfLane(Message()), *(OfLane(Message(**more)) for more in OTHERS)]
    assert [LaneColumns().digest(each) for each in lane] == digests


def places(runs: Any) -> list[Any]:
    """Partition, first and last offset of each run."""
    return [(run.tp[:2], run.first, run.last) for run in runs]


def test_messages_are_cut_into_runs_of_one_partition() -> None:
    """With rising offsets: they fall back within one call after a seek, and gaps are none of that."""
    messages: Any = [
        Message(1), Message(2), Message(5), Message(5, 1), Message(6, 1), Message(3, 1), Message(3, 1, "bills"),
    ]  # fmt: skip
    orders, others, bills = ("orders", 0), ("orders", 1), ("bills", 1)
    assert places(runs_of(messages)) == [(orders, 1, 5), (others, 5, 6), (others, 3, 3), (bills, 3, 3)]
    assert places(runs_of(messages[:3])) == [(orders, 1, 5)]
    assert places(runs_of(messages[:2], one_topic=True)) == [(orders, 1, 2)]
    assert places(runs_of(messages[3:6], one_topic=True)) == [(others, 5, 6), (others, 3, 3)]


def test_errors_are_in_their_places() -> None:
    """Between the runs before and after them."""
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    messages: Any = [Message(1), Message(2), Message(0, 1, error=error), Message(4)]
    first, failed, last = runs_and_errors(messages)
    assert isinstance(first, Run) and isinstance(last, Run)
    assert (first.first, first.last, last.first) == (1, 2, 4)
    assert failed == Failed(TopicPartition("orders", 1), error, 0)
    assert runs_and_errors([]) == []
    assert places(runs_and_errors(messages[:2])) == [(("orders", 0), 1, 2)]
