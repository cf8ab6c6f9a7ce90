"""The start waits for brokers and topics, and raises at once where waiting cannot help. No broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source.kafka import KafkaSettings
from sidecar.errors import CredentialsError, UnavailableError
from sidecar.sources.kafka.reach import await_topics

FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Asked:
    """A consumer: lists of all topics fail, or know no topic; a question for one topic is counted."""

    def __init__(self, *, away: bool, error: KafkaError | None = None) -> None:
        self.away, self.error = away, error
        self.named: list[str] = []

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        if topic is not None:
            self.named.append(topic)
            return SimpleNamespace(topics={topic: SimpleNamespace(error=self.error)})
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(topics={}, cluster_id="c")

    def poll(self, _: float) -> None: ...


def wait_for(consumer: Asked, start_timeout: str) -> str:
    """What `await_topics` gives."""
    settings = KafkaSettings.model_validate(
        {"bootstrap_servers": "a:1", "group_id": "g", "topics": ["orders"], "start_timeout": start_timeout}
    )
    return await_topics(consumer, settings, lambda: "", {}, lambda _: None)  # type: ignore[arg-type]


def test_a_topic_that_may_not_be_seen_ends_the_start_at_once() -> None:
    """A list of all topics leaves it out, as if it did not exist."""
    with pytest.raises(CredentialsError, match="orders"):
        wait_for(Asked(away=False, error=FORBIDDEN), "1s")


def test_a_missing_topic_is_waited_for() -> None:
    """It may be created."""
    with pytest.raises(UnavailableError, match="does not know the topic orders"):
        wait_for(Asked(away=False), "100ms")


def test_brokers_that_are_away_are_asked_for_no_rights() -> None:
    """Each question would take two more seconds of the start."""
    consumer = Asked(away=True)
    with pytest.raises(UnavailableError, match="could not be reached"):
        wait_for(consumer, "100ms")
    assert consumer.named == []
