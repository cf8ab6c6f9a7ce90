"""Waits, and the guard that doubts the receiver."""

from __future__ import annotations

import pytest

from sidecar.core.backoff import RETRY_AFTER_MAX_MS, Backoff
from sidecar.core.delivery.refusals import Receiver
from sidecar.core.records import TopicPartition


def test_waits_double_up_to_the_bound() -> None:
    """The bound of the wait doubles with each failed send and stays at the maximum."""
    backoff = Backoff(200, 5_000)
    assert [backoff.wait_ms(attempt, 1.0) for attempt in (1, 2, 3, 6, 1_000)] == [200, 400, 800, 5_000, 5_000]


def test_jitter_takes_any_share_of_the_bound() -> None:
    """Chance decides between no wait and the whole bound."""
    backoff = Backoff(200, 5_000)
    assert backoff.wait_ms(3, 0.0) == 0
    assert backoff.wait_ms(3, 0.25) == 200


def test_retry_after_is_honoured_within_five_minutes() -> None:
    """What the receiver asks for is waited at least, up to a tenth longer, and never more than 5 minutes of it."""
    backoff = Backoff(200, 5_000)
    assert [backoff.wait_ms(1, jitter, 7_000) for jitter in (0.0, 0.5, 1.0)] == pytest.approx([7_000, 7_350, 7_700])
    assert backoff.wait_ms(1, 1.0, 10) == 200
    assert backoff.wait_ms(1, 0.0, 10**9) == RETRY_AFTER_MAX_MS


TP = TopicPartition("t", 0)


def test_guard_trips_beyond_a_tenth() -> None:
    """100 refused of 1,000 are the messages' fault, 101 are the receiver's."""
    guard = Receiver()
    guard.count_taken(899, ())
    for offset in range(100):
        guard.count_refused((TP, offset))
    assert not guard.refuses
    guard.count_refused((TP, 100))
    assert guard.refuses


def test_guard_forgets_what_is_long_ago() -> None:
    """Refusals spread thinly over many messages never trip it."""
    guard = Receiver()
    for offset in range(1_000):
        guard.count_refused((TP, offset))
        guard.count_taken(15, ())
    assert not guard.refuses


def tripped() -> Receiver:
    """A guard that was tripped by the message at 100."""
    guard = Receiver()
    for offset in range(101):
        guard.count_refused((TP, offset))
    return guard


def test_guard_lets_go_when_nine_tenths_are_taken_again() -> None:
    """A few messages taken are not enough while others are still refused."""
    guard = tripped()
    guard.count_refused((TP, 101))
    guard.count_taken(17, ())
    assert guard.refuses
    guard.count_taken(1, ())
    assert not guard.refuses


def test_guard_counts_a_message_by_its_last_answer() -> None:
    """However often a message was refused while tripped, taken it speaks for the receiver; poison stays one message."""
    guard = tripped()
    for _ in range(1_000):
        for offset in range(100, 120):
            guard.count_refused((TP, offset))
    for offset in range(100, 119):
        assert guard.refuses or offset > 117
        guard.count_taken(1, [(TP, offset)])
    assert not guard.refuses


def test_guard_forgets_a_partition() -> None:
    """What is refused to another owner now does not count here."""
    guard = tripped()
    for offset in range(20):
        guard.count_refused((TP, offset))
    guard.forget_partition(TP)
    guard.count_taken(1, ())
    assert not guard.refuses
