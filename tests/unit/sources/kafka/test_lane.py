"""Reads by the lane: messages of the last one stay only where that is asked for. The part in C is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.sources.kafka.lane import FastLane, LaneMessages


def test_messages_of_the_last_read_stay_only_if_asked() -> None:
    """They would be sorted twice."""
    calls: list[str] = []

    def poll(kind: str) -> Any:
        return lambda most, timeout_s: calls.append(kind) or []

    unused: Any = None
    lane = FastLane(unused, 1 << 20)
    reader: Any = SimpleNamespace(poll=poll("poll"), poll_more=poll("more"), groups=0, polled=(0, 0))
    lane._reader = reader
    assert lane.read(0.0) == ([], False)
    lane.read(0.0, more=True)
    lane.read(0.0, more=False)
    assert calls == ["poll", "more", "poll"]


def test_the_newest_message_is_kept_when_a_run_is_sorted() -> None:
    """Its fingerprint is taken after C has given the others up; before that, all are made."""
    made: list[int] = []
    run: Any = SimpleNamespace(
        count=3, message=lambda place: made.append(place) or f"message {place}", sort=lambda *_: "sorted"
    )
    assert str(LaneMessages(run)[-1]) == "message 2"
    assert made == [0, 1, 2]
    messages = LaneMessages(run)
    messages.sort(None, None)
    made.clear()
    assert (str(messages[-1]), made) == ("message -1", [])
