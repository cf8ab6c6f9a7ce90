"""Kafka for planning: bounds of its logs. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.offsets import Offsets, is_meant
from sidecar.sources.kafka.topics import TIMEOUT_S, MadeAgain, TopicIds
from sidecar.spark.ranges.broker import REQUEST_S, await_cluster, known_bounds, outsider, unreachable
from sidecar.spark.ranges.logs import Bounds

T = TypeVar("T")


class KafkaLogs:
    """The logs of a source. Nothing is open before the first request."""

    def __init__(self, kafka: KafkaSource) -> None:
        self._kafka = kafka
        self._stack = ExitStack()

    def bounds(self) -> Mapping[TopicPartition, Bounds]:
        """See `Logs`."""
        return self._ask(lambda offsets: known_bounds(offsets, self._kafka))

    def at_time(self, bounds: Mapping[TopicPartition, Bounds], at_ms: int) -> Mapping[TopicPartition, int]:
        """See `Logs`."""

        def times(offsets: Offsets) -> dict[TopicPartition, int]:
            found = {tp: offsets.at_time(tp, at_ms) for tp in bounds}
            return {tp: bounds[tp].high if offset is None else offset for tp, offset in found.items()}

        return self._ask(times)

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        """See `Logs`."""
        ids: dict[str, str] = {}
        for topic, answer in self._ids.find(topics, TIMEOUT_S).items():
            if isinstance(answer, KafkaError):
                raise UnavailableError(f"the broker does not report the id of {topic}: {answer.str()}")
            ids[topic] = answer
        return ids

    def is_read(self, topic: str) -> bool:
        """See `Logs`."""
        return any(is_meant(pattern, topic) for pattern in self._kafka.topics)

    @cached_property
    def _cluster_id(self) -> str:
        return await_cluster(self._kafka)

    @cached_property
    def _ids(self) -> TopicIds:
        return TopicIds(AdminClient(client_config(self._kafka)), self._cluster_id, MadeAgain())

    @cached_property
    def _consumer(self) -> ck.Consumer:
        return self._stack.enter_context(outsider(self._kafka))

    def _ask(self, question: Callable[[Offsets], T]) -> T:
        assert self._cluster_id is not None  # it is awaited once: until then, brokers may start and topics be missing
        offsets = Offsets(self._consumer)
        offsets.within(REQUEST_S)
        try:
            return question(offsets)
        except ck.KafkaException as error:
            raise unreachable(self._kafka, error) from error

    def close(self) -> None:
        """Disconnect."""
        self._stack.close()
