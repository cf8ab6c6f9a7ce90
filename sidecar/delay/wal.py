"""Looks into a log of RocksDB: whether a write follows damage in it. Opens no file.

A log has blocks of 32 KiB. In a block are records, each with a head: the masked CRC-32C of kind and body, the bytes of
the body, the kind. The first record of a write begins with the number of its first change, and how many it has.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct("<IHB")
_WRITE = struct.Struct("<QI")
"""The number of a write's first change, and how many it has: none in a record of RocksDB's own."""
_BLOCK_BYTES = 1 << 15
_FULL, _FIRST, _LAST = 1, 2, 4
"""Kinds: a whole write; the first and the last record of one."""
_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8
_FAR = 1 << 40
"""Numbers that are higher by so much are none."""


def has_write_behind(log: bytes, last: int) -> bool:
    """Whether a log has a whole record of a write behind the change with this number."""
    for block in range(0, len(log), _BLOCK_BYTES):
        at, end = block, min(block + _BLOCK_BYTES, len(log))
        while at + _HEAD.size + _WRITE.size <= end:
            crc, size, kind = _HEAD.unpack_from(log, at)
            behind = at + _HEAD.size + size
            if not _FULL <= kind <= _LAST or behind > end or size < _WRITE.size:
                at += 1  # damage: the next head may be anywhere
                continue
            number, changes = _WRITE.unpack_from(log, at + _HEAD.size)
            if (
                changes
                and kind <= _FIRST
                and last < number < last + _FAR
                and crc == _masked(log[at + _HEAD.size - 1 : behind])
            ):
                return True
            at = behind
    return False


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
