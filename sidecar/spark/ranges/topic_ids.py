"""The ids of Kafka's topics as tasks ask for them. Decides nothing."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.topics import TIMEOUT_S, MadeAgain, TopicIds

KNOWN_FOR_S = 5.0
_clients: dict[str, TopicIds] = {}
_found: dict[tuple[str, str], tuple[float, str]] = {}
"""Shared by the tasks of this worker process."""


def topic_id(kafka: KafkaSource, cluster_id: str, topic: str, *, anew: bool) -> str:
    """The topic's id; empty if the broker has none.

    Args:
        cluster_id: Id of the cluster; empty if it is known to have topic ids.
        anew: Whether to request it now; else an answer may be 5 s old.

    Raises:
        UnavailableError: The broker does not answer.
    """
    key = kafka.bootstrap_servers, topic
    at_s, known = _found.get(key, (-KNOWN_FOR_S, ""))
    if not anew and time.monotonic() - at_s < KNOWN_FOR_S:
        return known
    client = _clients.get(kafka.bootstrap_servers)
    if client is None:
        client = _clients[kafka.bootstrap_servers] = TopicIds(
            AdminClient(client_config(kafka)), cluster_id, MadeAgain()
        )
    answer = client.find([topic], TIMEOUT_S).get(topic, "")
    if isinstance(answer, KafkaError):
        raise UnavailableError(f"the broker does not report the id of {topic}: {answer.str()}")
    known = answer
    _found[key] = time.monotonic(), known
    return known
