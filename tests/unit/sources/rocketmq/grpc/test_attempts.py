"""Attempt ids: which ones requests take, and for how many messages they ask."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.sources.rocketmq.grpc.leases import Attempts

WHERE = "t on b"
QUEUES = 2


def asked(attempts: Attempts, came: Sequence[int] = (), *, full: bool = False, cut: bool = False) -> list[str]:
    """The ids of requests that are made now, each of which brings messages of these queues, acknowledged at once."""
    uses = attempts.free(WHERE, QUEUES)
    for use in uses:
        attempts.begin_request(use)
    for use in uses:
        attempts.answered(use, came, wholly=not full, cut=cut)
    return [attempts.attempt_id(use) for use in uses]


def test_in_doubt_all_ids_are_asked_for_and_then_one() -> None:
    """An id for each queue and one more; two answers that are not full show that an earlier process left nothing."""
    attempts = Attempts("place")
    every = ["place-0", "place-1", "place-2"]
    assert [asked(attempts, [0], full=True), asked(attempts, [0]), asked(attempts, [0])] == [every, every, every]
    assert asked(attempts, [0]) == ["place-0"]


def test_an_id_that_brings_nothing_is_not_doubted() -> None:
    """The broker had looked at every queue."""
    attempts = Attempts("place")
    assert len(asked(attempts)) == QUEUES + 1
    assert asked(attempts) == ["place-0"]


def test_requests_that_wait_are_not_doubted() -> None:
    """What they bring is known."""
    attempts = Attempts("place")
    for use in attempts.free(WHERE, QUEUES):
        attempts.begin_request(use)
    assert not attempts.is_doubted(WHERE)
    assert not attempts.free(WHERE, QUEUES)


def test_a_request_that_was_cut_off_makes_its_id_doubted() -> None:
    """Messages that did not get through are unacknowledged under it; it comes first."""
    attempts = Attempts("place")
    asked(attempts)
    assert asked(attempts, cut=True) == ["place-0"]
    assert attempts.is_doubted(WHERE)
    assert asked(attempts) == ["place-0", "place-1", "place-2"]


def test_an_id_is_used_again_when_nothing_is_unacknowledged_under_it() -> None:
    """While a message that came under it is unsettled, the next request takes another."""
    attempts = Attempts("place")
    asked(attempts)
    (first,) = attempts.free(WHERE, QUEUES)
    attempts.begin_request(first)
    attempts.hold(first)
    attempts.answered(first, [0], wholly=False, cut=False)
    assert asked(attempts, [1]) == ["place-1"]
    attempts.end_request(first)
    assert asked(attempts) == ["place-0"]


def test_a_request_asks_for_few_messages_where_each_is_of_another_queue() -> None:
    """Of 8 queues at the most, by what the last answer brought."""
    attempts = Attempts("place")
    asked(attempts)
    assert attempts.most(WHERE) == 8
    asked(attempts, [0, 0, 0, 1, 1, 1])
    assert attempts.most(WHERE) == 24


def test_without_order_no_request_has_an_id() -> None:
    """The broker blocks no queue then."""
    attempts = Attempts("")
    attempts.begin_request(None)
    attempts.answered(None, [], wholly=True, cut=False)
    assert attempts.attempt_id(None) == ""
    assert not attempts.in_order
