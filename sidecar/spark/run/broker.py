"""What the driver asks the broker before the query starts: is it there, are the topics, which cluster is it."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from sidecar.config.source import KafkaSource
from sidecar.errors import UnavailableError
from sidecar.sources.kafka_config import client_config
from sidecar.sources.kafka_errors import is_credentials, refused, text_of
from sidecar.sources.kafka_start import is_read

ASK_S = 2.0
REQUEST_S = 10.0
EARLIEST = -2


def await_cluster(kafka: KafkaSource) -> str:
    """The cluster's id, once the broker answers and knows all topics that are named.

    Raises:
        UnavailableError: It does not, or a topic is unknown, for the whole start-up time.
        CredentialsError: The broker refuses the credentials.
    """
    deadline_s = time.monotonic() + kafka.start_timeout_ms / 1000
    wanted = [topic for topic in kafka.topics if not topic.startswith("^")]
    refusals: list[str] = []

    def told(error: ck.KafkaError) -> None:
        if is_credentials(error):
            refusals.append(text_of(error))

    config: dict[str, Any] = {**client_config(kafka), "error_cb": told}
    client = AdminClient(config)
    reason = "it did not answer"
    while True:
        try:
            found = client.list_topics(timeout=ASK_S)
            missing = [topic for topic in wanted if topic not in found.topics or found.topics[topic].error is not None]
            if not missing:
                return found.cluster_id or ""
            reason = f"it does not know the topic {', '.join(missing)}"
        except ck.KafkaException as error:
            reason = text_of(error.args[0])
        client.poll(0.1)
        if refusals:
            raise refused(kafka.bootstrap_servers, refusals[0])
        if time.monotonic() >= deadline_s:
            raise _unavailable(kafka, reason)


def group_offsets(kafka: KafkaSource) -> dict[str, dict[str, int]] | None:
    """Where the daemon's consumer group stands, by topic and partition (`EARLIEST`: not yet); None where it never was.

    Raises:
        UnavailableError: The broker does not answer.
    """
    config: dict[str, Any] = {**client_config(kafka), "group.id": kafka.group_id}
    client = ck.Consumer(config)
    try:
        known = client.list_topics(timeout=REQUEST_S).topics
        names = [name for name in known if any(is_read(topic, name) for topic in kafka.topics)]
        asked = [ck.TopicPartition(name, partition) for name in names for partition in known[name].partitions]
        found = [at for at in client.committed(asked, timeout=REQUEST_S) if at.offset >= 0]
        bounds = [client.get_watermark_offsets(at, timeout=REQUEST_S) or (0, at.offset) for at in found]
    except ck.KafkaException as error:
        raise _unavailable(kafka, text_of(error.args[0])) from error
    finally:
        client.close()
    if not found:
        return None
    offsets: dict[str, dict[str, int]] = {}
    for at in asked:
        offsets.setdefault(at.topic, {})[str(at.partition)] = EARLIEST
    for at, (low, high) in zip(found, bounds, strict=True):  # what expired meanwhile is gone on either engine
        offsets[at.topic][str(at.partition)] = min(max(at.offset, low), high)
    return offsets


def refuse_members(kafka: KafkaSource) -> None:
    """Both engines at once would each deliver everything.

    Raises:
        UnavailableError: The consumer group has members.
    """
    client = AdminClient(client_config(kafka))
    try:
        asked = client.describe_consumer_groups([kafka.group_id], request_timeout=REQUEST_S)
        members = [one for future in asked.values() for one in future.result(REQUEST_S).members]
    except (ck.KafkaException, TimeoutError):  # to describe a group is a permission of its own
        return
    if members:
        raise UnavailableError(
            f"the consumer group {kafka.group_id} has {len(members)} members: a daemon reads with it",
            hint="stop it first; it hands over where it stands",
        )


def _unavailable(kafka: KafkaSource, reason: str) -> UnavailableError:
    waited = f"for {kafka.start_timeout_ms / 1000:g} s (source.kafka.start_timeout)"
    return UnavailableError(
        f"Kafka at {kafka.bootstrap_servers} could not be used {waited}: {reason}",
        hint="check source.kafka.bootstrap_servers and source.kafka.topics, and that the broker is reachable from here",
    )
