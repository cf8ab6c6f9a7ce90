"""Acknowledgements of consumers: one file each, which retention obeys. Removes nothing itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from sidecar import files
from sidecar.storage import Root, Storage, storage_of
from sidecar.zone.layout import ACK

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def is_name(consumer: str) -> bool:
    """Whether this is a valid name of a consumer."""
    return _NAME.fullmatch(consumer) is not None


def acknowledge(root: Root, consumer: str, read: Mapping[str, int]) -> None:
    """Record that a consumer has read, and never needs again, all entries up to these.

    A consumer registers with an empty mapping before its first read: from then on nothing is removed that it has not
    acknowledged. It never goes back: a lower number for a writer is ignored.

    Args:
        consumer: 1 to 128 letters, digits, ``.``, ``_`` or ``-``; two queries never share one.
        read: Writer to the last sequence number read.

    Raises:
        ValueError: The name is invalid.
        OSError: It cannot be written.
    """
    if not is_name(consumer):
        raise ValueError(
            f"{consumer!r} is not a valid consumer name: use letters, digits, dots, underscores and dashes"
        )
    zone, name = storage_of(root), f"{ACK}/{consumer}.json"
    known = _read(zone, name) or {}
    zone.put(name, orjson.dumps({**known, **{writer: max(seq, known.get(writer, -1)) for writer, seq in read.items()}}))


def acknowledged(root: Root) -> dict[str, dict[str, int]]:
    """The last sequence number read, by consumer and writer; a consumer whose file is damaged has read nothing."""
    zone = storage_of(root)
    found = (name.rpartition("/")[2] for name in zone.files(ACK))
    names = sorted(name for name in found if name.endswith(".json") and name[0] != files.HIDDEN)
    return {name.removesuffix(".json"): _read(zone, f"{ACK}/{name}") or {} for name in names}


def _read(zone: Storage, name: str) -> dict[str, int] | None:
    data = zone.read(name)
    try:
        acks = orjson.loads(data or b"")
    except ValueError:
        return None
    whole = isinstance(acks, dict) and all(type(seq) is int for seq in acks.values())
    return acks if whole else None
