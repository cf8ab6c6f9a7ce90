"""Ends messages of a store on a local disk by their names. Decides nothing about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sidecar.core.messages.cancels import name_in
from sidecar.delay.disk.blocks import Held, block_at, read_front
from sidecar.delay.disk.changes import Kind
from sidecar.delay.disk.hour import HourFile, opened
from sidecar.delay.disk.hours import PARKED_HOUR, hour_of
from sidecar.delay.disk.names import Keys, Names, keys_of, matching
from sidecar.delay.headers import unpack_headers
from sidecar.delay.journal import StoreJournal
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.replay import CANCEL
from sidecar.state.folder import StateFolder

NAMED_BLOCKS = 32
"""Blocks whose keys are read at once."""


def load_names(file: HourFile) -> Iterator[None]:
    """Read the keys of an hour, unless they are known, in steps of some milliseconds.

    Raises:
        OSError: The file cannot be read.
    """
    names, end = Names(), 0
    while file.names is None and end < file.size:  # also what is appended meanwhile
        with opened(file.path) as read:
            blocks = list(islice(file.find_blocks(read, end), NAMED_BLOCKS))
            end = max((block.end for block in blocks), default=file.size)
            for block in blocks:
                names.add_keys(block.keys(read), block.first, block.at)
        yield
    file.names = file.names or names


def named(file: HourFile, wanted: Keys) -> Iterator[list[int]]:
    """The numbers of messages that may have the names that are looked for, each list in order; `load_names` first."""
    assert file.names is not None
    pending = [file.written + number for number in matching(file.pending.keys(), wanted)]
    pieces = file.names.find(wanted)
    yield pending
    yield from pieces


def fronts(file: HourFile, numbers: Sequence[int]) -> Iterator[tuple[int, Held]]:
    """Messages that `named` has found, perhaps without their values; not those in a damaged table.

    Raises:
        OSError: The file cannot be read.
    """
    assert file.names is not None
    block, last_at = None, -1
    with opened(file.path) as read:
        for number in numbers:
            if number >= file.written:
                yield number, file.pending.read(number - file.written)
                continue
            if (at := file.names.block_at(number)) != last_at:
                block, last_at = block_at(read, at, file.size, file.salt), at
                block = None if block is None or block.table(read) is None else block
            held = block and read_front(read, block.table_at, block.payloads_at, number - block.first)
            if held:
                yield number, held


FOUND_AT_ONCE = 50
"""Messages examined in one step: each takes about 0.1 ms at most."""


class NamedMessages:
    """The part of a `PartitionStore` that handles names."""

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
                self._journal.record.add_section(Kind.CANCEL, CANCEL.pack(number, held.position))
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
