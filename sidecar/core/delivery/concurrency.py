"""The number of concurrent requests, learned. Imported only if it is to be."""

from __future__ import annotations

from math import inf, sqrt
from statistics import median

CONCURRENCY_FIRST = 4.0
WINDOW_MIN, SAME_SIZE_MIN = 5, 3
"""Answers after which the limit may change, and answers of one size that have a median."""
SLOWER, NOT_FASTER, BUSY_CUT = 1.5, 0.9, 0.7
"""Factors: of the lowest time, above which the limit falls; of the time, if half the limit is as slow; of a refusal."""
LOWS_MS, HALVE_EVERY_MS = 60_000, 30_000
LOW_EACH_MS = 1_000
"""Time within which medians are kept as one: a fast receiver has a thousand windows a second."""
HALVED_MIN = 6
"""Limit up to which half of it is not tried."""


class LearnedConcurrency:
    """A limit of concurrent requests that is learned from the times to their answers.

    It doubles until these times rise, and then keeps near the point at which they do. Only answers to requests that
    were sent after the last change count, in windows. Each size of batches, by powers of two, is compared with itself,
    with its lowest median of the last minute: a slow destination makes larger batches. Twice a minute half the limit is
    tried: if the times do not fall, what was lowest is too old to compare with.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.at_once = min(CONCURRENCY_FIRST, float(most))
        self._window: dict[int, list[float]] = {}
        """Times to answers since the last change, in milliseconds, by size."""
        self._lows: dict[int, list[tuple[float, float]]] = {}
        """Lowest medians of the seconds of the last minute by size, each with its time."""
        self._searches = True
        """Whether the times have not risen yet."""
        self._reached = False
        """Whether the limit was reached since the last change."""
        self._changed_ms = -inf
        self._halve_at_ms = inf
        self._before: tuple[float, dict[int, float]] | None = None
        """The limit and the medians before the half that is being tried."""

    def is_full(self, busy: int) -> bool:
        """Whether as many requests as may be are being sent."""
        full = busy >= int(self.at_once)
        self._reached |= full
        return full

    def refused(self, began_ms: float, now_ms: float) -> None:
        """Record that a request sent at `began_ms` was too much."""
        if began_ms >= self._changed_ms:
            self._searches = False
            self._change(BUSY_CUT, now_ms)

    def accepted(self, rows: int, began_ms: float, now_ms: float) -> None:
        """Record the answer to a request sent at `began_ms`."""
        if began_ms < self._changed_ms:
            return
        self._window.setdefault(rows.bit_length(), []).append(now_ms - began_ms)
        number = sum(map(len, self._window.values()))
        if 2 * number < max(2 * WINDOW_MIN, self.at_once):
            return
        medians = {size: median(times) for size, times in self._window.items() if len(times) >= SAME_SIZE_MIN}
        if 2 * sum(len(self._window[size]) for size in medians) < max(number, 2 * WINDOW_MIN, self.at_once):
            return  # most are of sizes of which there are too few
        self._halve_at_ms = min(self._halve_at_ms, now_ms + HALVE_EVERY_MS)
        if self._before is None:
            self._judge(medians, now_ms)
        else:
            self._put_back(*self._before, medians, now_ms)

    def _judge(self, medians: dict[int, float], now_ms: float) -> None:
        ratios = []
        for size, time_ms in medians.items():
            lows = [low for low in self._lows.get(size, ()) if low[0] > now_ms - LOWS_MS]
            if lows and now_ms - lows[-1][0] < LOW_EACH_MS:
                lows[-1] = (lows[-1][0], min(lows[-1][1], time_ms))
            else:
                lows.append((now_ms, time_ms))
            self._lows[size] = lows
            ratios.append(time_ms / min(low for _, low in lows))
        slower = median(ratios)
        if slower > SLOWER:
            self._searches = False
            self._change(max(0.5, min(0.9, SLOWER / slower)), now_ms)
        elif now_ms >= self._halve_at_ms and self.at_once > HALVED_MIN:
            self._before = self.at_once, medians
            self._change(0.5, now_ms)
        elif self._reached:
            self._change(2.0 if self._searches else 1 + max(1.0, sqrt(self.at_once) / 2) / self.at_once, now_ms)
        else:
            self._window = {}

    def _put_back(self, limit: float, before: dict[int, float], medians: dict[int, float], now_ms: float) -> None:
        """Judge the half that was tried, and continue from the limit before it."""
        self._before, self._halve_at_ms = None, now_ms + HALVE_EVERY_MS
        ratios = [time_ms / before[size] for size, time_ms in medians.items() if size in before]
        faster = median(ratios) if ratios else 1.0
        if faster > NOT_FASTER:
            self._lows |= {size: [(now_ms, time_ms)] for size, time_ms in medians.items()}
            faster = 1.0
        self.at_once = limit
        self._change(max(0.5, min(1.0, SLOWER * faster)), now_ms)

    def _change(self, factor: float, now_ms: float) -> None:
        self.at_once = min(float(self._most), max(1.0, self.at_once * factor))
        self._window, self._reached, self._changed_ms = {}, False, now_ms
