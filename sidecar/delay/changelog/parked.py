"""Parked parts in a changelog: records as those of messages, at positions of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.interface import ChangelogEntry, KeptRows
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import CANCELLED, change_entry, message_key, message_value
from sidecar.delay.changelog.vouching import Vouching
from sidecar.delay.disk.blocks import Held
from sidecar.delay.disk.changes import PlacedRow


class ParkedEntries:
    """What a `ChangelogStore` does with parked parts."""

    _cache: KeptRows
    _owned: dict[int, Owned]
    _appends: Appends
    _vouching: Vouching
    _check_room: Callable[[], None]

    def park(self, number: int, row: PlacedRow) -> int:
        """Keep a parked part; return its epoch.

        Raises:
            StateError: Too much is on the way already, or the local disk is full; nothing was put.
        """
        self._check_room()
        owned = self._owned[number]
        position, origin, _, stamp, tags, key, headers, value = row
        self._cache.adopt(number, [(position, origin, owned.epoch, stamp, tags, key, headers, value)])
        entry = ChangelogEntry(
            message_key(position, owned.epoch, origin),
            message_value(owned.lineage, stamp, tags, key, headers, value),
        )
        self._appends.append(owned, [entry])
        return owned.epoch

    def origins(self, number: int, positions: Sequence[int]) -> Mapping[int, int]:
        """The origins of messages, by position, as far as their rows are in local files.

        Raises:
            StateError: A local file cannot be read.
        """
        return self._cache.origins(number, positions)

    def parked(self, number: int) -> Sequence[Held]:
        """The parked parts that are kept, in no order, without their values.

        Raises:
            StateError: A local file cannot be read.
        """
        return self._cache.parked(number)

    def unpark(self, number: int, position: int, epoch: int, origin: int) -> None:
        """Remove a parked part.

        Raises:
            StateError: A local file cannot be read.
        """
        owned, key = self._owned[number], message_key(position, epoch, origin)
        self._cache.unpark(number, position, epoch, origin)
        change = change_entry(key, owned.epoch, CANCELLED)
        self._appends.append(owned, [change])
        owned.withheld.append([key, change.key])
        self._vouching.remove_changed(owned)
