"""Topic ids at a start: those of brokers that have none, or do not answer. No broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.sources.kafka.topics import TopicIds


def found(monkeypatch: pytest.MonkeyPatch, *errors: int) -> dict[str, Any]:
    """What `find` gives, a topic for each error."""
    asked: dict[str, Future[Any]] = {}
    for number, error in enumerate(errors):
        asked[f"t{number}"] = Future()
        asked[f"t{number}"].set_exception(KafkaException(KafkaError(error)))
    unused: Any = None
    ids = TopicIds(unused, "cluster", unused)
    monkeypatch.setattr(ids, "_ask", lambda topics, timeout_s: asked)
    return ids.find(asked, 1.0)


def test_brokers_before_topics_had_ids_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their partitions are read without."""
    assert found(monkeypatch, KafkaError._UNSUPPORTED_FEATURE) == {}


def test_another_error_is_that_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions are retried."""
    errors = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._TRANSPORT
    assert [error.code() for error in found(monkeypatch, *errors).values()] == list(errors)
