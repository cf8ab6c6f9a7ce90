"""Returns freed memory to the kernel. glibc keeps it: the client's threads free 20 to 100 MB when reading ends."""

from __future__ import annotations

import ctypes

EVERY_S = 1.0
MANY, FEW = 1_000, 100
TRIMS = 2
"""Trims in a row: with one, 3 runs of 12 kept 4 MiB more (`benchmarks.memory`: 8 tags, 1 byte, 1 partition, ids); with
two, 0 of 10."""


class Heap:
    """Trims the heap when reading pauses: many messages came since the last time, few of them in the last second."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        self._look_at_s = 0.0
        self._read = self._trimmed = self._left = 0

    def tend(self, now_s: float, read: int) -> None:
        """Trim if necessary; call it often. A trim takes some 15 ms for each 100 MB of heap.

        Args:
            now_s: Monotonic time.
            read: Messages read since the start.
        """
        if self._trim is None or now_s < self._look_at_s:
            return
        rests, self._read = read - self._read < FEW, read
        self._look_at_s = now_s + EVERY_S
        if rests and read - self._trimmed >= MANY:
            self._trimmed, self._left = read, TRIMS
        if rests and self._left:
            self._left -= 1
            self._trim(0)
