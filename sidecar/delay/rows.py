"""Held messages in their byte form: a row's key and value, and what they say. Opens no file.

The database is one sorted map. Each key begins with its kind and the number of its partition; a row goes on with its
position, so that what is due next is the first row from a place on, and what has ended is one range:

    p  number                            -> the partition's name, state, watermark, floor and mark
    r  number  position  epoch           -> a message
    n  number  hash  position  epoch     -> nothing: that message has a name with this hash
    c  number  number of the write       -> the store, what hours gained, and origins that became known
    x  number  key                       -> a note that `LocalCache` keeps for its user
    b                                    -> a number, see `RowDatabase.last`
    z  number                            -> the same as `p`, in another block: of use if one of them is damaged
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER, name_in
from sidecar.core.messages.instants import END_MS
from sidecar.core.messages.tag_index import ENTRY_BYTES
from sidecar.delay.headers import unpack_headers
from sidecar.errors import StateError

Leave = Callable[[bytes], bool]
"""Whether a message with this entry of its tags is left unread."""
HOUR_MS = 3_600_000
POSITION_MAX = (1 << 63) - 1
DUE_MAX_MS = POSITION_MAX >> SEQUENCE_BITS
ORIGIN_MAX = (1 << 64) - 1
PUT_BYTES_MAX = 1 << 30
"""Payloads that can be put at once."""
PARKED_FROM = END_MS << SEQUENCE_BITS
"""Positions from here on are of parked parts: the time at which they were parked, and no message is due so late."""
PARKED_HOUR = END_MS // HOUR_MS
NO_TIMESTAMP = (1 << 48) - 1
STORE_BYTES = 6
"""Bytes of a store's identity."""


class Kind(bytes, Enum):
    """The first byte of a key."""

    PARTITION = b"p"
    ROW = b"r"
    NAME = b"n"
    COUNT = b"c"
    NOTE = b"x"
    BASE = b"b"
    SPARE = b"z"
    ROOM = b"w"
    """Written to find out whether there is room again."""


_PREFIX = struct.Struct(">cI")
KEY = struct.Struct(">cIQQ")
"""A row's key: kind, partition, position, epoch."""
_NAME_KEY = struct.Struct(">cIIQQ")
COUNT_KEY = struct.Struct(">cIQ")
HEAD = struct.Struct(f"<QQ{ENTRY_BYTES}sII")
"""Origin, timestamp or `NO_TIMESTAMP`, entry of the tags, bytes of key and headers; key, headers and value follow."""
NO_KEY = (1 << 32) - 1
NO_VALUE = 1 << 31
"""Added to the size of the headers if there is no value."""
ROW_BYTES = KEY.size + HEAD.size
"""Bytes of a row beside its payload."""
_NAME = NAME_HEADER.encode()
_PARKED = PARKED_FROM.to_bytes(8, "big")


class Held(NamedTuple):
    """A message that is held, or is to be."""

    position: int
    """The due time in milliseconds since the epoch, shifted by `SEQUENCE_BITS`, and a sequence number: unique in its
    partition. `put` gives it the number."""
    origin: int
    """Any number that its owner gave it, such as an offset."""
    epoch: int
    """The ownership in which the message was put; 0 in a store that only one host has."""
    timestamp_ms: int | None
    tags: bytes
    """Entry of `core.messages.tag_index`."""
    key: bytes | None
    headers: bytes
    """In the form that the owner chose."""
    value: bytes | None


class Unread(Held):
    """A message without timestamp, key, headers and value: they were not read, since its tags cannot be wanted."""

    __slots__ = ()


held_of: Callable[[Iterable[object]], Held] = partial(tuple.__new__, Held)
"""A message of the fields; `Held` itself takes twice as long."""
Pair = tuple[bytes, bytes]
"""Key and value of a row."""


class ListedRow(NamedTuple):
    """A message that is held, without its content."""

    position: int
    origin: int
    nbytes: int
    """Bytes of key, headers and value."""


