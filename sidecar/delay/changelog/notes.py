"""Notes of what the local files have of a partition, in their byte form. Bytes in and out, no file and no broker.

The files have each record of the changelog up to an *offset*, as far as it counts, and none behind it. No other process
appended between the claim of this owner and there. A second note for each changed message has its keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.delay.changelog.records import (
    CANCELLED,
    CHANGE_KEY,
    KEY,
    MESSAGE,
    KeptState,
    RecordLineage,
    read_change,
)

_KIND, _VERSION = "changelog note", 1
_PLACE = struct.Struct("<QQIQQ")
"""Id of the changelog, incarnation, hash of the topic's id, epoch, offset; the key of the record there follows."""


class NotedPlace(NamedTuple):
    """A place in a changelog."""

    store: int
    """The id of the changelog."""
    lineage: RecordLineage
    epoch: int
    offset: int
    key: bytes
    """Of the record at the offset."""

    def encoded(self) -> bytes:
        return seal(_KIND, _VERSION, _PLACE.pack(self.store, *self.lineage, self.epoch, self.offset) + self.key)

    @classmethod
    def decoded(cls, raw: bytes) -> Self:
        """The place that was encoded.

        Raises:
            ValueError: It is something else.
        """
        stored = Stored(unseal(_KIND, _VERSION, raw))
        store, incarnation, topic, epoch, offset = stored.unpack(_PLACE)
        return cls(store, RecordLineage(incarnation, topic), epoch, offset, stored.take(stored.left))


class Note(NamedTuple):
    """What the local files have of a partition."""

    place: NotedPlace
    kept: KeptState | None
    """The state that was kept last."""
    moved: Sequence[tuple[int, list[bytes]]]
    """Positions of messages that are not those of their keys, and all of their keys, the message's first."""
    removable: Sequence[list[bytes]]
    """The keys of messages that were cancelled, and may be in the changelog, the message's first."""


def changed(keys: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Key and value of the note of a changed message, by all of its keys."""
    return keys[0][1:], b"".join(keys[1:])


def note_of(notes: Mapping[bytes, bytes], kept: tuple[int, int, bytes] | None) -> Note | None:
    """What the files have of a partition, by its notes; None if that is not known.

    Args:
        kept: Watermark, mark and state in the files.
    """
    try:
        place = NotedPlace.decoded(notes.get(b"", b""))
        groups = [_keys(key, raw) for key, raw in notes.items() if key]
        last = [read_change(keys[-1], None).position for keys in groups]
    except (ValueError, struct.error):
        return None
    state = None if kept is None else KeptState(False, *kept)  # noqa: FBT003
    pairs = list(zip(last, groups, strict=True))
    removable = [keys for position, keys in pairs if position == CANCELLED]
    return Note(place, state, [pair for pair in pairs if pair[0] != CANCELLED], removable)


def _keys(key: bytes, raw: bytes) -> list[bytes]:
    size = CHANGE_KEY.size
    if len(key) != KEY.size - 1 or not raw or len(raw) % size:
        raise ValueError("a note of another form")
    return [MESSAGE + key, *(raw[at : at + size] for at in range(0, len(raw), size))]
