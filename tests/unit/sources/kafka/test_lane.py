"""Reads by the lane: messages of the last one stay only where that is asked for. The part in C is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.sources.kafka.lane.lane import Lane


def test_messages_of_the_last_read_stay_only_if_asked() -> None:
    """They would be sorted twice."""
    calls: list[str] = []

    def poll(kind: str) -> Any:
        return lambda most, timeout_s: calls.append(kind) or []

    unused: Any = None
    lane = Lane(unused, 1 << 20)
    reader: Any = SimpleNamespace(poll=poll("poll"), poll_more=poll("more"), groups=0, polled=(0, 0))
    lane._reader = reader
    assert lane.read(0.0) == ([], False)
    lane.read(0.0, more=True)
    lane.read(0.0, more=False)
    assert calls == ["poll", "more", "poll"]
