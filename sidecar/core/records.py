"""The nouns that the package shares: partitions, messages, runs, fragments, answers. No behaviour except naming."""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict
from urllib.parse import quote, quote_from_bytes

from pyroaring import BitMap64
from typing_extensions import override

GROUP_HEADER_MAX_BYTES = 128
PARTS_MAX = 64
NO_ID = -(1 << 63)
"""Id of a message that has none."""
KEY_BYTES = 16
"""Size of a business key in a ledger: unrelated messages with one key would be lost, so 64 bits are not enough."""
PARTS_HEADER_MAX_BYTES = 4096
DELAYED = "+delayed"
"""Marks a partition's delayed messages; a plus sign is in no broker's name."""

Header: TypeAlias = tuple[str, bytes | None]
Message: TypeAlias = Any
"""A source's own message object; only that source's `Columns` looks inside."""


class _PlaceFields(TypedDict):
    """A partition as log events and JSON objects name it."""

    topic: str
    partition: int
    broker: NotRequired[str]
    delayed: NotRequired[bool]


class TopicPartition(NamedTuple):
    """A partition of a topic; the unit of ownership, progress and order.

    The delayed messages of a partition, which a store holds until they are due, are a partition too. Its offsets are
    positions: due times, with a number that makes them unique.

    RocketMQ numbers the queues of each broker separately, so there the broker is part of the identity.
    """

    topic: str
    partition: int
    broker: str = ""
    """Name of the broker; empty for Kafka, whose partitions are numbered over all brokers. With `DELAYED` behind it if
    this is the delayed messages of the partition."""

    def __str__(self) -> str:
        name = self.source.broker
        queue = f"{name}:{self.partition}" if name else str(self.partition)
        return f"{self.topic}[{queue}{DELAYED * self.delayed}]"

    def fields(self) -> _PlaceFields:
        """The partition in a log event or JSON object."""
        place: _PlaceFields = {"topic": self.topic, "partition": self.partition}
        if name := self.source.broker:
            place["broker"] = name
        if self.delayed:
            place["delayed"] = True
        return place

    @property
    def queue(self) -> str:
        """``partition`` or ``broker:queue``; the broker's name is percent-encoded where it would break a header."""
        if not self.broker:
            return str(self.partition)
        name = self.source.broker
        return f"{quote(name, safe='')}:{self.partition}" if name else str(self.partition)

    @property
    def delayed(self) -> bool:
        """Whether this stands for the delayed messages of a partition."""
        return self.broker.endswith(DELAYED)

    @property
    def source(self) -> TopicPartition:
        """The partition without its delayed messages."""
        return self._replace(broker=self.broker[: -len(DELAYED)]) if self.delayed else self

    @property
    def store(self) -> TopicPartition:
        """The partition's delayed messages."""
        return self if self.delayed else self._replace(broker=self.broker + DELAYED)


class Place(NamedTuple):
    """The place where RocketMQ keeps a message."""

    topic: str
    """Topic; for a message that was handed back, the group's retry topic."""
    broker: str
    queue: int
    offset: int


class Details(NamedTuple):
    """Attributes of a message that only RocketMQ has."""

    message_id: bytes | None
    """The id that its producer generated (`UNIQ_KEY`). Not unique: two messages can have the same id."""
    offset_message_id: str
    """Broker and commit-log offset in hexadecimal digits: unique."""
    keys: Sequence[bytes]
    reconsume_times: int
    """Number of times the message was handed back before."""
    place: Place | None = None
    """Set if partition and offset are Sidecar's own numbers, because the client reads no queues."""
    identity: bytes | None = None
    """Set if `place` is: stays the same when the message is received again under another number."""


