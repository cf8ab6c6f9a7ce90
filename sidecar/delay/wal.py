"""Looks into a log of RocksDB: whether a write follows damage in it, and how it can be read behind that.

A log has blocks of 32 KiB. In a block are records, each with a head: the masked CRC-32C of kind and body, the bytes of
the body, the kind. The first record of a write begins with the number of its first change, and how many it has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_HEAD = struct.Struct("<IHB")
_WRITE = struct.Struct("<QI")
"""The number of a write's first change, and how many it has: none in a record of RocksDB's own."""
_BLOCK_BYTES = 1 << 15
_FULL, _FIRST, _LAST = 1, 2, 4
"""Kinds: a whole write; the first and the last record of one; 3 is one between them."""
_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8
_FAR = 1 << 40
"""Numbers that are higher by so much are none."""


def has_write_behind(log: bytes, last: int) -> bool:
    """Whether a log has a whole write behind the change with this number."""
    return any(is_whole for _, is_whole in _writes_behind(log, last))


def broken_off(log: bytes, last: int) -> list[int]:
    """Where writes begin, behind the change with this number, whose first record is sound and a later one is not."""
    return [at for at, is_whole in _writes_behind(log, last) if not is_whole]


def spoil(path: Path, places: Iterable[int]) -> None:
    """Damage the records of a log that begin at these places.

    RocksDB leaves out a write whose first record is damaged. If a later one is, it refuses the log.
    """
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))


def _writes_behind(log: bytes, last: int) -> Iterator[tuple[int, bool]]:
    """Where writes behind a change begin, and whether they are whole."""
    begun: int | None = None
    for block in range(0, len(log), _BLOCK_BYTES):
        at, end = block, min(block + _BLOCK_BYTES, len(log))
        while at + _HEAD.size <= end:
            crc, size, kind = _HEAD.unpack_from(log, at)
            behind = at + _HEAD.size + size
            is_first = kind in {_FULL, _FIRST}
            if not _FULL <= kind <= _LAST or behind > end or (is_first and size < _WRITE.size):
                if begun is not None:
                    yield begun, False
                    begun = None
                at += 1  # damage: the next head may be anywhere
                continue
            if is_first:
                if begun is not None:
                    yield begun, False
                number, changes = _WRITE.unpack_from(log, at + _HEAD.size)
                is_behind = changes and last < number < last + _FAR
                begun = at if is_behind and crc == _masked(log[at + _HEAD.size - 1 : behind]) else None
            elif begun is not None and crc != _masked(log[at + _HEAD.size - 1 : behind]):
                yield begun, False
                begun = None
            if begun is not None and kind in {_FULL, _LAST}:
                yield begun, True
                begun = None
            at = behind
    if begun is not None:
        yield begun, False


def _table() -> list[int]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return entries


_TABLE = _table()


def _masked(raw: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + _MASK & 0xFFFFFFFF
