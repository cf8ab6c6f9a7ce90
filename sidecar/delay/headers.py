"""Headers of a held message as bytes. Knows nothing else of the message."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

Header = tuple[str, bytes | None]
_SIZES = struct.Struct("<II")
"""Bytes of the name and of the value."""
_NO_VALUE = (1 << 32) - 1


def pack_headers(headers: Iterable[Header]) -> bytes:
    """The headers in the form that `unpack_headers` reads."""
    pieces = []
    for name, value in headers:
        raw = name.encode("utf-8", "surrogatepass")
        pieces += [_SIZES.pack(len(raw), _NO_VALUE if value is None else len(value)), raw, value or b""]
    return b"".join(pieces)


def unpack_headers(raw: bytes) -> tuple[Header, ...]:
    """The headers."""
    return tuple(_unpacked(raw)) if raw else ()


def _unpacked(raw: bytes) -> Iterator[Header]:
    at = 0
    while at < len(raw):
        name_bytes, value_bytes = _SIZES.unpack_from(raw, at)
        value_at = at + _SIZES.size + name_bytes
        name = raw[at + _SIZES.size : value_at].decode("utf-8", "surrogatepass")
        at = value_at if value_bytes == _NO_VALUE else value_at + value_bytes
        yield name, None if value_bytes == _NO_VALUE else raw[value_at:at]
