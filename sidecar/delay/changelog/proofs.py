"""Commits that name the epoch of an owner, and the proof of that in the changelog: what may be removed, and when.

A key that is removed is gone for all owners. So an owner removes nothing before all later owners know its epoch: a
reset, or a broker that loses commits, may take away the commit that named it, and without its epoch, records that are
void for it would count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, KeptRows
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import state_entry
from sidecar.delay.changelog.vouching import Vouching


class Proofs:
    """The part of a `ChangelogStore` that handles commits."""

    _cache: KeptRows
    _numbers: dict[bytes, int]
    _owned: dict[int, Owned]
    _appends: Appends
    _vouching: Vouching

    def is_proved(self, name: bytes) -> bool:
        """Whether all later owners will know the epoch of an owned partition."""
        return self._owned[self._numbers[name]].is_proved

    def lost(self) -> Mapping[TopicPartition, str]:
        """The owned partitions that must be taken over again, with the reason."""
        doubted = [owned.tp for owned in self._owned.values() if owned.is_doubted]
        return dict.fromkeys(doubted, "another process wrote to its changelog during the takeover") | dict.fromkeys(
            self._appends.lost, "another process has claimed its delayed messages"
        )

    def floor(self, number: int, origin: int) -> None:
        """Forget the origins below this one, which the source's commit has."""
        self._cache.floor(number, origin)
        if (owned := self._owned.get(number)) is not None:
            self._name(owned)
            if entries := owned.committed(origin):
                self._appends.append(owned, entries)

    def committed(self, number: int, watermark: int) -> None:
        """Handle a successful commit of the state with this watermark: ended messages are no longer needed."""
        if (owned := self._owned.get(number)) is not None:
            self._name(owned)
            owned.ended_below = watermark
            self._remove(owned)

    def _name(self, owned: Owned) -> None:
        """A commit names the epoch: the changelog must record that before anything else."""
        if owned.is_named:
            return
        owned.is_named = True
        self._keep(owned, lambda offset: self._proved(owned, offset))
        if owned.reach is not None:  # at once, or what is void would be missed where the source is read on
            self._appends.append(owned, [*(ChangelogEntry(key, None) for key in owned.garbage), owned.reach.entry()])
            owned.garbage = []

    def _proved(self, owned: Owned, offset: int) -> None:
        if offset == LOST:
            return
        if owned.reach is None and owned.next_offset is None:
            # It may be a claim, whose owner has read nothing of this proof. The next one will know it.
            owned.is_doubted = True
            return
        owned.is_proved = True
        self._remove(owned)
        self._vouching.hurry()

    def _remove(self, owned: Owned) -> None:
        if not owned.may_remove:
            return
        self._appends.remove(owned, [*owned.garbage, *owned.ended(owned.ended_below)])
        owned.garbage = []
        self._vouching.remove_changed(owned)

    def _keep(self, owned: Owned, then: Callable[[int], None] | None = None) -> None:
        if owned.kept is not None:
            kept = owned.kept._replace(is_proved=owned.is_named)
            self._appends.append(owned, [state_entry(owned.epoch, kept)], then=then)
