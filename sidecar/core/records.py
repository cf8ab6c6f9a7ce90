"""The nouns that all of the package shares: partitions, messages, runs, fragments, answers. No behaviour but naming."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict
from urllib.parse import quote, quote_from_bytes

GROUP_HEADER_MAX_BYTES = 128
PARTS_MAX = 64
NO_ID = -(1 << 63)
"""Stands for the id of a message that has none."""
KEY_BYTES = 16
"""Of a business key in a ledger: strangers with one key would lose a message, so 64 bits are not enough."""
PARTS_HEADER_MAX_BYTES = 4096

Header: TypeAlias = tuple[str, bytes | None]
Message: TypeAlias = Any
"""A source's own message object; only that source's `Columns` looks inside."""


class PlaceFields(TypedDict):
    """A partition as log events and JSON objects name it."""

    topic: str
    partition: int
    broker: NotRequired[str]


class TopicPartition(NamedTuple):
    """A partition of a topic; the unit of ownership, progress and order.

    RocketMQ numbers the queues of each broker by themselves, so there the broker is part of the place.
    """

    topic: str
    partition: int
    broker: str = ""
    """Its name; empty for Kafka, whose partitions are numbered over all brokers."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.broker}:{self.partition}]" if self.broker else f"{self.topic}[{self.partition}]"

    def fields(self) -> PlaceFields:
        """The place as a log event or a JSON object tells it."""
        if self.broker:
            return {"topic": self.topic, "partition": self.partition, "broker": self.broker}
        return {"topic": self.topic, "partition": self.partition}

    @property
    def queue(self) -> str:
        """``partition``, or ``broker:queue``; what would break a header is percent-encoded in the broker's name."""
        return f"{quote(self.broker, safe='')}:{self.partition}" if self.broker else str(self.partition)


class Place(NamedTuple):
    """Where RocketMQ keeps a message."""

    topic: str
    """Of a message that was handed back: the group's retry topic."""
    broker: str
    queue: int
    offset: int


class Details(NamedTuple):
    """What RocketMQ tells of a message beside what every broker does."""

    message_id: bytes | None
    """The id that its producer drew (`UNIQ_KEY`). Not unique: two messages can carry one."""
    offset_message_id: str
    """Broker and commit-log offset in hexadecimal digits: unique."""
    keys: Sequence[bytes]
    reconsume_times: int
    """How often it was handed back before."""
    place: Place | None = None
    """Set where partition and offset are numbers of our own, since the client reads no queues."""
    identity: bytes | None = None
    """Set there too: what stays the same when the message is handed over again, with another number perhaps."""


class Columns(Protocol):
    """Reads one attribute of many messages at once: one C loop instead of a Python call a message."""

    def offsets(self, messages: Sequence[Message]) -> Iterable[int]:
        """The offset of each message."""
        ...

    def timestamps(self, messages: Sequence[Message]) -> Iterable[int | None]:
        """The timestamp of each message in milliseconds since the epoch, None where it has none."""
        ...

    def keys(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The key of each message, None stays None."""
        ...

    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message in their order, None or empty where there are none.

        Of RocketMQ these are the properties. A name that is not UTF-8 has U+FFFD in it.
        """
        ...

    def values(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The value of each message, None stays None."""
        ...

    def details(self, messages: Sequence[Message]) -> Iterable[Details | None]:
        """What RocketMQ alone tells of each message, None for other brokers."""
        ...


class Framer(Protocol):
    """How a sink's format turns messages into rows; pure, so that the core may call it."""

    separator: bytes
    """Stands between two rows of a fragment and can occur in no row."""

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:
        """Rows joined by `separator`, and the indices of the messages that cannot be framed and are left out."""
        ...


@dataclass(slots=True)
class Run:
    """Consecutively read messages of one partition, offsets strictly rising."""

    tp: TopicPartition
    messages: list[Message]
    first: int
    last: int


@dataclass(slots=True)
class Fragment:
    """Rows of one group and partition that were read together; `offsets[i]` belongs to row i of `data`."""

    offsets: Sequence[int]
    data: bytes | bytearray
    """The rows, joined by the separator; a bytearray only while more is read into it."""
    ids: Sequence[int] | None = None
    """Message id of each row or `NO_ID`, where duplicates are told by id."""
    unframeable: Sequence[int] = ()
    """Offsets of messages that belong here and have no row, since the format cannot hold them."""
    at_ms: float = 0.0
    """When they were read, monotonic."""
    keys: bytes = b""
    """`KEY_BYTES` for each row, where a ledger tells duplicates."""
    after: int = -1
    """An offset of the group right before it that was settled earlier: a part with that in its range would come again
    with it after a crash, so none spans it; -1 where there is none."""

    @property
    def first(self) -> int:
        """Lowest offset."""
        return min([*self.offsets[:1], *self.unframeable[:1]]) if self.unframeable else self.offsets[0]

    @property
    def last(self) -> int:
        """Highest offset."""
        return max([*self.offsets[-1:], *self.unframeable[-1:]]) if self.unframeable else self.offsets[-1]

    @property
    def count(self) -> int:
        """Messages, with and without a row."""
        return len(self.offsets) + len(self.unframeable)


class Attempt(NamedTuple):
    """One send as a dead letter remembers it."""

    at_ms: int
    status: int | None
    elapsed_ms: float
    reason: str


class Verdict(enum.Enum):
    """What a sink makes of a batch."""

    ACK = "ack"
    RETRY = "retry"
    """Not now: outage, overload, time-out."""
    REJECT = "reject"
    """At least one message is poison, which one is unknown: bisect."""
    TOO_LARGE = "too_large"
    """Halve; alone it is dead-lettered."""
    PARTIAL = "partial"
    """All but the rows in `failed` were taken."""
    HALT = "halt"
    """Never the messages' fault (address, credentials): stop intake, report, try again."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that a partial answer names."""

    index: int
    retry: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A sink's answer to one send of one batch."""

    verdict: Verdict
    reason: str = ""
    status: int | None = None
    retry_after_ms: int | None = None
    failed: tuple[FailedRow, ...] = ()
    elapsed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is given up, with its origin and story; (the partition's scope, tp, offset) is its identity."""

    tp: TopicPartition
    offset: int
    scope: str
    group: str
    reason: str
    row: bytes | None
    """The row as the sink's format framed it; None when it could not be framed."""
    attempts: tuple[Attempt, ...] = ()


def group_label(group: str) -> str:
    """A group's name as headers, labels and logs show it: percent-encoded, a prefix and hash beyond 128 bytes.

    Args:
        group: The name; bytes that are not UTF-8 stand in it as surrogate escapes.
    """
    raw = group.encode("utf-8", "surrogateescape")
    text = quote_from_bytes(raw, safe="!#$&'*+.^_`|~:/@()[]{}=;<>? -")
    text = text.replace(" ", "%20") if text != text.strip() else text
    if len(text) <= GROUP_HEADER_MAX_BYTES:
        return text
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"{text[: GROUP_HEADER_MAX_BYTES - 17]}-{digest}"
