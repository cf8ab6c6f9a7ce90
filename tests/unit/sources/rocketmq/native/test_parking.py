"""A limit of batches that wait for the daemon: the next one goes on as soon as one ends. No library."""

from __future__ import annotations

import threading
import time

import pytest

from sidecar.sources.rocketmq.native.child import parking
from sidecar.sources.rocketmq.native.child.parking import Turns


def test_a_batch_that_ends_lets_the_next_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not after the time that ends the wait for one that is stuck."""
    monkeypatch.setattr(parking, "STUCK_S", 10.0)
    turns, entered = Turns(1), threading.Event()
    turns.enter()

    def enter() -> None:
        turns.enter()
        entered.set()

    waiting, begun_s = threading.Thread(target=enter), time.monotonic()
    waiting.start()
    assert not entered.wait(0.1)
    assert turns.count == 1
    turns.leave(1)
    waiting.join(30)
    assert time.monotonic() - begun_s < 8
    assert turns.count == 1


def test_a_batch_that_is_stuck_keeps_no_other_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in flight at a crash may be in more batches now; until then, the thread that waits takes no time."""
    monkeypatch.setattr(parking, "STUCK_S", 0.3)
    turns = Turns(1)
    turns.enter()
    begun_s, cpu_s = time.monotonic(), time.thread_time()
    turns.enter()
    assert time.monotonic() - begun_s >= 0.3
    assert time.thread_time() - cpu_s < 0.1
    assert turns.count == 2
