"""Reads single messages again, for dead letters: one extra client, made when it is first needed. Never in a group."""

from __future__ import annotations

import time
from collections.abc import Mapping

import confluent_kafka as ck

from sidecar.core.records import TopicPartition
from sidecar.sources.base import Original
from sidecar.sources.kafka_columns import KafkaColumns, headers_of

TIMEOUT_S = 5.0
_COLUMNS = KafkaColumns()
_SMALL_STEPS = {
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,  # 1000 by default: 138 ms a message instead of 6
    "fetch.message.max.bytes": 64 << 10,  # a larger message comes all the same
}


class Fetcher:
    """Fetches by position; used by one thread.

    Args:
        config: The client's configuration, addresses and credentials included.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = {**config, **_SMALL_STEPS, "enable.partition.eof": True, "group.id": "unused"}
        self._client: ck.Consumer | None = None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message, None when it is gone or the broker does not give it within 5 s."""
        if self._client is None:
            self._client = ck.Consumer(self._config)
        try:
            self._client.assign([ck.TopicPartition(tp.topic, tp.partition, offset)])
            return self._await(offset)
        except ck.KafkaException:
            return None
        finally:
            self._client.unassign()

    def _await(self, offset: int) -> Original | None:
        assert self._client is not None
        deadline = time.monotonic() + TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            message = self._client.poll(left)
            if message is None:
                continue
            if message.error() is not None or message.offset() != offset:
                return None
            (at_ms,) = _COLUMNS.timestamps([message])
            return Original(message.key(), message.value(), headers_of(message) or [], at_ms)
        return None

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
