"""The last half hour: what a point has, how many are kept, and that looking ends."""

from __future__ import annotations

import threading
from dataclasses import replace

from sidecar.core.books import Books
from sidecar.ops.history import EVERY_S, KEPT_S, History
from sidecar.ops.snapshot import StatusSnapshot
from tests.support.process import wait_until

NOW = StatusSnapshot("g", "2026-01-01T00:00:00+00:00", "0.1.0", live=True, lag=7, held_bytes=9)


class Looked:
    """A daemon that consumes 100 messages from each look to the next."""

    def __init__(self) -> None:
        self.looks = 0

    def snapshot(self) -> StatusSnapshot:
        """The daemon at this look; after 300 of them it was started again."""
        self.looks += 1
        return replace(NOW, totals=Books(100 * (self.looks % 300), 50 * (self.looks % 300)))


def test_rates_are_of_the_time_between() -> None:
    """Messages a second since the look before, and lag and memory as they are."""
    looked = Looked()
    history = History(looked.snapshot, every_s=0.05)
    history.open()
    wait_until(lambda: len(history.points()) > 3, 10, "some points")
    history.close()
    point = history.points()[0]
    assert 0 < point.delivered * 2 == point.consumed <= 100 / 0.05
    assert (point.lag, point.held_bytes) == (7, 9)


def test_half_an_hour_is_kept_and_no_rate_is_negative() -> None:
    """However long it runs, the points are as many as half an hour has; counts that start over are no rate."""
    looked = Looked()
    history = History(looked.snapshot, every_s=0.0001)
    history.open()
    wait_until(lambda: looked.looks > 700, 30, "many looks")
    history.close()
    assert len(history.points()) == KEPT_S / EVERY_S
    assert all(point.consumed >= 0 <= point.delivered for point in history.points())
    assert not any(thread.name == "history" for thread in threading.enumerate())
