"""Rows of the format `envelope` for stored messages of RocketMQ, made in C of columns. Any thread may use it."""

from __future__ import annotations

import ctypes as ct
from array import array
from collections.abc import Sequence

from sidecar_fastlane import Library

_P, _I64 = ct.c_void_p, ct.c_int64


class _Column(ct.Structure):
    _fields_ = [("data", _P), ("len", _P)]


_NO_MEMORY = -2


def stored_rows(
    library: Library,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    hosts: Sequence[bytes],
    tags: Sequence[bytes],
    numbers: array[int],
    head: bytes,
    broker: bytes,
) -> bytes | None:
    """The rows, joined by line feeds; None if Python must make them, because of what is rare.

    Args:
        library: The compiled part.
        bodies: The body of each message.
        properties: In the stored form.
        hosts: Address and port of the broker that stored it.
        tags: The members `tag` and `tags`, with a comma in front.
        numbers: Of each message four: offset, time of production, commit-log offset, times handed back.
        head: The row up to its offset.
        broker: The member `broker`, with a comma in front.

    Raises:
        MemoryError: There is no memory for them.
    """
    kept = [_column(values) for values in (bodies, properties, hosts, tags)]
    at, calls = _P(), library.c
    calls.fl_stored_rows.restype, calls.fl_stored_free.argtypes = _I64, (_P,)
    size = calls.fl_stored_rows(
        len(bodies), *(column for column, _, _ in kept), _P(numbers.buffer_info()[0]), head, _I64(len(head)), broker,
        _I64(len(broker)), ct.byref(at),
    )  # fmt: skip
    if size == _NO_MEMORY:
        raise MemoryError
    if size < 0:
        return None
    try:
        return ct.string_at(at, size)
    finally:
        calls.fl_stored_free(at)


def _column(values: Sequence[bytes]) -> tuple[_Column, object, object]:
    """The column, and what must live as long as it."""
    data, lengths = (ct.c_char_p * len(values))(*values), array("q", map(len, values))
    # `cast` makes a cycle, which keeps the values until the next collection.
    return _Column(ct.addressof(data), lengths.buffer_info()[0]), data, lengths
