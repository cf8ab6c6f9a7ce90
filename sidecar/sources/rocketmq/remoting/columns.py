"""Reads stored messages of RocketMQ by column. Every line is on the hot path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from sidecar.core.messages.fields import Raw
from sidecar.core.records import Details, Header, TopicPartition
from sidecar.sources.rocketmq.wire.ids import offset_id
from sidecar.sources.rocketmq.wire.messages import StoredMessage, properties, property_of
from sidecar.sources.rocketmq.wire.requests import RETRY

_OFFSET, _BODY, _PROPERTIES, _BORN = map(itemgetter, range(4))
_KEYS, _ID, _ORIGIN = map(property_of, ("KEYS", "UNIQ_KEY", "ORIGIN_MESSAGE_ID"))


class RocketMqColumns:
    """`records.Columns` for stored messages; properties are headers, the joined keys are the key."""

    def offsets(self, messages: Sequence[StoredMessage]) -> Iterable[int]:
        """The offset of each message in its queue."""
        return map(_OFFSET, messages)

    def timestamps(self, messages: Sequence[StoredMessage]) -> Iterable[int | None]:
        """Time at which each message was produced."""
        return map(_BORN, messages)

    def keys(self, messages: Sequence[StoredMessage]) -> Iterable[bytes | None]:
        """The property KEYS of each message."""
        for message in messages:
            match = _KEYS.search(message.properties)
            yield match[1] if match else None

    def headers(self, messages: Sequence[StoredMessage]) -> Iterable[Sequence[Header] | None]:
        """The properties of each message."""
        return [properties(stored) for stored in map(_PROPERTIES, messages)]

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

    def values(self, messages: Sequence[StoredMessage]) -> Iterable[bytes | None]:
        """The body of each message."""
        return map(_BODY, messages)

    def details(self, messages: Sequence[StoredMessage]) -> Iterable[Details | None]:
        """Ids, keys, and the number of times each message was handed back."""
        return map(details_of, messages)


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
