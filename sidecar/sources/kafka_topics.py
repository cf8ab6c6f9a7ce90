"""The ids of topics: a topic that was deleted and made again is told by its id alone. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

ASK_EVERY_S = 5.0
TIMEOUT_S = 3.0
PATIENCE_S = TIMEOUT_S + 2.0
"""The client tells its own time-out; this is for one that does not."""


class TopicIds:
    """Asks for topic ids, at once or now and then.

    Args:
        config: The client's configuration.
        cluster_id: librdkafka's mock cluster never answers, so it is not asked.
    """

    def __init__(self, config: Mapping[str, Any], cluster_id: str) -> None:
        self._admin = AdminClient(dict(config))
        self._known = not cluster_id.startswith("mockCluster")
        self._asked: dict[str, Future[Any]] = {}
        self._ask_at_s = 0.0

    def find(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of these topics; empty where the broker has none.

        Raises:
            KafkaException: The broker did not answer within 3 s.
        """
        try:
            return {topic: str(future.result(PATIENCE_S).topic_id) for topic, future in self._ask(topics).items()}
        except TimeoutError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer about topic ids")) from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNSUPPORTED_FEATURE:  # brokers before 2.8 have no ids
                raise
            self._known = False
            return {}

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
            self._asked = self._ask(topics)

    def _ask(self, topics: Collection[str]) -> dict[str, Future[Any]]:
        if not self._known or not topics:
            return {}
        return self._admin.describe_topics(ck.TopicCollection(sorted(topics)), request_timeout=TIMEOUT_S)
