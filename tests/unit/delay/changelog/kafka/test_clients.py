"""The changelog's clients: the user's properties for the consumer reach none that they would harm."""

from __future__ import annotations

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSettings
from sidecar.delay.changelog.kafka.clients import admin_config, producer_config, reader_config

HARMFUL = {
    "acks": "0",
    "request.required.acks": "1",
    "enable.idempotence": "false",
    "transactional.id": "mine",
    "max.in.flight": "100",
    "message.timeout.ms": "100",
    "delivery.timeout.ms": "100",
    "retries": "0",
    "queuing.strategy": "lifo",
    "queue.buffering.max.messages": "1",
    "delivery.report.only.error": "true",
    "message.max.bytes": "5000",
    "batch.size": "100",
    "linger.ms": "5000",
    "fetch.wait.max.ms": "200",
    "max.poll.interval.ms": "400000",
    "isolation.level": "read_uncommitted",
    "check.crcs": "false",
}


def source(**properties: str) -> KafkaSettings:
    """Settings with these properties."""
    given = {"bootstrap_servers": "localhost:1", "group_id": "g", "topics": ["t"], "properties": properties}
    return KafkaSettings.model_validate(given)


def test_harmful_properties_change_no_client() -> None:
    """Each of them is the same as without, so order, patience and limits stand."""
    plain, harmed = source(), source(**HARMFUL)
    assert producer_config(harmed) == producer_config(plain)
    assert admin_config(harmed) == admin_config(plain)
    assert reader_config(harmed) == reader_config(plain) | {"max.poll.interval.ms": "400000"}


def test_credentials_reach_each_client() -> None:
    """Properties of the connection are those of the user."""
    properties = {"security.protocol": "SASL_SSL", "sasl.username": "me", "client.id": "mine"}
    for config in (producer_config, reader_config, admin_config):
        assert properties.items() <= config(source(**properties)).items()


def test_no_client_creates_a_topic() -> None:
    """A topic that was deleted is not created by a request for it: it would not be compacted."""
    for config in (producer_config, reader_config, admin_config):
        assert config(source())["allow.auto.create.topics"] is False


def test_the_clients_take_their_configuration_silently(capfd: pytest.CaptureFixture[str]) -> None:
    """Also with all properties of a consumer, nothing is refused, and nothing goes to stderr."""
    settings = source(**HARMFUL)
    ck.Producer(producer_config(settings))
    AdminClient(admin_config(settings))
    ck.Consumer(reader_config(settings)).close()
    assert capfd.readouterr().err == ""
