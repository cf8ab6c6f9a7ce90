"""Columns of leased messages, and the identity by which repeats are recognized. Every line is on the hot path."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from operator import attrgetter

from xxhash import xxh3_128_digest

from sidecar.core.messages.fields import Raw, header_column
from sidecar.core.messages.tags import Memo
from sidecar.core.partition_state import lane_key
from sidecar.core.records import Details, GetterColumns, TopicPartition
from sidecar.sources.context import GroupsOf
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.wire.ids import offset_id

OVERHEAD_BYTES = 1024
"""Accounted size of a held message without its body."""
_LENGTHS = struct.Struct("<q4I")


class LeasedMessage:
    """A message from the moment it is handed over until it is settled."""

    __slots__ = ("again", "chunk", "handed", "handles", "held_bytes", "identity", "key", "number")

    def __init__(self, handed: HandedMessage, identity: bytes, number: int = -1) -> None:
        self.handed = handed
        self.identity = identity
        self.number = number
        self.key: int | None = None
        """Key of its group in a partition's state; None while it is unwanted."""
        self.chunk: int | None = None
        """The row of the state file that has it as a member of an intent."""
        self.handles: list[Hashable] = [] if handed.handle is None else [handed.handle]
        self.again = False
        """Whether it was in flight at a crash."""
        self.held_bytes = len(handed.body) + OVERHEAD_BYTES
        """Its accounted size."""


LANE_KEYS: Memo[str, int] = Memo(lane_key)
"""Keys of groups in a partition's state."""


def give_keys(topic: str, messages: Sequence[LeasedMessage], groups_of: GroupsOf) -> None:
    """Give messages the keys of their groups."""
    for message, group in zip(messages, groups_of(TopicPartition(topic, 0), messages), strict=True):
        message.key = None if group is None else LANE_KEYS[group]


def identity_of(handed: HandedMessage) -> bytes:
    """16 bytes that stay the same when a message is handed over again, and of no two messages are the same.

    `UNIQ_KEY` alone is not enough: different messages can carry the same.
    """
    topic, drawn = handed.topic.encode(), handed.message_id.encode("utf-8", "surrogateescape")
    keys, tag = b" ".join(handed.keys), handed.tag
    born_ms = -1 if handed.born_ms is None else handed.born_ms
    head = _LENGTHS.pack(born_ms, len(topic), len(drawn), len(tag), len(keys))
    return xxh3_128_digest(b"".join((head, topic, drawn, tag, keys, handed.body)))


def details_of(message: LeasedMessage) -> Details:
    """The fields that only RocketMQ messages have."""
    handed = message.handed
    return Details(
        handed.message_id.encode("utf-8", "surrogateescape") or None,
        handed.offset_message_id,
        handed.keys,
        handed.reconsume_times,
        handed.place,
        message.identity,
    )


def key_of(message: LeasedMessage) -> bytes | None:
    """The keys, joined as in the property KEYS."""
    return b" ".join(message.handed.keys) or None


def _origin(handed: HandedMessage) -> bytes:
    named = dict(handed.properties) if handed.retry_topic else {}
    return offset_id(named.get("ORIGIN_MESSAGE_ID") or b"") or bytes.fromhex(handed.offset_message_id)


class LeasedColumns(GetterColumns):
    """Reads taken messages: offsets are Sidecar's own numbers, properties are headers, the joined keys are the key."""

    def __init__(self) -> None:
        super().__init__(
            attrgetter("number"), attrgetter("handed.born_ms"), key_of,
            attrgetter("handed.properties"), attrgetter("handed.body"), details_of,
        )  # fmt: skip

    def header(self, messages: Sequence[LeasedMessage], name: str) -> list[Raw]:
        """The value of this property of each message; the tag is known without a search."""
        if name != "TAGS":
            return header_column(self, messages, name)
        return [message.handed.tag or header_column(self, [message], name)[0] for message in messages]

    def origins(self, _: TopicPartition, messages: Sequence[LeasedMessage]) -> list[Raw]:
        """Broker and commit-log offset of each message; for the retry topic, those of its origin."""
        return [_origin(message.handed) for message in messages]
