"""The ids of topics: a topic that was deleted and made again is told by its id alone. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

ASK_EVERY_S = 5.0
TIMEOUT_S = 3.0
PATIENCE_S = 0.5
"""The client tells its own time-out; so long is waited beyond for one that does not."""


def is_mock(cluster_id: str) -> bool:
    """Whether it is librdkafka's in-process cluster, which leaves some questions without an answer."""
    return cluster_id.startswith("mockCluster")


class TopicIds:
    """Asks for topic ids, at once or now and then.

    Args:
        admin: The client that asks.
        cluster_id: librdkafka's mock cluster never answers, so it is not asked.
    """

    def __init__(self, admin: AdminClient, cluster_id: str) -> None:
        self._admin = admin
        self._known = not is_mock(cluster_id)
        self._asked: dict[str, Future[Any]] = {}
        self._ask_at_s = 0.0

    def find(self, topics: Collection[str], timeout_s: float) -> dict[str, str | KafkaError]:
        """The ids of these topics, or why one could not be told; none where the broker has no ids."""
        deadline_s = time.monotonic() + timeout_s + PATIENCE_S
        found: dict[str, str | KafkaError] = {}
        for topic, future in self._ask(topics, timeout_s).items():
            try:
                found[topic] = str(future.result(max(0.0, deadline_s - time.monotonic())).topic_id)
            except TimeoutError:
                found[topic] = KafkaError(KafkaError._TIMED_OUT, "no answer about topic ids")
            except KafkaException as error:
                if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:  # brokers before 2.8 have no ids
                    self._known = False
                    return {}
                found[topic] = error.args[0]
        return found

    def watch(self, topics: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Ask every 5 s without waiting; yields what came: topic and id, None for a topic that is gone."""
        now = time.monotonic()
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            for topic, future in asked.items():
                error = future.exception()
                if error is None:
                    yield topic, str(future.result().topic_id)
                elif isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    yield topic, None
        if now >= self._ask_at_s and topics and not self._asked:
            self._ask_at_s = now + ASK_EVERY_S
            self._asked = self._ask(topics, TIMEOUT_S)

    def _ask(self, topics: Collection[str], timeout_s: float) -> dict[str, Future[Any]]:
        if not self._known or not topics:
            return {}
        return self._admin.describe_topics(ck.TopicCollection(sorted(topics)), request_timeout=timeout_s)
