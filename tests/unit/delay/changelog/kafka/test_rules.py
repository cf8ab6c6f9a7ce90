"""The settings of a changelog's topic: what it is created with, what is refused, what is warned about."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.kafka.rules import LARGEST_MIN_BYTES, largest_bytes, refusal, settings_of, warnings

SOURCE = {"max.message.bytes": "2000000", "min.insync.replicas": "2"}
GOOD = {
    "cleanup.policy": "compact",
    "max.message.bytes": "2065536",
    "delete.retention.ms": "86400000",
    "min.insync.replicas": "2",
}


def test_the_topic_holds_the_largest_message_of_the_source() -> None:
    """The limit is the source's and 64 KiB more, and at least Kafka's default."""
    assert largest_bytes(SOURCE) == 2_000_000 + (64 << 10)
    assert largest_bytes({"max.message.bytes": "1000"}) == largest_bytes({}) == LARGEST_MIN_BYTES


def test_a_topic_is_as_durable_as_its_source() -> None:
    """`min.insync.replicas` is the source's, and at most the number of replicas."""
    assert settings_of(SOURCE, 3)["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in settings_of(SOURCE, 1)
    assert "min.insync.replicas" not in settings_of({}, 3)


def test_a_topic_that_is_created_is_accepted() -> None:
    """What it is created with is neither refused nor warned about."""
    made = settings_of(SOURCE, 3)
    assert refusal("k:9092", "log", made, SOURCE) is None
    assert list(warnings(made, SOURCE, 3, 3)) == []


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"cleanup.policy": "delete"}, "--add-config cleanup.policy=compact"),
        ({"cleanup.policy": "compact,delete"}, "--add-config cleanup.policy=compact"),
        ({"max.message.bytes": "2065535"}, "--add-config max.message.bytes=2065536"),
    ],
)
def test_a_refusal_has_the_command_that_cures_it(change: dict[str, str], cure: str) -> None:
    """The error names topic, brokers and setting; the hint has the command, and the other store."""
    assert refusal("k:9092", "log", GOOD, SOURCE) is None
    error = refusal("k:9092", "log", GOOD | change, SOURCE)
    assert error is not None
    ((name, value),) = change.items()
    assert f"the topic log of Kafka at k:9092 has {name}={value}" in str(error)
    command = f"kafka-configs.sh --bootstrap-server k:9092 --alter --entity-type topics --entity-name log {cure}"
    assert command in error.hint
    assert "delay.store: local" in error.hint


@pytest.mark.parametrize(
    ("change", "replicas", "says"),
    [
        ({"delete.retention.ms": "599999"}, 3, "delete.retention.ms is 599999"),
        ({}, 1, "the replication factor is 1"),
        ({"min.insync.replicas": "1"}, 3, "min.insync.replicas is 1"),
    ],
)
def test_what_may_lose_messages_is_warned_about(change: dict[str, str], replicas: int, says: str) -> None:
    """A short memory of tombstones, a single replica, and a single replica in sync, where the source has more."""
    assert list(warnings(GOOD, SOURCE, 3, 3)) == []
    (text,) = warnings(GOOD | change, SOURCE, replicas, 3)
    assert text.startswith(says)


def test_one_replica_is_enough_if_the_source_has_one() -> None:
    """No warning if the source's topic is not more durable either."""
    assert list(warnings(GOOD | {"min.insync.replicas": "1"}, {"min.insync.replicas": "1"}, 1, 1)) == []


def test_unknown_settings_of_the_source_are_told() -> None:
    """Settings of the source's topic that may not be read are a warning."""
    (text,) = warnings(GOOD, {}, 3, 3)
    assert "may not be read" in text
