"""Blocks of held messages: the unit that is appended to an hour's file, in its byte form. Opens no file.

A block is a head, a table with one row of fixed size per message, and the payloads in the same order: key, headers,
value of each. Behind them, within the bytes of the payloads, are the keys of `names`, if a message has a name. Tables
are read without the payloads. Positions, not times, order messages: the due time in milliseconds shifted by
`SEQUENCE_BITS`, and a sequence number that makes them unique in their partition.

Each checksum begins with the salt of the file, which no producer knows: so no bytes of a message pass for a block.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import NAME_HEADER, name_in
from sidecar.core.messages.tag_index import ENTRY_BYTES
from sidecar.delay.disk.names import Keys, decoded, encoded, key_of
from sidecar.delay.headers import unpack_headers

Read = Callable[[int, int], bytes]
"""Reads a number of bytes of a file at an offset; fewer only at its end."""
Leave = Callable[[bytes], bool]
"""Whether a message with this entry of its tags is left unread."""
MAGIC = 0xDE1A7B0C
_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_HEAD = struct.Struct("<IIIIIIII")
"""Magic, checksum of the six fields behind, checksums of table and payloads, messages, bytes of the payloads, number of
the first message in the hour, the hour's sequence number after the last."""
HEAD_BYTES = _HEAD.size
ROW = struct.Struct(f"<QQQ{ENTRY_BYTES}sIHHIII")
"""Position, origin, epoch, entry of the tags, timestamp (low and high), partition, sizes of key and headers, end of the
payload."""
ROW_BYTES = ROW.size
_END = struct.Struct("<I")
_NAME = NAME_HEADER.encode()
_END_AND_ROW = struct.Struct(f"<I{ROW.format[1:]}")
"""The end of the row before, and a row."""
ROW_TYPE = np.dtype(
    {
        "names": ["position", "origin", "epoch", "mask", "rules", "partition", "end"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u4", "<u2", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 42, 52],
        "itemsize": ROW_BYTES,
    }
)
_SIZES_TYPE = np.dtype(
    {"names": ["key", "headers", "end"], "formats": ["<u4"] * 3, "offsets": [44, 48, 52], "itemsize": ROW_BYTES}
)
Table = NDArray[np.void]
"""Rows of `ROW_TYPE`."""
POSITION_MAX = (1 << 63) - 1
DUE_MAX_MS = POSITION_MAX >> SEQUENCE_BITS
ORIGIN_MAX = (1 << 64) - 1
PUT_BYTES_MAX = 1 << 30
"""Payloads that can be put at once."""
NO_POSITION = (1 << 64) - 1
"""Stands for a message that cannot be read."""
NO_KEY = (1 << 32) - 1
NO_VALUE = 1 << 31
"""Added to the size of the headers if there is no value."""
NO_TIMESTAMP = (1 << 48) - 1


class Held(NamedTuple):
    """A message that is held."""

    position: int
    """The due time in milliseconds since the epoch, shifted by `SEQUENCE_BITS`, and a sequence number: unique in its
    partition."""
    origin: int
    """Any number that its owner gave it, such as an offset."""
    epoch: int
    """The ownership in which the message was put; 0 in a store that only one host has."""
    partition: int
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


def are_whole(table: bytes | memoryview, payload_bytes: int) -> bool:
    """Whether the sizes in rows fit each other, and this number of bytes of payloads."""
    rows = np.frombuffer(table, _SIZES_TYPE)
    keys, ends = rows["key"].astype(np.int64), rows["end"].astype(np.int64)
    least = np.where(keys == NO_KEY, 0, keys) + (rows["headers"] & np.uint32(NO_VALUE - 1))
    return bool((least <= np.diff(ends, prepend=0)).all()) and (not len(ends) or int(ends[-1]) <= payload_bytes)


def read_held(read: Read, table_at: int, payloads_at: int, index: int, leave: Leave | None = None) -> Held | None:
    """A message of a block; None if the block is shorter than it was.

    Args:
        table_at: Offset of the block's table.
        index: Number of the message in the block.
        leave: Says of which messages only the row is read.
    """
    row = read(_END_AND_ROW.size, table_at + index * ROW_BYTES - _END.size)
    if len(row) < _END_AND_ROW.size:
        return None
    fields = _END_AND_ROW.unpack(row)
    if leave is not None and leave(fields[4]):
        return _unread(fields)
    begin = fields[0] if index else 0
    size = fields[-1] - begin
    payload = read(size, payloads_at + begin)
    return _held(fields, payload) if len(payload) == size else None


def read_front(read: Read, table_at: int, payloads_at: int, index: int) -> Held | None:
    """The same without the value."""
    row = read(_END_AND_ROW.size, table_at + index * ROW_BYTES - _END.size)
    fields = _END_AND_ROW.unpack(row)
    key_bytes, header_bytes = fields[-3:-1]
    size = (0 if key_bytes == NO_KEY else key_bytes) + (header_bytes & ~NO_VALUE)
    payload = read(size, payloads_at + (fields[0] if index else 0))
    return _held(fields, payload) if len(payload) == size else None


def _unread(fields: tuple[Any, ...]) -> Unread:
    _, position, origin, epoch, tags, _, _, partition, *_ = fields
    return Unread(position, origin, epoch, partition, None, tags, None, b"", None)


def _held(fields: tuple[Any, ...], payload: bytes) -> Held:
    _, position, origin, epoch, tags, low, high, partition, key_bytes, header_bytes, _ = fields
    headers_at = 0 if key_bytes == NO_KEY else key_bytes
    value_at = headers_at + (header_bytes & ~NO_VALUE)
    stamp = high << 32 | low
    # Not by the class itself, which takes twice as long.
    return tuple.__new__(Held, (
        position, origin, epoch, partition,
        None if stamp == NO_TIMESTAMP else stamp,
        tags,
        None if key_bytes == NO_KEY else payload[:headers_at],
        payload[headers_at:value_at],
        None if header_bytes & NO_VALUE else payload[value_at:],
    ))  # fmt: skip


class Block:
    """Messages gathered for one append; only their table and payloads are in memory."""

    __slots__ = ("_keyed", "_keys", "payloads", "table")

    def __init__(self) -> None:
        self._keys, self._keyed = array("Q"), 0
        """Keys of the first messages, and how many these are; made when they are asked for."""
        self.table = bytearray()
        """Rows whose ends count from the beginning of `payloads`."""
        self.payloads = bytearray()

    def __len__(self) -> int:
        return len(self.table) // ROW_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of table and payloads."""
        return len(self.table) + len(self.payloads)

    def add_row(self, row: bytes, payload: bytes | memoryview) -> None:
        """Add a message with the row that it had in another block."""
        self.payloads += payload
        self.table += row[: -_END.size]
        self.table += _END.pack(len(self.payloads))

    def keys(self) -> Keys:
        """The keys of the messages that have names, see `names`."""
        at = _END.unpack_from(self.table, self._keyed * ROW_BYTES - _END.size)[0] if self._keyed else 0
        hit, ends = self.payloads.find(_NAME, at), list[int]()
        while hit >= 0:
            ends = ends or np.frombuffer(self.table, ROW_TYPE)["end"].tolist()
            row = bisect_right(ends, hit)
            self._add_key(row, ends[row - 1] if row else 0)
            hit = self.payloads.find(_NAME, ends[row])
        self._keyed = len(self)
        return np.array(self._keys, np.uint64)

    def _add_key(self, row: int, begin: int) -> None:
        """Add the key of a message, whose payload begins there, if it has a name."""
        *_, partition, key_bytes, header_bytes, _ = ROW.unpack_from(self.table, row * ROW_BYTES)
        headers_at = begin if key_bytes == NO_KEY else begin + key_bytes
        headers = bytes(self.payloads[headers_at : headers_at + (header_bytes & ~NO_VALUE)])
        if _NAME in headers and (name := name_in(unpack_headers(headers))) is not None:
            self._keys.append(key_of(partition, name, row))

    def read(self, index: int, leave: Leave | None = None) -> Held:
        """The message with this number in the block; see `read_held`."""
        row_at = index * ROW_BYTES
        before = self.table[row_at - _END.size : row_at] if index else bytes(_END.size)
        fields = _END_AND_ROW.unpack(before + self.table[row_at : row_at + ROW_BYTES])
        if leave is not None and leave(fields[4]):
            return _unread(fields)
        return _held(fields, bytes(self.payloads[fields[0] : fields[-1]]))

    def encoded(self, first: int, sequence: int, salt: int) -> bytes:
        """The block in its byte form.

        Args:
            first: Number of its first message in the hour.
            sequence: The hour's sequence number after its last message.
        """
        keys = encoded(self.keys())
        crcs = zlib.crc32(self.table, salt), zlib.crc32(keys, zlib.crc32(self.payloads, salt))
        head = _HEAD.pack(MAGIC, 0, *crcs, len(self), len(self.payloads) + len(keys), first, sequence)[8:]
        crc = zlib.crc32(head, salt).to_bytes(4, "little")
        return b"".join([_MAGIC_BYTES, crc, head, self.table, self.payloads, keys])


class Found(NamedTuple):
    """A block in a file; blocks are in the order of their first messages."""

    first: int
    at: int
    messages: int
    payload_bytes: int
    sequence: int
    salt: int
    table_crc: int = 0
    payload_crc: int = 0

    @property
    def table_at(self) -> int:
        """Offset of the table."""
        return self.at + HEAD_BYTES

    @property
    def payloads_at(self) -> int:
        """Offset of the payloads."""
        return self.table_at + self.messages * ROW_BYTES

    @property
    def end(self) -> int:
        """Offset behind the block."""
        return self.payloads_at + self.payload_bytes

    def table(self, read: Read) -> Table | None:
        """The table; None if it is damaged."""
        table = read(self.messages * ROW_BYTES, self.table_at)
        is_sound = zlib.crc32(table, self.salt) == self.table_crc and are_whole(table, self.payload_bytes)
        return np.frombuffer(table, ROW_TYPE) if is_sound else None

    def keys(self, read: Read) -> Keys:
        """The keys of the messages that have names, with numbers that count in the block."""
        raw = read(_END.size, self.payloads_at - _END.size)
        end = _END.unpack(raw)[0] if len(raw) == _END.size else self.payload_bytes
        return decoded(read(self.payload_bytes - end, self.payloads_at + end) if end < self.payload_bytes else b"")

    def is_sound(self, read: Read) -> bool:
        """Whether table and payloads are as they were written."""
        return self.content(read) is not None

    def content(self, read: Read) -> tuple[bytes, memoryview] | None:
        """The bytes of the table and of the payloads; None if they are damaged."""
        body = memoryview(read(self.end - self.table_at, self.table_at))
        border = self.messages * ROW_BYTES
        table, payloads = body[:border], body[border:]
        are_as_written = (zlib.crc32(table, self.salt), zlib.crc32(payloads, self.salt)) == (
            self.table_crc, self.payload_crc,
        )  # fmt: skip
        return (bytes(table), payloads) if are_as_written and are_whole(table, self.payload_bytes) else None


def find(read: Read, size: int, salt: int, at: int = 0) -> Iterator[Found]:
    """The blocks of a file of this size, from an offset on.

    Heads have checksums of their own, so that a damaged block hides no other. A block that is cut off is left out.
    """
    while at < size:
        block = block_at(read, at, size, salt)
        if block is not None:
            yield block
        at = block.end if block is not None else _next_magic(read, at + 1, size)


def block_at(read: Read, at: int, size: int, salt: int) -> Found | None:
    """The block at an offset of a file of this size and salt; None if it is damaged or cut off."""
    head = read(HEAD_BYTES, at)
    if len(head) < HEAD_BYTES:
        return None
    magic, crc, table_crc, payload_crc, messages, payload_bytes, first, sequence = _HEAD.unpack(head)
    if magic != MAGIC or zlib.crc32(head[8:], salt) != crc:
        return None
    block = Found(first, at, messages, payload_bytes, sequence, salt, table_crc, payload_crc)
    return block if block.end <= size else None


def _next_magic(read: Read, at: int, size: int) -> int:
    step = 1 << 20
    while at < size:
        index = read(step + len(_MAGIC_BYTES) - 1, at).find(_MAGIC_BYTES)
        if index >= 0:
            return at + index
        at += step
    return size
