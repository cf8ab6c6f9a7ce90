"""Values counted in buckets. Counts only."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Distribution(NamedTuple):
    """Values by bucket: one count for each upper bound, and one for larger values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Sum of the values."""


class Histogram:
    """Collects values; one thread writes, any may take `read`.

    Args:
        bounds: Upper bounds of the buckets, rising.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Distribution:
        """The values counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)
