"""The time by which messages are due."""

from __future__ import annotations

from sidecar.core.delays import LASTS_MS, STEP_MS, SteadyClock

NOON_MS = 1_800_000_000_000


def test_it_follows_the_wall_clock() -> None:
    """Drift and small corrections, either way, are followed at once."""
    clock = SteadyClock()
    assert [clock.read(0.0, NOON_MS), clock.read(50.0, NOON_MS + 40), clock.read(60.0, NOON_MS + 9_000)] == [
        NOON_MS,
        NOON_MS + 40,
        NOON_MS + 9_000,
    ]


def test_a_step_back_is_followed_at_once() -> None:
    """Messages wait, even for an hour."""
    clock = SteadyClock()
    clock.read(0.0, NOON_MS)
    assert clock.read(10.0, NOON_MS - 3_600_000) == NOON_MS - 3_600_000


def test_a_step_forward_is_followed_when_it_has_lasted() -> None:
    """Until then time goes on as before."""
    clock, step_ms = SteadyClock(), STEP_MS + 1_000
    clock.read(0.0, NOON_MS)
    assert clock.read(100.0, NOON_MS + 100 + step_ms) == NOON_MS + 100
    assert clock.is_ahead
    almost = LASTS_MS + 99
    assert clock.read(almost, NOON_MS + almost + step_ms) == NOON_MS + almost
    assert clock.read(almost + 1, NOON_MS + almost + 1 + step_ms) == NOON_MS + almost + 1 + step_ms
    assert not clock.is_ahead


def test_a_step_forward_that_is_taken_back_delivers_nothing_early() -> None:
    """An hour ahead for half a minute changes nothing, and another such step has to last anew."""
    clock = SteadyClock()
    clock.read(0.0, NOON_MS)
    for _ in range(2):
        assert clock.read(30_000.0, NOON_MS + 3_630_000) == NOON_MS + 30_000
        assert clock.read(40_000.0, NOON_MS + 40_000) == NOON_MS + 40_000
        assert not clock.is_ahead
