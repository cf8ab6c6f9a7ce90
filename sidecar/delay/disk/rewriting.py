"""Copies the messages of an hour that are not ended to another file, a little at a time. Knows no reader and no log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import ROW_TYPE, Table
from sidecar.delay.disk.gathered import Gathered
from sidecar.delay.disk.hour import SECOND_SEQUENCES, HourFile, opened

BLOCK_BYTES = 1 << 20
"""Bytes of a block of the other file, about."""
Ended = Callable[[int, Table], NDArray[np.bool_]]
"""Which messages of a table are ended for good, given the number of its first message."""


class DamagedError(Exception):
    """Messages that are not ended cannot be read."""


class Rewrite:
    """Copies an hour to another file. The hour may get messages meanwhile.

    Args:
        mark: No message is put at or below this position.

    Raises:
        OSError: The file cannot be read.
    """

    def __init__(self, file: HourFile, ended: Ended, mark: int) -> None:
        self.file = file
        self.following = file.successor()
        """The other file. It replaces the first one after the last `step`."""
        self._ended, self._mark = ended, mark
        self._at = self._next = 0
        """Offset and number of the first message that was not examined."""
        self._kept = [np.empty(0, np.int64)]
        """Numbers of the messages that were copied."""

    def step(self, nbytes: int) -> bool:
        """Copy messages from about `nbytes` bytes; return whether all are copied.

        Raises:
            DamagedError: A message cannot be read; start over when it is known to be lost.
            OSError: A file cannot be read or written; start over.
        """
        end = min(self._at + nbytes, self.file.size)
        with opened(self.file.path) as read:
            for block in self.file.find_blocks(read, self._at) if self._at < end else ():
                self._check_lost(block.first)
                table = block.table(read)
                if table is None or not self._leave_out(block.first, table).all():
                    content = block.content(read)
                    if content is None:
                        self._check_lost(block.first + block.messages)
                    else:
                        self._copy(block.first, *content)
                self._at, self._next = block.end, block.first + block.messages
                if self._at >= end:
                    break
            else:
                self._at = self.file.size
        if self._at < self.file.size:
            return False
        self._finish()
        return True

    def _leave_out(self, first: int, table: Table) -> NDArray[np.bool_]:
        """Which messages are left out; the positions of those that are not past are not given out again."""
        ended, positions = self._ended(first, table), table["position"]
        sequences = positions[ended & (positions > np.uint64(self._mark))] & np.uint64((1 << SEQUENCE_BITS) - 1)
        highest = int(sequences.max(initial=0))
        if highest >= SECOND_SEQUENCES:
            self.following.sequence = max(self.following.sequence, highest + 1)
        return ended

    def _check_lost(self, end: int) -> None:
        """Continue behind messages that cannot be read, if all of them are known to be lost."""
        if BitMap(range(self._next, end)) - self.file.settled:
            raise DamagedError
        self._next = max(self._next, end)

    def _finish(self) -> None:
        """Copy messages that are only in memory, and settle those that were ended meanwhile."""
        self._check_lost(self.file.written)
        pending, following = self.file.pending, self.following
        if pending:
            self._copy(self.file.written, bytes(pending.table), memoryview(bytes(pending.payloads)))
        following.flush()
        self._kept = [np.concatenate(self._kept)]
        following.settled, following.out = self._moved(self.file.settled), self._moved(self.file.out)

    def _moved(self, numbers: BitMap) -> BitMap:
        is_meant = np.zeros(self.file.count, np.bool_)
        is_meant[np.fromiter(numbers, np.int64, len(numbers))] = True
        return BitMap(np.flatnonzero(is_meant[self._kept[0]]).astype(np.uint32))

    def moved(self, number: int) -> int:
        """The number in the other file of a message that was copied, after the last `step`."""
        return int(np.searchsorted(self._kept[0], number))

    def _copy(self, first: int, table: bytes, payloads: memoryview) -> None:
        places = np.flatnonzero(~self._leave_out(first, np.frombuffer(table, ROW_TYPE)))
        gathered, following = Gathered(), self.following
        gathered.add_rows(table, payloads)
        for of_hour in gathered.by_hour():
            rows, content = of_hour.block(places, len(following.pending.payloads))
            following.pending.table += rows
            following.pending.payloads += content
            self._kept.append(places + first)
        if len(following.pending.payloads) > BLOCK_BYTES:
            following.flush()
