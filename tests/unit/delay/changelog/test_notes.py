"""The byte form of what the local files vouch for."""

from __future__ import annotations

import pytest

from sidecar.delay.changelog.interface import ChangelogEntry
from sidecar.delay.changelog.notes import Note, decoded, encoded
from sidecar.delay.changelog.records import (
    Bookmark,
    KeptState,
    RecordLineage,
    bookmark_entry,
    epoch_in,
    kind_of,
    read_bookmark,
)

BARE = Note(1, b"a", 7, RecordLineage(2, 3), 4, 5, 6, None, [], [])
FULL = Note(
    (1 << 16) - 1, b"g\0orders\0\x003", (1 << 48) - 1, RecordLineage((1 << 64) - 1, (1 << 32) - 1),
    1 << 40, 1 << 41, 1 << 42,
    KeptState(is_proved=True, watermark=1 << 62, seen=1 << 63, state=b"state"),
    [(1 << 61, [b"m" * 25, b"x" * 41]), (9, [b"m" * 25])],
    [[b"m" * 25], [], [b"m" * 25, b"x" * 41, b"x" * 41]],
)  # fmt: skip


@pytest.mark.parametrize("notes", [[], [BARE], [FULL], [BARE, FULL, BARE]])
def test_notes_are_read_as_they_were_written(notes: list[Note]) -> None:
    """With all that they have, however much that is."""
    assert decoded(encoded(notes)) == notes


@pytest.mark.parametrize("size", [0, 10, 40, 200])
def test_notes_that_are_cut_off_are_refused(size: int) -> None:
    """Nothing of them counts."""
    with pytest.raises(ValueError, match="snapshot"):
        decoded(encoded([FULL])[:size])


def test_a_bookmark_is_read_as_it_was_written() -> None:
    """With the epoch of its owner."""
    key, value = bookmark_entry(9, Bookmark(7, 5))
    assert (kind_of(key), epoch_in(key), read_bookmark(value or b"")) == (b"n", 9, Bookmark(7, 5))


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(16), b"\x01" + bytes(17)])
def test_a_bookmark_of_another_form_is_refused(value: bytes) -> None:
    """A later version may mean something else."""
    entry = ChangelogEntry(bookmark_entry(9, Bookmark(7, 5)).key, value)
    with pytest.raises(ValueError, match=r"version|cut off|too many"):
        read_bookmark(entry.value or b"")
