"""One generation of message ids: the newest in a set, the others in sorted runs. Rotates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sidecar.core.windows.idruns import Keys, SortedRun, add_run, mixed, unmixed

UNSORTED_BYTES = 90
"""Memory of a number in a Python set, with the number itself."""
UNSORTED_MIN, UNSORTED_MAX = 64, 8_192


class Room:
    """Shared by windows: the number of ids that they keep unsorted, and the count of their rotations.

    Args:
        size: Total of unsorted numbers in all windows, as long as each keeps at least `UNSORTED_MIN`.
    """

    def __init__(self, size: int = 1 << 17) -> None:
        self._size = size
        self._windows = 0
        self.each = UNSORTED_MAX
        self.rotations = 0

    def share(self, windows: int) -> None:
        """Divide the room among this number of windows."""
        self._windows = windows
        self.each = max(UNSORTED_MIN, min(UNSORTED_MAX, self._size // max(1, windows)))

    def resize(self, size: int) -> None:
        """Set the total of unsorted numbers in all windows."""
        self._size = size
        self.share(self._windows)

    def rotated(self) -> None:
        """Record that a window forgot its old generation."""
        self.rotations += 1


class IdSet:
    """A set of numbers, added many at a time.

    Args:
        room: Limits the unsorted numbers.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.recent: set[int] = set()
        self.runs: list[SortedRun] = []
        """Runs in memory, made here."""
        self.stored: list[SortedRun] = []
        """Runs that the shell stored, perhaps in files."""
        self.decided = -1
        """The highest offset of the messages that were checked against this set."""
        self.added = 0
        """Numbers added since it began; stored runs may also contain numbers of the previous generation."""
        self.begun_ms = self.ended_ms = 0.0
        """Times of the first and the last number; the latter is used once the set is the old generation."""
        self._sorted = 0

    def __contains__(self, number: int) -> bool:
        return bool(self.known([number], mixed([number]), -1))

    def __len__(self) -> int:
        return len(self.recent) + self._sorted

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without the runs that the shell stores."""
        return UNSORTED_BYTES * len(self.recent) + sum(run.nbytes for run in self.runs)

    def known(self, numbers: Sequence[int], keys: Keys, last: int) -> set[int]:
        """The `numbers` that are in the set.

        Args:
            numbers: The numbers.
            keys: The result of `mixed` for the numbers.
            last: The highest offset of their messages.
        """
        known = self.recent.intersection(numbers)
        if self._sorted:
            mask = np.zeros(len(keys), np.bool_)
            for run in (*self.runs, *self.stored):
                mask |= run.contains(keys)
            known.update(numbers[index] for index in mask.nonzero()[0].tolist())
        if known:
            self.decided = max(self.decided, last)
        return known

    def update(self, numbers: set[int], last: int, now_ms: float) -> None:
        """Add numbers that are not in the set."""
        if not numbers:
            return
        if not len(self):
            self.begun_ms = now_ms
        self.ended_ms = now_ms
        self.decided = max(self.decided, last)
        self.recent |= numbers
        self.added += len(numbers)
        if len(self.recent) > self._room.each:
            self.sort()

    def sort(self) -> None:
        """Sort the unsorted numbers."""
        if self.recent:
            recent, self.recent = self.recent, set()
            self.load(np.fromiter(recent, np.int64, len(recent)))

    def numbers(self) -> NDArray[np.int64]:
        """All numbers, in ascending order."""
        self.sort()
        numbers = unmixed(np.concatenate([np.empty(0, np.uint64), *(run.keys for run in (*self.runs, *self.stored))]))
        numbers.sort()
        return numbers

    def load(self, numbers: NDArray[np.int64]) -> None:
        """Add many numbers that are not in the set."""
        keys = mixed(numbers)
        keys.sort()
        add_run(self.runs, SortedRun.of(keys))
        self._count()

    def install(self, stored: Sequence[SortedRun], elsewhere: Iterable[SortedRun] = ()) -> None:
        """Use the runs that the shell stored, and drop the numbers that these contain.

        Args:
            stored: All stored runs of this set.
            elsewhere: Stored runs of another generation, which may have taken some of these numbers.
        """
        self.sort()
        self.stored = list(stored)
        own, self.runs = self.runs, []
        for run in own:
            keys = run.keys
            for kept in (*stored, *elsewhere):
                keys = keys[~kept.contains(keys)]
            if len(keys) == len(run):
                self.runs.append(run)
            elif len(keys):
                add_run(self.runs, SortedRun.of(keys))
        self._count()

    def _count(self) -> None:
        self._sorted = sum(map(len, (*self.runs, *self.stored)))
