"""Every promise of the source on remoting over seeded schedules; and mistakes that break them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress
from sidecar.sources.rocketmq.remoting.commits import QueueCommits
from sidecar.sources.rocketmq.remoting.pulling import QueueProofs
from sidecar.sources.rocketmq.remoting.start import QueueStartOffsets
from sidecar.sources.rocketmq.wire.requests import read_offset
from tests.simulation.remoting import run_remoting

SCHEDULES = 25
SEARCHED = 300
"""Schedules within which a mistake must show."""


def test_no_message_of_the_present_topic_is_lost_or_twice() -> None:
    """Crashes, killed brokers, resets, topics made again and clocks put right: all arrives, and again when wanted."""
    worlds = [run_remoting(seed) for seed in range(SCHEDULES)]
    assert sum(world.crashes for world in worlds) > SCHEDULES
    assert sum(world.resets for world in worlds) > SCHEDULES
    assert sum(world.made for world in worlds) > SCHEDULES // 2


Wrong = Callable[[pytest.MonkeyPatch], None]


def read_on_in_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what stands at a mark for what was read there."""
    monkeypatch.setattr(QueueMark, "stands_in", lambda self, messages: True)


def look_at_nothing_that_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a message beyond the old end, however many new ones there are."""
    monkeypatch.setattr("sidecar.sources.rocketmq.remoting.pulls.LOOK_EVERY_S", 1e9)


def believe_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each older offset for one that the broker forgot."""
    monkeypatch.setattr(QueueProgress, "was_set_back", lambda self, committed, boot: False)


def overhear_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the answer to a question for a mark when it tells of a reset instead."""
    was_reset: Callable[..., bool] = QueueProofs.was_reset

    def wrong(self: QueueProofs, one: Any, asked: int, *rest: Any) -> bool:
        return (one.mark is None or asked != one.mark.offset) and was_reset(self, one, asked, *rest)

    monkeypatch.setattr(QueueProofs, "was_reset", wrong)


def trust_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a topic that was made again at the first message stored since."""
    real: Callable[..., Any] = QueueStartOffsets._one

    def wrong(self: QueueStartOffsets, tp: Any, facts: Any, progress: Any, reset: Any) -> Any:
        if facts.is_same or not progress or not progress.mark:
            return real(self, tp, facts, progress, reset)
        (frame,) = self._brokers.ask([(tp, self._asks.at_time(tp, progress.mark.stored_ms))])
        at = min(read_offset(frame), facts.high) if frame else facts.low
        return self._fresh(tp, max(at, facts.low)), ()

    monkeypatch.setattr(QueueStartOffsets, "_one", wrong)


def go_on_after_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a queue lost its end, count what was read as settled."""
    real: Callable[..., Any] = QueueStartOffsets._one

    def wrong(self: QueueStartOffsets, tp: Any, *facts: Any) -> Any:
        start, marks = real(self, tp, *facts)
        is_cut = not start.resumed and marks and marks[0].offset >= start.read_from
        return (self._fresh(tp, marks[0].offset + 1) if is_cut else start), marks

    monkeypatch.setattr(QueueStartOffsets, "_one", wrong)


def keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit to the broker alone."""
    rows: Callable[..., Any] = QueueCommits._rows
    monkeypatch.setattr(QueueCommits, "_rows", lambda self, items: ({}, rows(self, items)[1]))


FIRST: dict[Wrong, int] = {
    believe_the_folder: 215, look_at_nothing_that_rests: 44, overhear_resets: 15, trust_clocks: 14,
}  # fmt: skip
"""The first seed of those that are not found soon."""


@pytest.mark.parametrize(
    "mistake",
    [
        read_on_in_another_topic, look_at_nothing_that_rests, believe_the_folder, overhear_resets,
        trust_clocks, go_on_after_what_was_read, keep_nothing,
    ],
)  # fmt: skip
def test_a_mistake_is_found(mistake: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes breaks a promise in some schedule."""
    mistake(monkeypatch)
    monkeypatch.setattr("tests.simulation.remoting.ROUNDS_MAX", 500)
    first = FIRST.get(mistake, 0)
    with pytest.raises(AssertionError):
        for seed in range(first, first + SEARCHED):
            run_remoting(seed)
