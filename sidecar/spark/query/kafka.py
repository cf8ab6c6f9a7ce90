"""Columns of Kafka's messages for a query. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Message

from sidecar.core.records import Header
from sidecar.sources.kafka.columns import KafkaColumns


class QueryColumns(KafkaColumns):
    """Reads the headers of a list once: tags, ids and rows each ask for them."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._headers: Sequence[Sequence[Header] | None] = ()

    def headers(self, messages: Sequence[Message]) -> Sequence[Sequence[Header] | None]:
        """See `KafkaColumns`."""
        if messages is not self._messages:
            self._messages, self._headers = messages, list(super().headers(messages))
        return self._headers