def hour_of(position: int) -> int:
    """The hour of a position, counted since the epoch."""
    return (position >> SEQUENCE_BITS) // HOUR_MS


def start_of(hour: int) -> int:
    """The lowest position of an hour."""
    return hour * HOUR_MS << SEQUENCE_BITS


def prefix(kind: Kind, number: int) -> bytes:
    """The first bytes of a partition's keys of a kind."""
    return _PREFIX.pack(kind, number)


def end_of(kind: Kind, number: int) -> bytes:
    """The lowest key above a partition's keys of a kind."""
    return (int.from_bytes(prefix(kind, number), "big") + 1).to_bytes(_PREFIX.size, "big")


def row_key(number: int, position: int, epoch: int) -> bytes:
    """The key of a row."""
    return KEY.pack(Kind.ROW, number, position, epoch)


def position_in(key: bytes) -> int:
    """The position in the key of a row."""
    return int.from_bytes(key[5:13], "big")


def number_in(key: bytes) -> int:
    """The partition in a key."""
    return int.from_bytes(key[1:5], "big")


def name_prefix(number: int, name: bytes) -> bytes:
    """The first bytes of the keys of messages that may have a name."""
    return _NAME_KEY.pack(Kind.NAME, number, zlib.crc32(name), 0, 0)[:9]


def row_of_name(key: bytes) -> bytes:
    """The key of the row that the key of a name stands for."""
    return prefix(Kind.ROW, number_in(key)) + key[9:]


def name_key(key: bytes, headers: bytes) -> bytes | None:
    """The key of the name of a message with these headers, by the key of its row; None if it has no name.

    A parked part has none, whatever its headers are.
    """
    if _NAME not in headers or key[5:13] >= _PARKED or (name := name_in(unpack_headers(headers))) is None:
        return None
    return name_prefix(number_in(key), name) + key[5:]


def origin_in(value: bytes) -> int:
    """The origin in the value of a row."""
    return int.from_bytes(value[:8], "little")


def tags_in(value: bytes) -> bytes:
    """The entry of the tags in the value of a row."""
    return value[16 : 16 + ENTRY_BYTES].ljust(ENTRY_BYTES, b"\0")


def unpacked(key: bytes, value: bytes, leave: Leave | None = None) -> Held:
    """The message of a row.

    Args:
        leave: Says of which messages only the row is read.

    Raises:
        StateError: It has another form.
    """
    try:
        origin, stamp, tags, key_bytes, header_bytes = HEAD.unpack_from(value)
        _, _, position, epoch = KEY.unpack(key)
    except struct.error as error:
        raise _unknown(key) from error
    if leave is not None and leave(tags):
        return Unread(position, origin, epoch, None, tags, None, b"", None)
    headers_at = HEAD.size if key_bytes == NO_KEY else HEAD.size + key_bytes
    value_at = headers_at + (header_bytes & ~NO_VALUE)
    if value_at > len(value):
        raise _unknown(key)
    return held_of((
        position, origin, epoch,
        None if stamp == NO_TIMESTAMP else stamp,
        tags,
        None if key_bytes == NO_KEY else value[HEAD.size : headers_at],
        value[headers_at:value_at],
        None if header_bytes & NO_VALUE else value[value_at:],
    ))  # fmt: skip


def headers_in(value: bytes) -> bytes:
    """The packed headers in the value of a row; none if it has another form."""
    if len(value) < HEAD.size:
        return b""
    *_, key_bytes, header_bytes = HEAD.unpack_from(value)
    at = HEAD.size if key_bytes == NO_KEY else HEAD.size + key_bytes
    return value[at : at + (header_bytes & ~NO_VALUE)]


def _unknown(key: bytes) -> StateError:
    return StateError(
        f"delayed messages: the row {key.hex()} has a form that this version does not know",
        hint="use the version of Sidecar that wrote it, or a later one",
    )


def listed(key: bytes, value: bytes) -> ListedRow:
    """A row without its content."""
    return ListedRow(position_in(key), origin_in(value), len(value) - HEAD.size)
