"""One generation of message ids: the newest in one array, the others in sorted runs. Rotates nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sidecar.core.windows.idruns import Keys, Mask, Search, SortedRun, add_run, mixed, search, unmixed

KEY_BYTES = 8
RECENT_MIN, RECENT_MAX = 64, 8_192
"""Number of a window's newest keys: each batch of new ones is merged with them."""
NO_KEYS: Keys = np.empty(0, np.uint64)


class IdRoom:
    """Shared by windows: the number of their newest keys, how keys are looked up, and the count of their rotations.

    Args:
        size: Total of the newest keys of all windows, as long as each keeps at least `RECENT_MIN`.
        search: Looks keys up in runs.
    """

    def __init__(self, size: int = 1 << 17, search: Search = search) -> None:
        self.search = search
        self._size = size
        self._windows = 0
        self.each = RECENT_MAX
        self.rotations = 0

    def share(self, windows: int) -> None:
        """Divide the room among this number of windows."""
        self._windows = windows
        self.each = max(RECENT_MIN, min(RECENT_MAX, self._size // max(1, windows)))

    def resize(self, size: int) -> None:
        """Set the total of the newest keys of all windows."""
        self._size = size
        self.share(self._windows)

    def rotated(self) -> None:
        """Record that a window forgot its old generation."""
        self.rotations += 1


class IdSet:
    """A set of numbers, added many at a time."""

    def __init__(self, room: IdRoom) -> None:
        self._room = room
        self.recent: Keys = NO_KEYS
        """The newest keys, rising; in no run yet."""
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
        return bool(self.known(mixed([number]), -1)[0])

    def __len__(self) -> int:
        return len(self.recent) + self._sorted

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without the runs that the shell stores."""
        return self.recent.nbytes + sum(run.nbytes for run in self.runs)

    def known(self, keys: Keys, last: int) -> Mask:
        """A mask of the keys that are in the set.

        Args:
            last: The highest offset of their messages.
        """
        runs = (*self.runs, *self.stored)
        mask = self._room.search(runs, keys) if runs else np.zeros(len(keys), np.bool_)
        if len(self.recent):
            mask |= self.recent[self.recent.searchsorted(keys) % len(self.recent)] == keys
        if mask.any():
            self.decided = max(self.decided, last)
        return mask

    def update(self, keys: Keys, last: int, now_ms: float) -> None:
        """Add rising keys that are not in the set."""
        if not len(keys):
            return
        if not len(self):
            self.begun_ms = now_ms
        self.ended_ms = now_ms
        self.decided = max(self.decided, last)
        self.added += len(keys)
        self.recent = np.concatenate([self.recent, keys])
        self.recent.sort(kind="stable")  # merges the two
        if len(self.recent) > self._room.each:
            self.settle()

    def settle(self) -> None:
        """Make a run of the newest keys."""
        if len(self.recent):
            recent, self.recent = self.recent, NO_KEYS
            self._add(recent)

    def numbers(self) -> NDArray[np.int64]:
        """All numbers, in ascending order."""
        self.settle()
        numbers = unmixed(np.concatenate([NO_KEYS, *(run.keys for run in (*self.runs, *self.stored))]))
        numbers.sort()
        return numbers

    def load(self, numbers: NDArray[np.int64]) -> None:
        """Add many numbers that are not in the set."""
        keys = mixed(numbers)
        keys.sort()
        self._add(keys)

    def _add(self, keys: Keys) -> None:
        add_run(self.runs, SortedRun.of(keys))
        self._count()

    def install(self, stored: Sequence[SortedRun], elsewhere: Iterable[SortedRun] = ()) -> None:
        """Use the runs that the shell stored, and drop the numbers that these contain.

        Args:
            stored: All stored runs of this set.
            elsewhere: Stored runs of another generation, which may have taken some of these numbers.
        """
        self.settle()
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
