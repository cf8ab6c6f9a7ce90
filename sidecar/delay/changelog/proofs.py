"""Commits that name the epoch of an owner, and the proof of that in the changelog: what may be removed, and when.

A key that is removed is gone for all owners. So an owner removes nothing before all later owners know its epoch: a
reset, or a broker that loses commits, may take away the commit that named it, and without its epoch, records that are
void for it would count.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import LOST
from sidecar.delay.changelog.notes import changed
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import removal_entry, state_entry

GARBAGE_AT_ONCE = 5_000
"""Keys that are removed before the broker has acknowledged them: a reset may leave millions."""


class Proofs:
    """Names the epochs of owners once a commit has them, and removes what is no longer needed."""

    def __init__(self, appends: Appends, cache: LocalCache) -> None:
        self._appends = appends
        self._cache = cache

    def read_on(self, owned: Owned, origin: int) -> None:
        """Handle a successful commit of the source with this offset."""
        self._name(owned)
        if entries := owned.committed(origin):
            self._appends.append(owned, entries)

    def end_below(self, owned: Owned, watermark: int) -> None:
        """Handle a successful commit of the state with this watermark: ended messages are no longer needed."""
        self._name(owned)
        owned.ended_below = watermark
        self._remove(owned)

    def keep(self, owned: Owned, then: Callable[[int], None] | None = None) -> None:
        """Append the state, with what is known of the epoch.

        Args:
            then: Gets the offset of its record, or `LOST`.
        """
        if owned.kept is not None:
            kept = owned.kept._replace(is_proved=owned.is_named)
            self._appends.append(owned, [state_entry(owned.epoch, kept)], then=then)

    def _name(self, owned: Owned) -> None:
        """A commit names the epoch: the changelog must record that before anything else."""
        if owned.is_named:
            return
        owned.is_named = True
        self.keep(owned, lambda offset: self._proved(owned, offset))
        if owned.reach is not None:  # at once, or what is void would be missed where the source is read on
            self._appends.append(owned, [*owned.tombstones(owned.garbage), owned.reach.entry()])
            owned.garbage = []

    def _proved(self, owned: Owned, offset: int) -> None:
        if offset == LOST:
            return
        if owned.reach is None and owned.next_offset is None:
            # It may be a claim, whose owner has read nothing of this proof. The next one will know it.
            owned.is_doubted = True
            return
        owned.is_proved = True
        self._remove_garbage(owned)
        self._remove(owned)

    def _remove_garbage(self, owned: Owned, offset: int = 0) -> None:
        if owned.garbage and offset != LOST:
            entries = owned.tombstones(owned.garbage[:GARBAGE_AT_ONCE])
            del owned.garbage[:GARBAGE_AT_ONCE]
            self._appends.append(owned, entries, lambda offset: self._remove_garbage(owned, offset))
        elif offset != LOST and owned.reach is None:
            owned.is_clean = True
            self._appends.note_place(owned)

    def _remove(self, owned: Owned) -> None:
        if owned.may_remove:
            self._appends.remove(owned, owned.ended(owned.ended_below), owned.ended_below)
            self.remove_changed(owned)

    def remove_changed(self, owned: Owned) -> None:
        """Remove the records of changed messages that are no longer needed.

        Compaction hides the changes then. So local files that do not have them must not be used: the record before
        says up to where files must have the changelog.
        """
        if not owned.may_remove or not owned.withheld:
            return
        groups, owned.withheld = owned.withheld, []
        entries = owned.tombstones(key for keys in groups for key in keys)
        if owned.is_clean and owned.last is not None:
            entries.insert(0, removal_entry(owned.epoch, owned.last[0]))
        self._cache.note(owned.number, {changed(keys)[0]: None for keys in groups})
        self._appends.append(owned, entries)
