"""Windows of offsets that were seen, as Roaring bitmaps, and the values that all windows share. Needs no numpy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from sidecar.core.snapshots import bitmap_of

CAPACITY = 100_000_000
FOR_EVER = 1 << 63


class Moment(NamedTuple):
    """Context of looked-up numbers, for windows that survive a process through a journal."""

    last: int = -1
    """The highest offset of their messages."""
    keep_from: int = FOR_EVER
    """Numbers that decided a message at or above this offset are not forgotten, even beyond the capacity."""
    now_ms: float = 0.0
    """Monotonic time."""


EVER = Moment()


class IdCounts(NamedTuple):
    """Totals of all windows of ids."""

    remembered: int = 0
    memory_bytes: int = 0
    """Bytes in memory, without those in files."""
    file_bytes: int = 0
    """Bytes in mapped files."""
    begun_ms: float | None = None
    """Monotonic time of the oldest; None if there is none."""
    rotations: int = 0
    """Generations forgotten since the start."""


class RotatingBitmap:
    """Two generations of offsets, or of dense ids, in 64-bit Roaring bitmaps.

    Args:
        capacity: Maximum of numbers kept; at least half as many are remembered.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.half = max(1, capacity // 2)
        self.generation = 0
        self.young, self.old = BitMap64(), BitMap64()

    def __contains__(self, item: int) -> bool:
        return item in self.young or item in self.old

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def add(self, item: int) -> bool:
        """Remember `item`; False if it was known. May rotate before, never after: a new `item` is in `young`."""
        if item in self:
            return False
        self.make_room(FOR_EVER)
        self.young.add(item)
        return True

    def take(self, numbers: Sequence[int | None], _: Moment = EVER, /) -> list[bool]:
        return [number is None or self.add(number) for number in numbers]

    def add_range(self, first: int, last: int, keep_from: int = 0) -> bool:
        """Remember `first` to `last`, both included, if none of them is known: 0.3 microseconds for any length.

        Args:
            keep_from: Postpones a rotation that would forget this number or a higher number.

        Returns:
            False if any of them was known; nothing was changed then.
        """
        if self.young.range_cardinality(first, last + 1) or self.old.range_cardinality(first, last + 1):
            return False
        self.make_room(keep_from)
        self.young.add_range(first, last + 1)
        return True

    def make_room(self, keep_from: int) -> None:
        """Rotate if the young generation is full and the old generation has no number at or above `keep_from`."""
        if len(self.young) >= self.half and (not self.old or self.old.max() < keep_from):
            self.old, self.young = self.young, BitMap64()
            self.generation += 1

    def update(self, offsets: Sequence[int], keep_from: int = 0) -> None:
        """Remember many offsets; `keep_from` as in `add_range`."""
        self.make_room(keep_from)
        self.young.update(array("Q", offsets))  # numpy arrays take 4 times as long

    def dump(self, also: BitMap64 | None = None, without: Iterable[Sequence[int]] = ()) -> tuple[bytes, bytes]:
        """Young and old generation in the portable Roaring format.

        Args:
            also: Further numbers of the young generation.
            without: Numbers to leave out, as sequences or ranges.
        """
        young, old = self.young | (also or BitMap64()), self.old.copy()
        for numbers in without:
            for bitmap in (young, old):
                if isinstance(numbers, range):
                    bitmap.remove_range(numbers.start, numbers.stop)
                elif numbers:
                    bitmap.difference_update(BitMap64(array("Q", numbers)))
        return young.serialize(), old.serialize()

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Replace the contents with a dump.

        Raises:
            ValueError: The bytes are not bitmaps.
        """
        self.young, self.old = map(bitmap_of, dumped)

    def pop_from(self, border: int) -> BitMap64:
        """Remove and return the numbers at or above `border`."""
        offsets = self.young | self.old
        offsets.remove_range(0, border)
        for bitmap in (self.young, self.old):
            bitmap.remove_range(border, FOR_EVER)
        return offsets
