"""Outages, and how soon the daemon tells of each."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.audit import Finding
from tests.support.kafka import KafkaBroker
from tests.support.process import Daemon, wait_until
from tests.support.scene import new_scene, values

FROZEN_S, FAILING_S, HEALED_S = 25.0, 10.0, 20.0
"""Within these seconds a broker that stands still, a receiver that fails, and the end of either is told."""


def state(daemon: Daemon) -> str:
    """The word."""
    return str(daemon.status()["health"]["state"])


def told_after(daemon: Daemon, word: str, within_s: float) -> float:
    """Wait until health is this word; the seconds that it took."""
    begun = time.monotonic()
    wait_until(lambda: state(daemon) == word, within_s, f"it is {word}", detail=daemon.status)
    return time.monotonic() - begun


def outages(broker: KafkaBroker, folder: Path, times: int) -> Finding:
    """The receiver fails, then the broker stands still, that many times: how soon each is told, and its end."""
    begun = time.monotonic()
    seconds: dict[str, list[float]] = {"degraded": [], "stopped": [], "healthy": []}
    with new_scene(broker, folder) as scene, scene.daemon() as daemon:
        scene.send(values("first", 10))
        scene.await_all(daemon)
        for number in range(times):
            scene.receiver.fail("status", status=500)
            scene.send(values(f"failing {number}", 100))
            seconds["degraded"].append(told_after(daemon, "degraded", FAILING_S))
            scene.receiver.faults.clear()
            seconds["healthy"].append(told_after(daemon, "healthy", HEALED_S))
            scene.await_all(daemon)
            broker.freeze()
            try:
                seconds["stopped"].append(told_after(daemon, "stopped", FROZEN_S))
            finally:
                broker.thaw()
            seconds["healthy"].append(told_after(daemon, "healthy", HEALED_S))
            scene.send(values(f"later {number}", 100))
            scene.await_all(daemon)
        daemon.stop()
        found, messages = scene.tally(), len(scene.expected)
    notes = ", ".join(f"*{word}* after {max(waits):.1f} s at most" for word, waits in seconds.items())
    point = "health: the receiver answers 500, then the broker is frozen"
    return Finding(point, 2 * times, messages, found, time.monotonic() - begun, notes)
