"""Acknowledgements of consumers: one file each, which retention obeys. Removes nothing itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import orjson

from sidecar import files
from sidecar.zone.layout import ack_folder

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def is_name(consumer: str) -> bool:
    """Whether this is a valid name of a consumer."""
    return _NAME.fullmatch(consumer) is not None


def acknowledge(root: Path | str, consumer: str, read: Mapping[str, int]) -> None:
    """Record that a consumer has read, and never needs again, all entries up to these.

    A consumer registers with an empty mapping before its first read: from then on nothing is removed that it has not
    acknowledged. It never goes back: a lower number for a writer is ignored.

    Args:
        root: The zone.
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
    path = ack_folder(Path(root)) / f"{consumer}.json"
    known = _read(path) or {}
    files.make_folder(path.parent)
    files.put(
        path, orjson.dumps({**known, **{writer: max(seq, known.get(writer, -1)) for writer, seq in read.items()}})
    )


def acknowledged(root: Path | str) -> dict[str, dict[str, int]]:
    """Consumer to writer to the last sequence number read; a consumer whose file is damaged has read nothing.

    Raises:
        OSError: An existing file cannot be read.
    """
    folder = ack_folder(Path(root))
    if not folder.is_dir():
        return {}
    return {path.stem: _read(path) or {} for path in sorted(folder.glob("[!.]*.json"))}


def _read(path: Path) -> dict[str, int] | None:
    data = files.read_from(path)
    try:
        acks = orjson.loads(data or b"")
    except ValueError:
        return None
    whole = isinstance(acks, dict) and all(type(seq) is int for seq in acks.values())
    return acks if whole else None
