"""The ids of topics: only the id distinguishes a topic that was deleted and created again. Decides nothing."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

ASK_EVERY_S = 5.0
TIMEOUT_S = 3.0
_CHANGED = re.compile(r"Topic (\S+) changed id from (\S+) to (\S+)")
PATIENCE_S = 0.5
"""Wait beyond the client's own time-out, for a client that does not report it."""


def is_mock(cluster_id: str) -> bool:
    """Whether it is librdkafka's in-process cluster, which does not answer some requests."""
    return cluster_id.startswith("mockCluster")


class MadeAgain:
    """Recreated topics, from the log of the consumer's client, which continues in the new topic at the old offset.

    The client reports the change only in a debug line, which `consume()` serves before the first message fetched under
    the new id. An instance is the client's `logger`.

    Args:
        aloud: Whether all lines go to stderr, not only critical ones.
    """

    def __init__(self, *, aloud: bool = False) -> None:
        self._aloud = aloud
        self._news: dict[str, str] = {}
        self._gone: dict[str, str] = {}

    def log(self, level: int, template: str, *args: str) -> None:
        text = template % args
        if self._aloud or level >= logging.CRITICAL:
            print(text, file=sys.stderr)
        if line := _CHANGED.search(text):
            topic, before, self._news[topic] = line.groups()
            self._gone[topic] = before

    def take(self) -> dict[str, str]:
        """Return the new id of each topic that was recreated or first seen since the last call."""
        news, self._news = self._news, {}
        return news

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """Whether this id was replaced; a broker that still reports it has stale metadata."""
        return self._gone.get(topic) == topic_id


class TopicIds:
    """Requests topic ids, at once or periodically, but not of librdkafka's mock cluster, which never answers."""

    def __init__(self, admin: AdminClient, cluster_id: str, made_again: MadeAgain) -> None:
        self._admin = admin
        self._made_again = made_again
        self._known = not is_mock(cluster_id)
        self._asked: dict[str, Future[Any]] = {}
        self._ask_at_s = 0.0

    def find(self, topics: Collection[str], timeout_s: float) -> dict[str, str | KafkaError]:
        """The ids of these topics, or the error; empty if the broker has no topic ids."""
        deadline_s = time.monotonic() + timeout_s + PATIENCE_S
        ids: dict[str, str | KafkaError] = {}
        for topic, future in self._ask(topics, timeout_s).items():
            try:
                ids[topic] = str(future.result(max(0.0, deadline_s - time.monotonic())).topic_id)
                if self._made_again.is_gone(topic, str(ids[topic])):
                    ids[topic] = KafkaError(KafkaError.UNKNOWN_TOPIC_ID, "a broker still has the id of before")
            except TimeoutError:
                ids[topic] = KafkaError(KafkaError._TIMED_OUT, "no answer about topic ids")
            except KafkaException as error:
                if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:  # brokers before 2.8 have no ids
                    self._known = False
                    return {}
                ids[topic] = error.args[0]
        return ids

    def watch(self, topics: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Request ids every 5 s without waiting; yield the answers: topic and id, None for a topic that is gone."""
        now = time.monotonic()
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            for topic, future in asked.items():
                error = future.exception()
                if error is None:
                    topic_id = str(future.result().topic_id)
                    if not self._made_again.is_gone(topic, topic_id):
                        yield topic, topic_id
                elif isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    yield topic, None
        if now >= self._ask_at_s and topics and not self._asked:
            self._ask_at_s = now + ASK_EVERY_S
            self._asked = self._ask(topics, TIMEOUT_S)

    def _ask(self, topics: Collection[str], timeout_s: float) -> dict[str, Future[Any]]:
        if not self._known or not topics:
            return {}
        return self._admin.describe_topics(ck.TopicCollection(sorted(topics)), request_timeout=timeout_s)
