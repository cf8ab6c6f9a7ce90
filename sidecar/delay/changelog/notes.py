"""Notes of what the local files have, in their byte form. Bytes in and out, no file and no broker.

A note says of an owned partition: a *bookmark* is in its changelog at an offset. The local files have all entries that
this owner appended before it, and none that it appended later. No other process appended between its claim and the
bookmark.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.delay.changelog.records import KeptState, RecordLineage, kept_bytes, read_state

_KIND, _VERSION = "changelog notes", 1
_NOTE = struct.Struct("<HQQIQQQIIII")
"""Number of the partition, store, incarnation, hash of the topic's id, epoch, number of the bookmark, offset; bytes of
the name and of the state, or `_NO_STATE`; messages that were moved, and groups of keys."""
_MOVED = struct.Struct("<QI")
"""Position, and number of keys."""
_COUNT = struct.Struct("<I")
_KEY = struct.Struct("<H")
"""Bytes of a key, which follows."""
_NO_STATE = (1 << 32) - 1


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
    pieces: list[bytes] = []
    for note in notes:
        state = b"" if note.kept is None else kept_bytes(note.kept)
        head = _NOTE.pack(
            note.number, note.store, *note.lineage, note.epoch, note.bookmark, note.offset,
            len(note.name), _NO_STATE if note.kept is None else len(state), len(note.moved), len(note.removable),
        )  # fmt: skip
        pieces += [head, note.name, state]
        for position, keys in note.moved:
            pieces += [_MOVED.pack(position, len(keys)), *_keys(keys)]
        for keys in note.removable:
            pieces += [_COUNT.pack(len(keys)), *_keys(keys)]
    return seal(_KIND, _VERSION, b"".join(pieces))


def _keys(keys: Iterable[bytes]) -> Iterable[bytes]:
    for key in keys:
        yield _KEY.pack(len(key))
        yield key


def decoded(blob: bytes) -> list[Note]:
    """The notes that were encoded.

    Raises:
        ValueError: It is something else.
    """
    reader, notes = Stored(unseal(_KIND, _VERSION, blob)), list[Note]()
    while reader.left:
        (number, store, incarnation, topic, epoch, bookmark, offset, name_bytes, state_bytes, moved, removable) = (
            reader.unpack(_NOTE)
        )
        name = reader.take(name_bytes)
        kept = None if state_bytes == _NO_STATE else read_state(reader.take(state_bytes))
        heads = (reader.unpack(_MOVED) for _ in range(moved))
        changed = [(position, _read_keys(reader, count)) for position, count in heads]
        ended = [_read_keys(reader, *reader.unpack(_COUNT)) for _ in range(removable)]
        lineage = RecordLineage(incarnation, topic)
        notes.append(Note(number, name, store, lineage, epoch, bookmark, offset, kept, changed, ended))
    return notes


def _read_keys(reader: Stored, count: int) -> list[bytes]:
    return [reader.take(*reader.unpack(_KEY)) for _ in range(count)]
