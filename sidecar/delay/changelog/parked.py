"""Parked parts in a changelog: records as those of messages, at positions of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sidecar.delay.changelog.interface import Entry
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.records import message_key, message_value
from sidecar.delay.disk.blocks import Held
from sidecar.delay.disk.changes import PlacedRow
from sidecar.delay.interface import RestoredRows


class ParkedParts:
    """What a `ChangelogStore` does with parked parts."""

    _cache: RestoredRows
    _owned: dict[int, Owned]
    _append: Callable[[Owned, Sequence[Entry]], None]
    _remove: Callable[[Owned, Sequence[bytes]], None]
    _check_room: Callable[[], None]

    def park(self, number: int, row: PlacedRow) -> int:
        """Keep a parked part; return its epoch.

        Raises:
            StateError: Too much is on the way already, or the local disk is full; nothing was put.
        """
        self._check_room()
        owned = self._owned[number]
        position, origin, _, stamp, key, headers, value = row
        self._cache.adopt(number, [(position, origin, owned.epoch, stamp, key, headers, value)])
        entry = Entry(
            message_key(position, owned.epoch, origin), message_value(owned.lineage, stamp, key, headers, value)
        )
        self._append(owned, [entry])
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
        self._cache.unpark(number, position, epoch, origin)
        self._remove(self._owned[number], [message_key(position, epoch, origin)])
