"""Checkpoints in their byte form: of a store with several partitions, and the hours of any store. Opens no file."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from pyroaring import BitMap, BitMap64

from sidecar.core.snapshots import seal, unseal
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


class Partition(NamedTuple):
    """What is kept of a partition."""

    name: bytes
    state: bytes | None
    watermark: int
    floor: int
    known: BitMap64


class Snapshot(NamedTuple):
    """What a store knew when a log began: a start repeats that log and all later ones."""

    id: int
    log: int
    """The log's number."""
    mark: int
    partitions: list[Partition]
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
        raw = unseal(_KIND, _VERSION, blob)
        store_id, log, mark, partition_count, hour_count = _TOTALS.unpack_from(raw)
        at, partitions = _TOTALS.size, []
        for _ in range(partition_count):
            watermark, floor, name_bytes, state_bytes, origin_bytes = _PARTITION.unpack_from(raw, at)
            state_at = at + _PARTITION.size + name_bytes
            origins_at = state_at + (0 if state_bytes == _NO_STATE else state_bytes)
            name, origins = raw[state_at - name_bytes : state_at], raw[origins_at : origins_at + origin_bytes]
            state = None if state_bytes == _NO_STATE else raw[state_at:origins_at]
            partitions.append(Partition(name, state, watermark, floor, BitMap64.deserialize(origins)))
            at = origins_at + origin_bytes
        hours, at = unpack_hours(raw, at, hour_count)
        return cls(store_id, log, mark, partitions, hours, _unpack_left(raw, at))


def _pack_left(left: Mapping[int, Mapping[int, int]]) -> list[bytes]:
    pieces = []
    for hour, of_hour in left.items():
        numbers, counts = np.fromiter(of_hour, "<u2", len(of_hour)), np.fromiter(of_hour.values(), "<u4", len(of_hour))
        pieces += [_LEFT.pack(hour, len(of_hour)), numbers.tobytes(), counts.tobytes()]
    return pieces


def _unpack_left(raw: bytes, at: int) -> dict[int, dict[int, int]]:
    left = {}
    while at < len(raw):
        hour, count = _LEFT.unpack_from(raw, at)
        at += _LEFT.size
        numbers = np.frombuffer(raw, "<u2", count, at).tolist()
        counts = np.frombuffer(raw, "<u4", count, at + 2 * count).tolist()
        left[hour] = dict(zip(numbers, counts, strict=True))
        at += 6 * count
    return left


def pack_hours(known: Mapping[int, Known]) -> bytes:
    """The hours in the form that `unpack_hours` reads."""
    pieces = []
    for hour, file in known.items():
        settled = file.settled.serialize()
        pieces += [_HOUR.pack(hour, file.size, file.messages, file.sequence, file.salt, len(settled)), settled]
    return b"".join(pieces)


def unpack_hours(raw: bytes, at: int, hours: int) -> tuple[dict[int, Known], int]:
    """So many hours from an offset on, and the offset behind them."""
    known = {}
    for _ in range(hours):
        hour, size, count, sequence, salt, settled_bytes = _HOUR.unpack_from(raw, at)
        at += _HOUR.size
        known[hour] = Known(size, count, sequence, BitMap.deserialize(raw[at : at + settled_bytes]), salt)
        at += settled_bytes
    return known, at
