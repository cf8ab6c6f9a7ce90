"""Attempt ids: which one a request takes."""

from __future__ import annotations

from sidecar.sources.grpc_attempts import Attempts


def test_an_id_is_used_again_when_nothing_is_unacknowledged_under_it() -> None:
    """While the request goes on, and while a message that came under it is unsettled, the next one takes another."""
    attempts = Attempts("place")
    first, other = attempts.begin("t on b"), attempts.begin("u on b")
    assert first is not None
    attempts.hold(first)
    second = attempts.begin("t on b")
    attempts.answered(first, 1, wholly=True)
    third = attempts.begin("t on b")
    attempts.end(first)
    names = [attempts.attempt_id(use) for use in (first, other, second, third, attempts.begin("t on b"))]
    assert names == ["place-0", "place-0", "place-1", "place-2", "place-0"]


def test_an_id_under_which_more_may_be_unacknowledged_comes_first() -> None:
    """It brought all that was asked for, or something while other requests were open."""
    attempts = Attempts("place")
    for number, use in enumerate([attempts.begin("t on b") for _ in range(16)]):
        attempts.answered(use, 32 if number == 7 else int(number == 12), wholly=number != 7)
    found = []
    for came in (1, 0, 0):
        found.append(attempts.begin("t on b"))
        attempts.answered(found[-1], came, wholly=True)
    assert [attempts.attempt_id(use) for use in found] == ["place-7", "place-12", "place-0"]


def test_without_order_no_request_has_an_id() -> None:
    """The broker blocks no queue then."""
    attempts = Attempts("")
    uses = [attempts.begin("t on b") for _ in range(3)]
    assert [attempts.attempt_id(use) for use in uses] == ["", "", ""]
    assert not attempts.in_order
