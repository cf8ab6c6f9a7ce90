"""What is made of a broker's answers before a query on Spark starts. No broker."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.offsets import LogBounds
from sidecar.spark.ranges import kafka
from tests.support.futures import ended

KAFKA = KafkaSettings.model_validate({"bootstrap_servers": "localhost:1", "topics": ["orders"], "group_id": "g"})
RANGES = kafka.KafkaRanges("state", "envelope", KAFKA, "")


def test_the_bounds_of_all_partitions_are_known_or_none() -> None:
    """What a broker does not tell of one of them is an error, as a query would miss its messages."""
    tps, error = [TopicPartition("orders", 0), TopicPartition("orders", 1)], KafkaError(KafkaError._TIMED_OUT)
    bounds: dict[TopicPartition, LogBounds | KafkaError] = dict.fromkeys(tps, LogBounds(3, 9))
    offsets: Any = SimpleNamespace(
        partitions=lambda topics: tps if topics == ["orders"] else [], bounds=lambda _: bounds
    )
    assert kafka.known_bounds(offsets, KAFKA) == bounds
    bounds[tps[1]] = error
    with pytest.raises(KafkaException):
        kafka.known_bounds(offsets, KAFKA)


def answer_about_members(monkeypatch: pytest.MonkeyPatch, *answers: KafkaError | Exception | Sequence[str]) -> None:
    """Let the broker answer so to questions about the members of a group."""
    left = list(answers)

    def describe(groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        answer = left.pop(0)
        if isinstance(answer, KafkaError):
            answer = KafkaException(answer)
        future = ended(answer if isinstance(answer, Exception) else SimpleNamespace(members=answer))
        return dict.fromkeys(groups, future)

    monkeypatch.setattr(kafka, "AdminClient", lambda _: SimpleNamespace(describe_consumer_groups=describe))


def test_members_are_found_once_the_coordinator_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that starts while the group's coordinator restarts does not run beside a daemon."""
    loading = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    answer_about_members(monkeypatch, loading, KafkaError(KafkaError.NOT_COORDINATOR), ["daemon"])
    with pytest.raises(UnavailableError, match="the consumer group g has 1 members"):
        RANGES.refuse_members()


@pytest.mark.parametrize("answer", [KafkaError(KafkaError._TIMED_OUT), TimeoutError()])
def test_a_job_does_not_start_if_members_are_unknown(
    monkeypatch: pytest.MonkeyPatch, answer: KafkaError | Exception
) -> None:
    """A broker that does not answer cannot say that no daemon runs."""
    answer_about_members(monkeypatch, answer)
    with pytest.raises(UnavailableError, match="does not answer"):
        RANGES.refuse_members()


def test_a_job_starts_if_it_may_not_ask_for_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describing a group needs a permission that reading does not; the log says that nothing was checked."""
    answer_about_members(monkeypatch, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with capture_logs() as events:
        RANGES.refuse_members()
    assert [event["event"] for event in events] == ["members.not_checked"]


def test_an_offset_that_the_coordinator_does_not_report_is_no_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be anywhere, and `source.kafka.start` could skip messages."""
    unknown = SimpleNamespace(offset=-1_001, error=KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))
    topics = {"orders": SimpleNamespace(partitions={0: SimpleNamespace(leader=1)})}
    consumer = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(topics=topics), committed=lambda *_, **__: [unknown], close=lambda: None
    )
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _: consumer)
    with pytest.raises(UnavailableError, match="unstable offsets"):
        RANGES.group_offsets()
