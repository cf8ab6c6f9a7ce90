"""How a store on a local disk ends messages that are found by their names. Decides nothing about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sidecar.core.messages.cancels import name_in
from sidecar.delay.disk.blocks import Held
from sidecar.delay.disk.changes import Kind
from sidecar.delay.disk.hour import HourFile
from sidecar.delay.disk.hours import PARKED_HOUR, hour_of
from sidecar.delay.disk.named import fronts, load_names, named
from sidecar.delay.disk.names import Keys, keys_of
from sidecar.delay.headers import unpack_headers
from sidecar.delay.journal import StoreJournal
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.replay import CANCEL
from sidecar.state.folder import StateFolder

FOUND_AT_ONCE = 50
"""Messages that are looked at in one step: each takes some 0.1 ms at most."""


class NamedMessages:
    """What a `PartitionStore` does with names."""

    _folder: StateFolder
    _journal: StoreJournal
    _lanes: PartitionReaders

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        """End messages that were not taken by their names; see `HeldStore`.

        Raises:
            StateError: The file of an hour cannot be read.
        """
        lanes, keys = self._lanes, keys_of(number, names)
        for hour in sorted(lanes.left.hours(number)):
            if hour_of(lowest) <= hour < PARKED_HOUR and (file := lanes.file(hour)) is not None:
                yield from self._in_hour(number, file, lowest, names, keys)

    def _in_hour(
        self, number: int, file: HourFile, lowest: int, names: Mapping[bytes, int], keys: Keys
    ) -> Iterator[Sequence[Held]]:
        """End messages of an hour, from the beginning again if it gets another file meanwhile."""
        following: HourFile | None = file
        while following is not None:
            file = following
            yield from self._in_file(number, file, lowest, names, keys)
            following = self._lanes.file(file.hour)
            if following is file:
                return

    def _in_file(
        self, number: int, file: HourFile, lowest: int, names: Mapping[bytes, int], keys: Keys
    ) -> Iterator[Sequence[Held]]:
        for _ in self._steps(load_names(file)):
            yield []
        for places in named(file, keys):
            for first in range(0, len(places), FOUND_AT_ONCE):
                if self._lanes.file(file.hour) is not file:  # the hour is over, or has another one
                    return
                some = [place for place in places[first : first + FOUND_AT_ONCE] if place not in file.settled]
                with self._folder.errors("read"):
                    found = [each for each in fronts(file, some) if _is_meant(each[1], number, lowest, names)]
                yield self._end(number, file, found)
        yield []

    def _steps(self, steps: Iterator[None]) -> Iterator[None]:
        with self._folder.errors("read"):
            yield from steps

    def _end(self, number: int, file: HourFile, found: Sequence[tuple[int, Held]]) -> list[Held]:
        """End messages of an hour by their places there."""
        lanes, ended = self._lanes, list[Held]()
        for place, held in found:
            if held.position >= lanes.lanes[number].cursor:
                file.settled.add(place)
                self._journal.record.add(Kind.CANCEL, CANCEL.pack(number, held.position))
                ended.append(held)
        if ended:
            lanes.left.set(number, file.hour, max(0, lanes.left.get(number, file.hour) - len(ended)))
            self._journal.progress.note()
        return ended


def _is_meant(held: Held, number: int, lowest: int, names: Mapping[bytes, int]) -> bool:
    if held.partition != number or held.position < lowest:
        return False
    name = name_in(unpack_headers(held.headers))
    return name is not None and held.origin < names.get(name, 0)
