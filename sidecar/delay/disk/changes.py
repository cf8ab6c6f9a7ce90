"""The changes between two writes of a store's log, as one record. Opens no file."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np

from sidecar.delay.disk.blocks import NO_KEY, NO_TIMESTAMP, NO_VALUE, ROW, ROW_BYTES, ROW_TYPE, Held, are_whole
from sidecar.delay.disk.wheel import Positions

PlacedRow = tuple[int, int, int, int, bytes, bytes | None, bytes, bytes | None]
"""Position, origin, epoch, timestamp or `NO_TIMESTAMP`, entry of the tags, key, packed headers, value."""
_SIZES = struct.Struct("<II")
"""Number of messages that were put, and bytes of their payloads."""


def placed(held: Held, position: int) -> PlacedRow:
    """A message at another position."""
    stamp = NO_TIMESTAMP if held.timestamp_ms is None else held.timestamp_ms
    return position, held.origin, held.epoch, stamp, held.tags, held.key, held.headers, held.value


class Changes:
    """Messages that were put, and positions of messages that were settled or cancelled."""

    def __init__(self) -> None:
        self.ended = array("Q")
        """The positions."""
        self._table, self._payloads, self._sizes = bytearray(), bytearray(), array("I")

    def __bool__(self) -> bool:
        return bool(self.ended or self._table)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return len(self._table) + len(self._payloads) + 8 * len(self.ended)

    def add_row(self, row: bytes, payload: bytes) -> None:
        """Add a message that was put, with its row in a block."""
        self._table += row
        self._payloads += payload
        self._sizes.append(len(payload))

    def encoded(self) -> bytes:
        """The record."""
        table = bytearray(self._table)
        np.frombuffer(table, ROW_TYPE)["end"] = np.cumsum(self._sizes)
        head = _SIZES.pack(len(self._sizes), len(self._payloads))
        return b"".join([head, table, self._payloads, self.ended.tobytes()])


class LogEntry(NamedTuple):
    """A record that was read."""

    table: bytes
    """Rows whose ends count from the beginning of `payloads`."""
    payloads: memoryview
    ended: Positions

    @classmethod
    def decoded(cls, body: memoryview) -> Self:
        """The record that was encoded.

        Raises:
            ValueError: It is something else.
        """
        if len(body) < _SIZES.size:
            raise ValueError("messages of a record are cut off")
        messages, payload_bytes = _SIZES.unpack_from(body)
        payloads_at = _SIZES.size + messages * ROW_BYTES
        ended_at = payloads_at + payload_bytes
        if ended_at > len(body):
            raise ValueError("messages of a record are cut off")
        table, payloads = bytes(body[_SIZES.size : payloads_at]), body[payloads_at:ended_at]
        if not are_whole(table, payload_bytes):
            raise ValueError("messages of a record have sizes that do not fit")
        return cls(table, payloads, np.frombuffer(body[ended_at:], np.uint64))

    @classmethod
    def of(cls, partition: int, rows: Iterable[PlacedRow]) -> Self:
        """Messages of a partition that have positions.

        Raises:
            ValueError: A number is out of its column's range.
        """
        try:
            return cls._of(partition, rows)
        except struct.error as error:
            raise ValueError(f"a number of a message is out of range: {error}") from error

    @classmethod
    def _of(cls, partition: int, rows: Iterable[PlacedRow]) -> Self:
        table, payloads, end = list[bytes](), list[bytes](), 0
        for position, origin, epoch, stamp, tags, key, headers, value in rows:
            payload = (headers if key is None else key + headers) + (value or b"")
            end += len(payload)
            row = ROW.pack(
                position, origin, epoch, tags, stamp & 0xFFFFFFFF, stamp >> 32, partition,
                NO_KEY if key is None else len(key), len(headers) if value is not None else len(headers) | NO_VALUE,
                end,
            )  # fmt: skip
            table.append(row)
            payloads.append(payload)
        return cls(b"".join(table), memoryview(b"".join(payloads)), np.empty(0, np.uint64))

    def encoded(self) -> bytes:
        """The record."""
        head = _SIZES.pack(len(self.table) // ROW_BYTES, len(self.payloads))
        return b"".join([head, self.table, self.payloads, self.ended.tobytes()])


class Kind(IntEnum):
    """Kind of a section of a record."""

    PUT = 1
    NAME = 2
    KEEP = 3
    CANCEL = 4
    FORGET = 5
    ADOPT = 6
    LEARN = 7
    DROP = 8
    REMOVE = 9


_SECTION = struct.Struct("<BI")
"""Kind, and bytes of the body."""


class Record:
    """Changes of several partitions in their order."""

    def __init__(self) -> None:
        self._sections: list[bytes] = []
        self._nbytes = 0
        self.puts = Changes()
        """The messages that were put last."""

    def __bool__(self) -> bool:
        return bool(self._sections or self.puts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._nbytes + self.puts.nbytes

    def add_section(self, kind: Kind, body: bytes) -> None:
        """Add a change other than a message."""
        self._end_puts()
        self._add(kind, body)

    def _end_puts(self) -> None:
        if self.puts:
            self._add(Kind.PUT, self.puts.encoded())
            self.puts = Changes()

    def _add(self, kind: Kind, body: bytes) -> None:
        self._sections += [_SECTION.pack(kind, len(body)), body]
        self._nbytes += _SECTION.size + len(body)

    def encoded(self) -> bytes:
        """The record in its byte form."""
        self._end_puts()
        return b"".join(self._sections)


def sections(body: memoryview) -> Iterator[tuple[Kind, memoryview]]:
    """The sections of a record.

    Raises:
        ValueError: It is something else, or has a kind of a later version.
    """
    at = 0
    while at < len(body):
        if at + _SECTION.size > len(body):
            raise ValueError("a record is cut off")
        kind, nbytes = _SECTION.unpack_from(body, at)
        at += _SECTION.size + nbytes
        if at > len(body):
            raise ValueError("a record is cut off")
        yield Kind(kind), body[at - nbytes : at]
