"""Adopts the messages of a partition that another host had, and gives them up. Writes no file itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from pyroaring import BitMap64

from sidecar.delay.disk.blocks import POSITION_MAX, PUT_BYTES_MAX, Held
from sidecar.delay.disk.changes import Kind, LogEntry, PlacedRow
from sidecar.delay.journal import StoreJournal
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.replay import PARTITION
from sidecar.state.folder import StateFolder

RECORD_BYTES_MAX = 8 << 20
"""Memory of puts without a sync at which they are written to the log."""


class Adoption:
    """Messages that have positions already, and partitions that leave."""

    _folder: StateFolder
    _journal: StoreJournal
    _lanes: PartitionReaders

    def adopt(self, number: int, rows: Iterable[PlacedRow]) -> None:
        """Hold messages that have positions, in any order; their origins are not learned.

        Messages below the partition's watermark are ignored. Those below its cursor come after the next `rewind`.

        Args:
            rows: The messages; none at a position where the partition had one before, ended or not.

        Raises:
            ValueError: A number is out of range, or there are too many bytes; nothing is held.
            StateError: The disk cannot be written, and memory is full; nothing is held.
        """
        watermark = self._lanes.lanes[number].watermark
        placed = sorted((row for row in rows if row[0] >= watermark), key=itemgetter(0))
        if not placed:
            return
        if placed[-1][0] > POSITION_MAX:
            raise ValueError(f"positions lie between 0 and {POSITION_MAX}, unlike {placed[-1][0]}")
        entry = LogEntry.of(number, placed)
        if len(entry.payloads) > PUT_BYTES_MAX:
            raise ValueError(f"{len(entry.payloads)} bytes at once, {PUT_BYTES_MAX} can be adopted")
        self._make_room()
        self._lanes.adopt(number, entry)
        self._journal.record.add_section(Kind.ADOPT, entry.encoded())
        self._journal.progress.note(placed[0][0])

    def _make_room(self) -> None:
        with self._folder.errors("write"):
            if self._journal.broken is not None or self._journal.record.nbytes > RECORD_BYTES_MAX:
                self._journal.write()
            self._journal.step()
            self._lanes.make_room()

    def park(self, number: int, row: PlacedRow) -> int:
        """Keep a parked part, at a position from `PARKED_FROM` on; return its epoch.

        Raises:
            ValueError: It is too large; nothing is kept.
            StateError: The disk cannot be written, and memory is full; nothing is kept.
        """
        self.adopt(number, [row])
        return row[2]

    def origins(self, number: int, positions: Sequence[int]) -> dict[int, int]:
        """The origins of messages, by position, as far as their rows are in files.

        Raises:
            StateError: A file cannot be read.
        """
        with self._folder.errors("read"):
            return self._lanes.origins(number, positions)

    def parked(self, number: int) -> list[Held]:
        """The parked parts that are kept, in no order, without their values.

        Raises:
            StateError: A file cannot be read.
        """
        with self._folder.errors("read"):
            return self._lanes.parked(number)

    def learn(self, number: int, origins: Iterable[int]) -> None:
        """Note origins as those of messages that were put; those below the floor are ignored."""
        learned = BitMap64(origins)
        self._lanes.lanes[number].learn(learned)
        self._journal.record.add_section(Kind.LEARN, PARTITION.pack(number) + learned.serialize())
        self._journal.progress.note()

    def drop(self, number: int) -> None:
        """Forget a partition's messages, origins and state, and read no file; the number must not be used again.

        Its rows stay in the files, and go with their hours.
        """
        self._lanes.leave(number)
        self._journal.record.add_section(Kind.DROP, PARTITION.pack(number))
        self._journal.progress.note()
