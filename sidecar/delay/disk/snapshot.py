"""Checkpoints in their byte form: of a store with several partitions, and the hours of any store. Opens no file."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from pyroaring import BitMap64

from sidecar.core.snapshots import Stored, bitmap_of, seal, small_bitmap_of, unseal
from sidecar.delay.disk.hour import Known

_KIND, _VERSION = "PartitionStore", 2
_TOTALS = struct.Struct("<QQQII")
"""Id of the store, number of the first log, mark, partitions, hours."""
_PARTITION = struct.Struct("<QQIII")
"""Watermark, floor, bytes of name, state and known origins."""
_HOUR = struct.Struct("<QQIIII")
"""Hour, bytes, messages, sequence number, salt, bytes of the settled numbers."""
_NO_STATE = (1 << 32) - 1
_LEFT = struct.Struct("<QI")
"""Hour and number of partitions that have messages there; partition numbers and counts follow."""


class StoredPartition(NamedTuple):
    """A partition in a checkpoint."""

    name: bytes
    state: bytes | None
    watermark: int
    floor: int
    known: BitMap64


class Snapshot(NamedTuple):
    """A store's knowledge when a log began: a start repeats that log and all later ones."""

    id: int
    log: int
    """The log's number."""
    mark: int
    partitions: list[StoredPartition]
    hours: dict[int, Known]
    left: dict[int, dict[int, int]]
    """By hour and partition, the number of messages that are not ended."""

    def encoded(self) -> bytes:
        """The checkpoint."""
        pieces = [_TOTALS.pack(self.id, self.log, self.mark, len(self.partitions), len(self.hours))]
        for name, state, watermark, floor, known in self.partitions:
            origins = known.serialize()
            state_bytes = _NO_STATE if state is None else len(state)
            head = _PARTITION.pack(watermark, floor, len(name), state_bytes, len(origins))
            pieces += [head, name, state or b"", origins]
        pieces += [pack_hours(self.hours), *_pack_left(self.left)]
        return seal(_KIND, _VERSION, b"".join(pieces))

    @classmethod
    def decoded(cls, blob: bytes) -> Self:
        """The checkpoint that was encoded.

        Raises:
            ValueError: It is damaged, or something else.
        """
        stored, partitions = Stored(unseal(_KIND, _VERSION, blob)), []
        store_id, log, mark, partition_count, hour_count = stored.unpack(_TOTALS)
        for _ in range(partition_count):
            watermark, floor, name_bytes, state_bytes, origin_bytes = stored.unpack(_PARTITION)
            name = stored.take(name_bytes)
            state = None if state_bytes == _NO_STATE else stored.take(state_bytes)
            partitions.append(StoredPartition(name, state, watermark, floor, bitmap_of(stored.take(origin_bytes))))
        hours = unpack_hours(stored, hour_count)
        return cls(store_id, log, mark, partitions, hours, _unpack_left(stored))


def _pack_left(left: Mapping[int, Mapping[int, int]]) -> list[bytes]:
    pieces = []
    for hour, of_hour in left.items():
        numbers, counts = np.fromiter(of_hour, "<u2", len(of_hour)), np.fromiter(of_hour.values(), "<u4", len(of_hour))
        pieces += [_LEFT.pack(hour, len(of_hour)), numbers.tobytes(), counts.tobytes()]
    return pieces


def _unpack_left(stored: Stored) -> dict[int, dict[int, int]]:
    left = {}
    while stored.left:
        hour, count = stored.unpack(_LEFT)
        numbers = np.frombuffer(stored.take(2 * count), "<u2").tolist()
        counts = np.frombuffer(stored.take(4 * count), "<u4").tolist()
        left[hour] = dict(zip(numbers, counts, strict=True))
    return left


def pack_hours(known: Mapping[int, Known]) -> bytes:
    """The hours in the form that `unpack_hours` reads."""
    pieces = []
    for hour, file in known.items():
        settled = file.settled.serialize()
        pieces += [_HOUR.pack(hour, file.size, file.messages, file.sequence, file.salt, len(settled)), settled]
    return b"".join(pieces)


def unpack_hours(stored: Stored, hours: int) -> dict[int, Known]:
    """The next hours.

    Raises:
        ValueError: They are something else.
    """
    known = {}
    for _ in range(hours):
        hour, size, count, sequence, salt, settled_bytes = stored.unpack(_HOUR)
        known[hour] = Known(size, count, sequence, small_bitmap_of(stored.take(settled_bytes)), salt)
    return known
