"""Keys by which an hour's messages are found by their names, without reading the others. Opens no file.

A key is a checksum of partition and name, and the number of a message. The keys of a block lie behind its payloads,
where no message reaches, so a reader that does not know of them passes over them. A block without names has none.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""The checksum shifted by `_NUMBER_BITS`, and a number."""
_NUMBER_BITS = 32
_NUMBER = (1 << _NUMBER_BITS) - 1
_CRC_BYTES = 4
PIECE_MAX = 1 << 18
"""Keys that are sorted together, in a few milliseconds."""


def key_of(partition: int, name: bytes, number: int = 0) -> int:
    """The key of a message."""
    return zlib.crc32(name, partition) << _NUMBER_BITS | number


def keys_of(partition: int, names: Iterable[bytes]) -> Keys:
    """The sorted keys to look for."""
    return np.unique(np.array([key_of(partition, name) for name in names], np.uint64))


def encoded(keys: Keys) -> bytes:
    """Keys in their byte form; empty if there are none."""
    raw = keys.astype("<u8").tobytes()
    return raw + zlib.crc32(raw).to_bytes(_CRC_BYTES, "little") if raw else b""


def decoded(raw: bytes) -> Keys:
    """The keys; none if they are damaged."""
    body = raw[:-_CRC_BYTES]
    is_sound = len(body) % 8 == 0 and zlib.crc32(body).to_bytes(_CRC_BYTES, "little") == raw[-_CRC_BYTES:]
    return np.frombuffer(body if is_sound else b"", "<u8").astype(np.uint64)


def matching(keys: Keys, wanted: Keys) -> list[int]:
    """The numbers of those keys, in any order, that are looked for."""
    if not len(keys):
        return []
    sums = keys & ~np.uint64(_NUMBER)
    places = np.minimum(wanted.searchsorted(sums), len(wanted) - 1)
    found: list[int] = (keys[wanted[places] == sums] & np.uint64(_NUMBER)).tolist()
    return found


class Names:
    """The keys of the blocks of an hour's file: 8 bytes of memory for each message with a name."""

    def __init__(self) -> None:
        self._pieces: list[Keys] = []
        """Each in order."""
        self._firsts, self._ats = array("Q"), array("Q")
        """Number of the first message, and offset, of each block that has names."""

    def add_keys(self, keys: Keys, first: int, at: int) -> None:
        """Add the keys of the next block.

        Args:
            keys: With numbers that count in the block.
            first: The number of its first message in the hour.
            at: Its offset in the file.
        """
        if not len(keys):
            return
        self._firsts.append(first)
        self._ats.append(at)
        self._pieces.append(np.sort(keys + np.uint64(first)))
        while len(self._pieces) > 1 and self._is_mergeable(len(self._pieces[-2]), len(self._pieces[-1])):
            last = self._pieces.pop()
            self._pieces[-1] = np.sort(np.concatenate([self._pieces[-1], last]))

    @staticmethod
    def _is_mergeable(before: int, last: int) -> bool:
        return before <= 2 * last and before + last <= PIECE_MAX

    def block_at(self, number: int) -> int:
        """The offset of the block that has a message with a name."""
        return self._ats[bisect_right(self._firsts, number) - 1]

    def find(self, wanted: Keys) -> Iterator[list[int]]:
        """The numbers of the messages whose keys are wanted; messages added later are left out."""
        return map(partial(_matching_in_order, wanted), list(self._pieces))


def _matching_in_order(wanted: Keys, keys: Keys) -> list[int]:
    firsts, ends = keys.searchsorted(wanted), keys.searchsorted(wanted | np.uint64(_NUMBER), "right")
    found: list[int] = []
    for place in np.flatnonzero(firsts < ends).tolist():
        found += (keys[firsts[place] : ends[place]] & np.uint64(_NUMBER)).tolist()
    return sorted(found)
