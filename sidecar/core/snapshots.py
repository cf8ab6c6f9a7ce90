"""Stored bytes: the frame around a snapshot, and what is read piece by piece. Knows no file.

Whatever another process or version wrote there, the only error is a ValueError.
"""

from __future__ import annotations

import struct

import xxhash
from pyroaring import BitMap64

MAGIC = b"sidecar\0"
_HEAD = struct.Struct("<8s16sBQ")
"""Magic, kind, version, xxh3 of kind, version and payload."""


def seal(kind: str, version: int, payload: bytes) -> bytes:
    """Add a head with kind, version and checksum to the payload, for `unseal`.

    Args:
        kind: At most 16 bytes.
        version: Of the payload's form, up to 255.
    """
    return _HEAD.pack(MAGIC, kind.encode(), version, _checksum(kind, version, payload)) + payload


def unseal(kind: str, version: int, blob: bytes) -> bytes:
    """The payload that `seal` was given.

    Raises:
        ValueError: The bytes are not a snapshot, are of another kind or version, or are damaged.
    """
    if len(blob) < _HEAD.size or not blob.startswith(MAGIC):
        raise ValueError("these bytes are no snapshot")
    _, name, version_found, checksum = _HEAD.unpack_from(blob)
    payload = blob[_HEAD.size :]
    if name != kind.encode().ljust(16, b"\0") or version_found != version:
        raise ValueError(f"this is no snapshot of {kind} in version {version}")
    if checksum != _checksum(kind, version, payload):
        raise ValueError(f"this snapshot of {kind} is damaged: its checksum is wrong")
    return payload


def _checksum(kind: str, version: int, payload: bytes) -> int:
    digest = xxhash.xxh3_64(payload)
    digest.update(f"{kind} {version}".encode())
    return int(digest.intdigest())


class Stored:
    """Bytes and the place up to which they are read. Counts in them are bounded, since each piece takes some bytes."""

    def __init__(self, raw: bytes, at: int = 0) -> None:
        self._raw, self.at = raw, at

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._raw) - self.at

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: There are fewer.
        """
        if count > self.left:
            raise ValueError(f"cut off: {count} bytes are missing at {self.at}, and {self.left} are left")
        self.at += count
        return self._raw[self.at - count : self.at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """The next numbers.

        Raises:
            ValueError: There are fewer bytes.
        """
        return form.unpack(self.take(form.size))


def bitmap_of(raw: bytes) -> BitMap64:
    """A serialized bitmap.

    Raises:
        ValueError: It is something else.
    """
    if not raw:
        raise ValueError("an empty bitmap has bytes, too")  # the library raises an IndexError
    return BitMap64.deserialize(raw)
