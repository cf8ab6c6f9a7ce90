"""Reads single messages again, for dead letters: one extra client, created at first use. Never in a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import confluent_kafka as ck

from sidecar.core.records import Original, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.columns import KafkaColumns, digest_of, headers_of

TIMEOUT_S = 5.0
_GONE = {
    ck.KafkaError._PARTITION_EOF,
    ck.KafkaError._AUTO_OFFSET_RESET,
    ck.KafkaError.OFFSET_OUT_OF_RANGE,
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_COLUMNS = KafkaColumns()
_SMALL_STEPS = {
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 1,  # 1000 by default: 138 ms a message instead of 6
    "fetch.message.max.bytes": 64 << 10,  # larger messages are still returned
}


def fetcher_config(config: Mapping[str, object]) -> dict[str, object]:
    """Derive the fetching client's configuration from that of all clients."""
    return {**config, **_SMALL_STEPS, "enable.partition.eof": True, "group.id": "unused"}


class KafkaFetcher:
    """Fetches by position; used by one thread."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = fetcher_config(config)
        self._client: ck.Consumer | None = None
        self._busy = threading.Lock()

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """The message, None if it is gone; raises `UnavailableError` if the broker does not give it within 5 s."""
        message = self.message(tp, offset)
        if message is None:
            return None
        (at_ms,) = _COLUMNS.timestamps([message])
        return Original(message.key(), message.value(), headers_of(message) or [], at_ms)

    def digest(self, tp: TopicPartition, offset: int) -> int | None:
        message = self.message(tp, offset)
        return None if message is None else digest_of(message)

    def message(self, tp: TopicPartition, offset: int) -> ck.Message | None:
        """The message as the client has it, None if it is gone; raises like `fetch`."""
        with self._busy:
            if self._client is None:
                self._client = ck.Consumer(self._config)
            try:
                self._client.assign([ck.TopicPartition(tp.topic, tp.partition, offset)])
                return self._await(self._client, tp, offset)
            except ck.KafkaException as error:
                raise _unavailable(tp, offset, str(error)) from error
            finally:
                self._client.unassign()

    def _await(self, client: ck.Consumer, tp: TopicPartition, offset: int) -> ck.Message | None:
        deadline = time.monotonic() + TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            message = client.poll(left)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() not in _GONE:
                raise _unavailable(tp, offset, error.str())
            return None if error is not None or message.offset() != offset else message
        raise _unavailable(tp, offset, f"no answer within {TIMEOUT_S:g} s")

    def close(self) -> None:
        """Disconnect, unless a fetch is under way: then the end of the process disconnects."""
        if self._client is not None and self._busy.acquire(blocking=False):
            self._client.close()


def _unavailable(tp: TopicPartition, offset: int, reason: str) -> UnavailableError:
    return UnavailableError(f"{tp}@{offset} could not be read again: {reason}")
