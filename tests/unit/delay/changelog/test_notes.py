"""The byte form of what the local files have of a changelog."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.notes import NotedPlace, changed, note_of
from sidecar.delay.changelog.records import (
    CANCELLED,
    RecordLineage,
    change_entry,
    epoch_in,
    kind_of,
    message_key,
    read_removal,
    removal_entry,
)

PLACE = NotedPlace((1 << 48) - 1, RecordLineage((1 << 64) - 1, (1 << 32) - 1), 1 << 40, 1 << 41, b"k" * 25)
MESSAGE, OTHER = message_key(1 << 40, 3, 9), message_key(2 << 40, 4, 10)


def keys_of(message: bytes, *positions: int) -> list[bytes]:
    """The keys of a message that was changed."""
    return [message, *(change_entry(message, 5, position).key for position in positions)]


def test_a_note_is_read_as_it_was_written() -> None:
    """With the place, the state, and the messages that were moved or cancelled."""
    moved, cancelled = keys_of(MESSAGE, 7, 6), keys_of(OTHER, 8, CANCELLED)
    note = note_of({b"": PLACE.encoded(), **dict(map(changed, (moved, cancelled)))}, (3, 4, b"state"))
    assert note is not None
    assert (note.place, note.moved, note.removable) == (PLACE, [(6, moved)], [cancelled])
    assert note.kept is not None
    assert note.kept[1:] == (3, 4, b"state")


def test_a_partition_without_a_state_has_none() -> None:
    """Its owner has kept none yet."""
    note = note_of({b"": PLACE.encoded()}, None)
    assert note is not None
    assert note.kept is None


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {b"": PLACE.encoded()[:10]},
        {b"": PLACE.encoded(), b"short": b"x" * 41},
        {b"": PLACE.encoded(), MESSAGE[1:]: b""},
        {b"": PLACE.encoded(), MESSAGE[1:]: b"x" * 40},
    ],
)
def test_notes_of_another_form_are_refused(notes: dict[bytes, bytes]) -> None:
    """Nothing of the partition is used then."""
    assert note_of(notes, None) is None


def test_a_removal_is_read_as_it_was_written() -> None:
    """With the epoch of its owner."""
    key, value = removal_entry(9, 7)
    assert (kind_of(key), epoch_in(key), read_removal(value or b"")) == (b"d", 9, 7)


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(8), b"\x01" + bytes(9)])
def test_a_removal_of_another_form_is_refused(value: bytes) -> None:
    """A later version may mean something else."""
    entry = ChangelogEntry(removal_entry(9, 7).key, value)
    with pytest.raises(ValueError, match=r"version|cut off|too many"):
        read_removal(entry.value or b"")
