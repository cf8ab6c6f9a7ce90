"""Messages of a changelog that are cancelled by their names: a record for each, as for one that an operator cancels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.interface import Entry, KeptRows
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import CANCELLED, change_entry
from sidecar.delay.disk.blocks import Held


class NamedMessages:
    """What a `ChangelogStore` does with names."""

    _cache: KeptRows
    _owned: dict[int, Owned]
    _appends: Appends

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        """See `HeldStore`.

        Raises:
            StateError: A local file cannot be read.
        """
        owned = self._owned[number]
        for found in self._cache.cancel_named(number, lowest, names):
            changes: list[Entry] = []
            for held in found:
                keys = owned.keys(held)
                changes.append(change_entry(keys[0], owned.epoch, CANCELLED))
                owned.cancelled[held.position] = [*dict.fromkeys([*keys, changes[-1].key])]
                owned.moved.pop(held.position, None)
            if changes:
                self._appends.append(owned, changes)
            yield found
