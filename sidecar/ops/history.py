"""The last half hour of a daemon in memory: rates, lag and memory, a few bytes for each instant."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sidecar import threads
from sidecar.ops.snapshot import StatusSnapshot

EVERY_S = 10.0
KEPT_S = 1_800.0


class HistoryPoint(NamedTuple):
    """One instant."""

    consumed: float
    """Messages/s since the previous point."""
    delivered: float
    """Messages/s since the previous point."""
    lag: int | None
    held_bytes: int


class History:
    """Samples the daemon every 10 s in a thread of its own, between `open` and `close`."""

    def __init__(self, snapshot: Callable[[], StatusSnapshot], every_s: float = EVERY_S) -> None:
        self._snapshot = snapshot
        self._every_s = every_s
        self._points: deque[HistoryPoint] = deque(maxlen=int(KEPT_S / EVERY_S))
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        self._thread = threads.start(self._run, "history")

    def close(self) -> None:
        """A second call does nothing."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def points(self) -> Sequence[HistoryPoint]:
        """The last half hour, oldest first; from any thread."""
        return tuple(self._points)

    def _run(self) -> None:
        before, before_s = self._snapshot(), time.monotonic()
        while not self._closed.wait(self._every_s):
            now, now_s = self._snapshot(), time.monotonic()
            self._points.append(_point(before, now, now_s - before_s))
            before, before_s = now, now_s


def _point(before: StatusSnapshot, now: StatusSnapshot, seconds: float) -> HistoryPoint:
    # In Spark's status, a partition that leaves takes its counts along: a decrease is no rate.
    consumed, delivered = (
        max(0, getattr(now.totals, name) - getattr(before.totals, name)) / seconds for name in ("consumed", "delivered")
    )
    return HistoryPoint(consumed, delivered, now.lag, now.held_bytes)
