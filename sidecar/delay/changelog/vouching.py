"""Lets the local files outlive the process: bookmarks in the changelogs, and notes that refer to them.

A note is taken of all partitions at once: each changelog gets a bookmark behind all that was appended before. Once the
bookmarks are acknowledged and the files are durable, the notes are written. A start with them reads the changelog from
the bookmark on.

What compaction removes meanwhile must not be missed. A message that was delivered is below the watermark of the last
state. A message that was cancelled or moved is not: so its records are removed behind a bookmark that makes older notes
invalid, and only when the newest one has the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, KeptRows, Point
from sidecar.delay.changelog.notes import Note, decoded, encoded
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import Bookmark, bookmark_entry

NOTE_S = 5.0
"""Time from a note to the next one."""
ENTRIES_MAX = 10_000
"""Entries behind the last bookmarks from which on a note is taken at once."""
KEYS_MAX = 10_000
"""Keys of a partition in a note."""
SPARE_S = 600.0
"""How long files of partitions that are not taken over stay."""


@dataclass(slots=True)
class _Taking:
    """A note that is taken."""

    point: Point
    drafts: list[tuple[Owned, Note]]
    spare: list[Note]
    left: int
    """Bookmarks that are neither acknowledged nor lost."""
    changes: int
    """Changes of the files that must be durable next."""
    is_written: bool = False


class Vouching:
    """The notes of a store.

    Args:
        owned: The owned partitions by number.
        appends: Appends the bookmarks, and counts entries.
        clock: Seconds.
    """

    def __init__(
        self,
        cache: KeptRows,
        owned: Mapping[int, Owned],
        appends: Appends,
        clock: Callable[[], float],
        entries_max: int,
    ) -> None:
        self._cache, self._owned, self._appends, self._clock = cache, owned, appends, clock
        self._entries_max = entries_max
        self._spare = {note.name: note for note in _found(cache.vouched)}
        self._spare_until_s = clock() + SPARE_S
        self._next_s = clock() + NOTE_S
        self._bookmark = 0
        self._taking: _Taking | None = None
        cache.retain([note.number for note in self._spare.values()])

    # Partitions

    def spare(self, name: bytes) -> Note | None:
        """The note of a partition that is in the files, and not used yet."""
        return self._spare.get(name)

    def use(self, number: int) -> None:
        """A partition of the files is used: its note no longer holds."""
        for note in list(self._spare.values()):
            if note.number == number:
                del self._spare[note.name]
                self._cache.use(number)

    def is_spare(self, number: int) -> bool:
        """Whether a partition is in the files, and not used yet."""
        return any(note.number == number for note in self._spare.values())

    def hurry(self) -> None:
        """Take a note soon: a partition has none yet."""
        self._next_s = self._clock()

    def remove_changed(self, owned: Owned) -> None:
        """Remove the records of changed messages, unless notes must have the change first."""
        if len(owned.withheld) + len(owned.moved) > KEYS_MAX:
            owned.next_offset = None
        if not owned.may_remove or (owned.bookmark and owned.next_offset is not None):
            return
        groups, owned.withheld = [*owned.noted, *owned.withheld], []
        owned.noted = []
        entries = owned.tombstones(key for keys in groups for key in keys)
        if entries and owned.bookmark:  # no note follows: none may hold
            entries.insert(0, bookmark_entry(owned.epoch, Bookmark(owned.bookmark, owned.bookmark + 1)))
            owned.bookmark = 0
        if entries:
            self._appends.append(owned, entries)

    # Notes

    def step(self) -> bool:
        """Go on; return whether the files must be made durable now.

        Raises:
            StateError: The disk cannot be written; a later call tries again.
        """
        taking = self._taking
        if taking is None:
            if not self._is_due():
                return False
            taking = self._taking = self._begun()
        if self._cache.writes.synced < taking.changes:
            return True
        if not taking.is_written and not taking.left:
            self._cache.vouch(taking.point, encoded(taking.spare + _notes(taking.drafts)))
            taking.changes, taking.is_written = self._cache.writes.changes, True
            return True
        if taking.is_written:
            self._taking = None
            self._end(taking)
        return False

    def _is_due(self) -> bool:
        now_s = self._clock()
        if self._spare and now_s >= self._spare_until_s:
            for note in self._spare.values():
                self._cache.drop(note.number)
            self._spare.clear()
            return True
        if self._appends.entries >= self._entries_max:
            return True
        if now_s < self._next_s:
            return False
        self._next_s = now_s + NOTE_S
        return self._appends.entries > 0 or any(owned.withheld for owned in self._owned.values())

    def _begun(self) -> _Taking:
        point = self._cache.point()
        self._bookmark += 1
        self._next_s = self._clock() + NOTE_S
        taking = _Taking(point, [], list(self._spare.values()), 0, point.changes)
        for number, owned in self._owned.items():
            # A start with a note does not read what lies before the bookmark, and so would not remove it.
            if owned.is_proved and owned.next_offset is not None and not owned.garbage:
                self._draft(taking, number, owned)
        self._appends.entries = 0
        return taking

    def _draft(self, taking: _Taking, number: int, owned: Owned) -> None:
        removable = owned.removable()
        owned.noted, owned.withheld = [*owned.noted, *owned.withheld], []
        note = Note(
            number, owned.name, owned.store, owned.lineage, owned.epoch, owned.bookmark, 0, owned.kept,
            [(position, list(keys)) for position, keys in owned.moved.items()], removable,
        )  # fmt: skip
        if owned.behind or not owned.bookmark:

            def acknowledged(offset: int) -> None:
                taking.left -= 1
                is_valid = offset != LOST and owned.next_offset is not None
                owned.bookmark_offset = offset if is_valid else None

            owned.bookmark, owned.bookmark_offset = self._bookmark, None
            taking.left += 1
            self._appends.append(owned, [_bookmark(owned)], acknowledged)
            owned.behind = 0
        taking.drafts.append((owned, note._replace(bookmark=owned.bookmark)))

    def _end(self, taking: _Taking) -> None:
        """Handle durable notes: the records of changes that they contain may be removed."""
        for owned, note in taking.drafts:
            if self._owned.get(note.number) is owned and owned.noted and owned.bookmark_offset is not None:
                owned.valid = owned.bookmark
                groups, owned.noted = owned.noted, []
                entries = owned.tombstones(key for keys in groups for key in keys)
                self._appends.append(owned, [_bookmark(owned), *entries])


def _bookmark(owned: Owned) -> ChangelogEntry:
    return bookmark_entry(owned.epoch, Bookmark(owned.bookmark, owned.valid))


def _notes(drafts: Sequence[tuple[Owned, Note]]) -> list[Note]:
    return [note._replace(offset=owned.bookmark_offset) for owned, note in drafts if owned.bookmark_offset is not None]


def _found(vouched: bytes | None) -> list[Note]:
    """The notes of an earlier process; none if they cannot be read."""
    try:
        return [] if vouched is None else decoded(vouched)
    except ValueError:
        return []