class Columns(Protocol):
    """Reads one attribute of many messages at once: one C loop instead of a Python call per message."""

    def offsets(self, messages: Sequence[Message]) -> Iterable[int]:
        """The offset of each message."""
        ...

    def timestamps(self, messages: Sequence[Message]) -> Iterable[int | None]:
        """The timestamp of each message in milliseconds since the epoch, None if it has none."""
        ...

    def keys(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The key of each message, None stays None."""
        ...

    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message in their order, None or empty if there are none.

        For RocketMQ these are the properties. A name that is not UTF-8 contains U+FFFD.
        """
        ...

    def values(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The value of each message, None stays None."""
        ...

    def details(self, messages: Sequence[Message]) -> Iterable[Details | None]:
        """RocketMQ's own attributes of each message, None for other brokers."""
        ...


class GetterColumns(Columns):
    """Columns by a function for each attribute of one message, mapped in C where the function is."""

    def __init__(
        self,
        offset: Callable[[Message], int],
        timestamp_ms: Callable[[Message], int | None],
        key: Callable[[Message], bytes | None],
        headers: Callable[[Message], Sequence[Header] | None],
        value: Callable[[Message], bytes | None],
        details: Callable[[Message], Details | None] | None = None,
    ) -> None:
        self._offset, self._timestamp_ms, self._key = offset, timestamp_ms, key
        self._headers, self._value, self._details = headers, value, details

    @override
    def offsets(self, messages: Sequence[Message]) -> Iterable[int]:
        return map(self._offset, messages)

    @override
    def timestamps(self, messages: Sequence[Message]) -> Iterable[int | None]:
        return map(self._timestamp_ms, messages)

    @override
    def keys(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        return map(self._key, messages)

    @override
    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        return map(self._headers, messages)

    @override
    def values(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        return map(self._value, messages)

    @override
    def details(self, messages: Sequence[Message]) -> Iterable[Details | None]:
        return map(self._details, messages) if self._details else repeat(None, len(messages))


class Framer(Protocol):
    """Turns messages into rows of a sink's format; pure, so that the core may call it."""

    separator: bytes
    """The bytes between two rows of a fragment; they can occur in no row."""

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:
        """Rows joined by `separator`, and the indices of the messages that cannot be framed and are left out."""
        ...


@dataclass(slots=True)
class Run:
    """Consecutively read messages of one partition, offsets strictly rising."""

    tp: TopicPartition
    messages: Sequence[Message]
    first: int
    last: int
    sorter: RunSorter | None = None
    """Sorts the messages in place of the core, and leaves only the last of them; None if the core sorts."""
    unwanted: Sequence[int] = ()
    """Positions of further messages in between, which a store left unread: their tags cannot be wanted."""


class _GroupRows(Protocol):
    """Rows of one group, see `Fragment`."""

    @property
    def group(self) -> str: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def data(self) -> bytes: ...
    @property
    def ids(self) -> Sequence[int] | None: ...
    @property
    def unframeable(self) -> Sequence[int]: ...


class _SortedRows(Protocol):
    """The outcome of a run's messages."""

    @property
    def rows(self) -> Sequence[_GroupRows]: ...
    @property
    def filtered(self) -> int: ...
    @property
    def masked(self) -> int: ...
    @property
    def duplicate(self) -> int: ...
    @property
    def odd_ids(self) -> int: ...
    @property
    def stamp_ms(self) -> int | None: ...


class RunSorter(Protocol):
    """Sorts a run by `ReadingRules.sorting`, with the same result as the core has by the other rules."""

    def ids(self, rules: Any, /) -> tuple[array[int], int]:
        """The ids of the wanted messages or `NO_ID`, and the offset of the last of these; -1 if there is none."""
        ...

    def sort(self, rules: Any, fresh: bytes | None, /) -> _SortedRows:
        """Sort the messages; `fresh` has 1 for each wanted one whose id is new, else 0, and is None without ids."""
        ...


@dataclass(slots=True)
class Fragment:
    """Rows of one group and partition that were read together; `offsets[i]` belongs to row i of `data`."""

    offsets: Sequence[int]
    data: bytes | bytearray
    """The rows, joined by the separator; a bytearray only while it is being extended."""
    ids: Sequence[int] | None = None
    """Message id of each row or `NO_ID`, if duplicates are recognized by id."""
    unframeable: Sequence[int] | dict[int, str] = ()
    """Offsets of its messages without a row; with reasons if they are not all due to the format."""
    at_ms: float = 0.0
    """Time of the read, monotonic."""
    keys: bytes = b""
    """`KEY_BYTES` for each row, if a ledger recognizes duplicates."""
    after: int = -1
    """Offset of the group's settled message right before it, -1 if there is none. No part may span that message, which
    would be sent again after a crash."""
    stamp_ms: int | None = None
    """Timestamp of the first message that was read together with it, None if unknown."""

    @property
    def first(self) -> int:
        """Lowest offset."""
        return min([*self.offsets[:1], *self.unframeable]) if self.unframeable else self.offsets[0]

    @property
    def last(self) -> int:
        """Highest offset."""
        return max([*self.offsets[-1:], *self.unframeable]) if self.unframeable else self.offsets[-1]

    @property
    def count(self) -> int:
        """Messages, with and without a row."""
        return len(self.offsets) + len(self.unframeable)


class Parked(NamedTuple):
    """A part in the store instead of in memory, without its rows."""

    number: int
    """Its place in the order in which a partition's parts are parked, from 1."""
    scope: str
    home: str
    group: str
    first: int
    last: int
    offsets: BitMap64
    nbytes: int
    """Size of its rows in a body."""
    attempts: int
    """Failed sends."""
    seconds: int
    """Time since the first failed send."""
    half_of: int = 0
    """The number of the part that it is a half of; 0 if it is whole."""
    ids: bytes = b""
    """The message ids of its rows, 8 bytes each."""

    @property
    def lowest(self) -> int:
        """The lowest offset of its messages; its name may begin before."""
        return self.offsets.min()


class Attempt(NamedTuple):
    """One send in the history of a dead letter."""

    at_ms: int
    status: int | None
    elapsed_ms: float
    reason: str


class Verdict(enum.Enum):
    """The result of a send: what it says about the batch, and whether a message may be the cause."""

    ACK = "ack"
    FAILED = "failed"
    """The request has ended and nothing of it is stored. A message may be the cause."""
    UNANSWERED = "unanswered"
    """It is unknown whether the batch is stored, or will be: the request may still be running."""
    BUSY = "busy"
    """Nothing was stored, and no message was looked at: overload, or no connection."""
    REJECT = "reject"
    """At least one message is poison, which one is unknown: bisect."""
    TOO_LARGE = "too_large"
    """Too large: halve; a single message is dead-lettered."""
    PARTIAL = "partial"
    """All rows except those in `failed` were accepted."""
    HALT = "halt"
    """Never caused by messages (address, credentials): stop intake, report, retry."""

    @property
    def is_retry(self) -> bool:
        """Whether the batch is sent again, whole and under its name."""
        return self in (Verdict.FAILED, Verdict.UNANSWERED, Verdict.BUSY)


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that a partial answer lists as failed."""

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
    sent_bytes: int | None = None
    """Size of the request's body as it was sent; None if the sink has no such limit."""


class Original(NamedTuple):
    """A message as it is at the broker."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int | None
    details: Details | None = None
    """The result of `Columns.details` for it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is given up, with its origin and history; identified by (partition's scope, tp, offset)."""

    tp: TopicPartition
    offset: int
    scope: str
    group: str
    reason: str
    row: bytes | None
    """The row in the sink's format; None if it could not be framed."""
    attempts: tuple[Attempt, ...] = ()
    original: Original | None = None
    """The whole message, if the source may no longer have it."""


def group_label(group: str) -> str:
    """A group's name in headers, labels and logs: percent-encoded, a prefix and hash beyond 128 bytes.

    Args:
        group: The name; bytes that are not UTF-8 are surrogate escapes.
    """
    raw = group.encode("utf-8", "surrogateescape")
    text = quote_from_bytes(raw, safe="!#$&'*+.^_`|~:/@()[]{}=;<>? -")
    text = text.replace(" ", "%20") if text != text.strip() else text
    if len(text) <= GROUP_HEADER_MAX_BYTES:
        return text
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"{text[: GROUP_HEADER_MAX_BYTES - 17]}-{digest}"
