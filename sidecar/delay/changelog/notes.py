"""Notes of what the local files have, in their byte form. Bytes in and out, no file and no broker.

A note says of an owned partition: a *bookmark* is in its changelog at an offset. The local files have all entries that
this owner appended before it, and none that it appended later. No other process appended between its claim and the
bookmark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from sidecar.core.snapshots import seal, unseal
from sidecar.delay.changelog.records import KeptState, RecordLineage

_KIND, _VERSION = "changelog notes", 1


class Note(NamedTuple):
    """The local files' content of a partition."""

    number: int
    """The partition's number in the files."""
    name: bytes
    store: int
    """The id of the changelog."""
    lineage: RecordLineage
    epoch: int
    bookmark: int
    """Number of the bookmark: later bookmarks have higher ones."""
    offset: int
    """Offset of the bookmark, or of an earlier one with the same number."""
    kept: KeptState | None
    """The state that was kept last."""
    moved: Sequence[tuple[int, list[bytes]]]
    """Positions of held messages that are not those of their keys, and all of their keys, the message's first."""
    removable: Sequence[list[bytes]]
    """The keys of messages that were ended or cancelled, and may be in the changelog, the message's first."""


def encoded(notes: Iterable[Note]) -> bytes:
    """The byte form of notes."""
    return seal(_KIND, _VERSION, orjson.dumps(list(notes), default=_plain))


def _plain(each: bytes | tuple[object, ...]) -> str | list[object]:
    return each.hex() if isinstance(each, bytes) else list(each)


def decoded(blob: bytes) -> list[Note]:
    """The notes that were encoded.

    Raises:
        ValueError: It is something else.
    """
    raw = unseal(_KIND, _VERSION, blob)
    try:
        return [_note(*fields) for fields in orjson.loads(raw)]
    except (TypeError, LookupError) as error:
        raise ValueError(str(error)) from error


def _note(
    number: int, name: str, store: int, lineage: Any, epoch: int, bookmark: int, offset: int, kept: Any, moved: Any,
    removable: Any,
) -> Note:  # fmt: skip
    return Note(
        number, bytes.fromhex(name), store, RecordLineage(*lineage), epoch, bookmark, offset,
        None if kept is None else KeptState(kept[0], kept[1], kept[2], bytes.fromhex(kept[3])),
        [(position, _keys(texts)) for position, texts in moved], [_keys(texts) for texts in removable],
    )  # fmt: skip


def _keys(texts: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]
