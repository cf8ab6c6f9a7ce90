"""Headers of a held message as bytes, and RocketMQ's attributes. Knows nothing else of the message."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sidecar.core.records import Details
from sidecar.errors import StateError

Header = tuple[str, bytes | None]
_SIZES = struct.Struct("<II")
"""Bytes of the name and of the value."""
_NO_VALUE = (1 << 32) - 1
_ATTACHED = (1 << 32) - 1
"""In place of the size of a name, which cannot be so large: attributes come first; their size in bytes follows."""
_OTHER_BYTES = (ValueError, struct.error)
_ID, _ORIGIN, _KEY = "", "origin", "key"


class Attached(NamedTuple):
    """Attributes that RocketMQ attaches to a message."""

    details: Details
    """Without a place and an identity: only messages with a lasting place are held."""
    origin: bytes
    """Broker and commit-log offset where it was first stored, see `core.messages.fields.OriginColumns`."""


def pack_headers(headers: Iterable[Header], attached: Attached | None = None) -> bytes:
    """The headers in the form that `unpack_headers` reads, and attributes in the form that `unpack_attached` reads."""
    pieces = []
    if attached is not None:
        packed = pack_headers(_attached_as_headers(attached))
        pieces += [_SIZES.pack(_ATTACHED, len(packed)), packed]
    for name, value in headers:
        raw = name.encode("utf-8", "surrogatepass")
        pieces += [_SIZES.pack(len(raw), _NO_VALUE if value is None else len(value)), raw, value or b""]
    return b"".join(pieces)


def _attached_as_headers(attached: Attached) -> Iterator[Header]:
    details, origin = attached
    own = bytes.fromhex(details.offset_message_id)
    yield _ID, details.message_id
    yield str(details.reconsume_times), own
    if origin != own:
        yield _ORIGIN, origin
    for key in details.keys:
        yield _KEY, key


def unpack_headers(raw: bytes) -> tuple[Header, ...]:
    """The headers.

    Raises:
        StateError: The bytes are something else.
    """
    try:
        return tuple(_unpacked(raw, _attached_end(raw), len(raw))) if raw else ()
    except _OTHER_BYTES as error:
        raise _unreadable(error) from error


def unpack_attached(raw: bytes) -> Attached | None:
    """The attributes that RocketMQ attached to the message; None for other brokers.

    Raises:
        StateError: The bytes are something else.
    """
    try:
        end = _attached_end(raw)
        return _attached(_unpacked(raw, _SIZES.size, end)) if end else None
    except _OTHER_BYTES as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> StateError:
    return StateError(
        f"the headers of a held message cannot be read: {error}", hint="use the version that wrote it, or a later one"
    )


def _attached(headers: Iterable[Header]) -> Attached:
    (_, message_id), (times, own), *rest = headers
    if own is None:
        raise ValueError("a message without its place")
    origin = next((value for name, value in rest if name == _ORIGIN and value is not None), own)
    keys = [value for name, value in rest if name == _KEY and value is not None]
    return Attached(Details(message_id, own.hex().upper(), keys, int(times)), origin)


def _attached_end(raw: bytes) -> int:
    """Where the headers begin."""
    if len(raw) < _SIZES.size:
        return 0
    mark, nbytes = _SIZES.unpack_from(raw)
    if mark != _ATTACHED:
        return 0
    if _SIZES.size + nbytes > len(raw):
        raise ValueError("headers that are cut off")
    return _SIZES.size + int(nbytes)


def _unpacked(raw: bytes, at: int, end: int) -> Iterator[Header]:
    while at < end:
        name_bytes, value_bytes = _SIZES.unpack_from(raw, at)
        value_at = at + _SIZES.size + name_bytes
        name = raw[at + _SIZES.size : value_at].decode("utf-8", "surrogatepass")
        at = value_at if value_bytes == _NO_VALUE else value_at + value_bytes
        if at > end:
            raise ValueError("headers that are cut off")
        yield name, None if value_bytes == _NO_VALUE else raw[value_at:at]
