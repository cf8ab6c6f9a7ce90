"""How version 1 reads the commit metadata, frozen: in a rolling upgrade its members read what those of today write.

Not to be changed with the code, and to import nothing of it.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEAD, _IDENTITY = struct.Struct(">BBI"), struct.Struct(">Q4s4s4s")


class First(NamedTuple):
    """All that version 1 finds."""

    incarnation: int
    group: bytes
    topic: bytes
    rules: bytes
    watermark: int
    seen: int
    lanes: dict[int, tuple[int | None, tuple[tuple[int, int], ...]]]
    joint_from: int | None
    joints: tuple[tuple[int, int, frozenset[int]], ...]


def digest(*parts: str) -> bytes:
    """4 bytes that stand for cluster and group, or for a topic's id."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).digest()


def read_first(text: str) -> First:
    """Read as version 1 did.

    Raises:
        ValueError: It would have taken this for another program's.
    """
    raw = base64.b64decode(text, validate=True)
    magic, version, crc = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size :]
    if (magic, version) != (0xB5, 1) or zlib.crc32(body) != crc:
        raise ValueError("foreign")
    reader = _Reader(body[_IDENTITY.size :])
    base, ahead, joint, joints, lanes = (reader.number() for _ in range(5))
    found_joints = []
    for _ in range(joints):
        first, length, excluded = (reader.number() for _ in range(3))
        found_joints.append((base + first, base + first + length, frozenset(reader.keys(excluded))))
    found_lanes = {}
    for _ in range(lanes):
        (key,) = reader.keys(1)
        opened, count = reader.number(), reader.number()
        intents, at = [], base
        for _ in range(count):
            first = at + reader.number()
            at = first + reader.number()
            intents.append((first, at))
        found_lanes[key] = base + opened - 1 if opened else None, tuple(intents)
    joint_from = base + joint - 1 if joint else None
    incarnation, group, topic, rules = _IDENTITY.unpack_from(body)
    return First(incarnation, group, topic, rules, base, base + ahead, found_lanes, joint_from, tuple(found_joints))


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self._raw[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return number
            shift += 7

    def keys(self, count: int) -> Iterator[int]:
        for _ in range(count):
            yield int.from_bytes(self._raw[self._at : self._at + 6], "big")
            self._at += 6
