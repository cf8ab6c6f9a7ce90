"""Reads stored messages of RocketMQ by column. Every line is on the hot path."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from sidecar.core.messages.fields import Raw
from sidecar.core.records import Details, GetterColumns, TopicPartition
from sidecar.sources.rocketmq.wire.ids import offset_id
from sidecar.sources.rocketmq.wire.messages import StoredMessage, properties, property_of
from sidecar.sources.rocketmq.wire.requests import RETRY

_OFFSET, _BODY, _, _BORN = map(itemgetter, range(4))
_KEYS, _ID, _ORIGIN = map(property_of, ("KEYS", "UNIQ_KEY", "ORIGIN_MESSAGE_ID"))


class RocketMqColumns(GetterColumns):
    """Reads stored messages: properties are headers, the joined keys are the key."""

    def __init__(self) -> None:
        super().__init__(_OFFSET, _BORN, _key, lambda stored: properties(stored.properties), _BODY, details_of)

    def header(self, messages: Sequence[StoredMessage], name: str) -> list[Raw]:
        """One property of each message: takes 0.2 us, while reading all of them takes 1.3."""
        mark = b"\x02%b\x01" % name.encode("utf-8", "surrogatepass")
        return [_values((b"\x02" + message.properties).split(mark)) for message in messages]

    def origins(self, tp: TopicPartition, messages: Sequence[StoredMessage]) -> list[Raw]:
        """Broker and commit-log offset of each message; for a message of a retry topic, those of its origin."""
        own = [message.store_host + message.position.to_bytes(8) for message in messages]
        if not tp.topic.startswith(RETRY):
            return list(own)
        return [_origin(message.properties) or id_ for message, id_ in zip(messages, own, strict=True)]


def _key(message: StoredMessage) -> bytes | None:
    match = _KEYS.search(message.properties)
    return match[1] if match else None


def _origin(stored: bytes) -> bytes | None:
    """The place where a message that was handed back was first stored, None if it is not recorded.

    If a broker refuses to take a message back, Java's client sends it again by itself, with the producer's id there.
    """
    match = _ORIGIN.search(stored)
    return offset_id(match[1]) if match else None


def _values(cut: Sequence[bytes]) -> Raw:
    """The values after each mark, up to the next property."""
    if len(cut) == 2:
        return cut[1].partition(b"\x02")[0]
    return tuple([rest.partition(b"\x02")[0] for rest in cut[1:]]) or None


def details_of(message: StoredMessage) -> Details:
    """RocketMQ's own attributes of a message."""
    message_id, keys = _ID.search(message.properties), _KEYS.search(message.properties)
    return Details(
        message_id[1] if message_id else None,
        message.offset_message_id,
        keys[1].split() if keys else (),
        message.reconsume_times,
    )
