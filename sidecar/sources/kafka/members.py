"""Which member of the consumer group owns a partition."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource
from sidecar.sources.kafka.config import client_config

PATIENCE_S = 5.0


def member_of(settings: KafkaSource, topic: str, partition: int) -> str:
    """The member that owns a partition, as its client id and host; empty if nobody does, or if that is not known."""
    group, client = settings.group_id, AdminClient(client_config(settings))  # a client that is dropped answers nothing
    try:
        members = client.describe_consumer_groups([group], request_timeout=PATIENCE_S)[group].result(PATIENCE_S).members
    except (KafkaException, TimeoutError):
        return ""
    for member in members:
        owned = member.assignment.topic_partitions if member.assignment is not None else []
        if any((each.topic, each.partition) == (topic, partition) for each in owned):
            return f"{member.client_id} on {member.host.lstrip('/')}"
    return ""
