"""The frame around a snapshot that a user keeps: its kind, its version, and a checksum. Knows no file."""

from __future__ import annotations

import struct

import xxhash

MAGIC = b"sidecar\0"
_HEAD = struct.Struct("<8s16sBQ")
"""Magic, kind, version, xxh3 of kind, version and payload."""


def seal(kind: str, version: int, payload: bytes) -> bytes:
    """Add a head with kind, version and checksum to the payload, for `unseal`.

    Args:
        kind: At most 16 bytes.
        version: Of the payload's form, up to 255.
        payload: Anything.
    """
    return _HEAD.pack(MAGIC, kind.encode(), version, _checksum(kind, version, payload)) + payload


def unseal(kind: str, version: int, blob: bytes) -> bytes:
    """The payload that `seal` was given.

    Raises:
        ValueError: The bytes are no snapshot, or of another kind or version, or they are damaged.
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
