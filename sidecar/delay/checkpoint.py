"""What a checkpoint knows of the files of hours, in its byte form. Opens no file."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pyroaring import BitMap

from sidecar.delay.hour import Known

_HOUR = struct.Struct("<QQIII")
"""Hour, bytes, messages, sequence number, bytes of the settled numbers."""


def pack_hours(known: Mapping[int, Known]) -> bytes:
    """The hours in the form that `unpack_hours` reads."""
    pieces = []
    for hour, file in known.items():
        settled = file.settled.serialize()
        pieces += [_HOUR.pack(hour, file.size, file.messages, file.sequence, len(settled)), settled]
    return b"".join(pieces)


def unpack_hours(raw: bytes, at: int, hours: int) -> tuple[dict[int, Known], int]:
    """So many hours from an offset on, and the offset behind them."""
    known = {}
    for _ in range(hours):
        hour, size, count, sequence, settled_bytes = _HOUR.unpack_from(raw, at)
        at += _HOUR.size
        known[hour] = Known(size, count, sequence, BitMap.deserialize(raw[at : at + settled_bytes]))
        at += settled_bytes
    return known, at
