"""Names of requests: one at a time for what is out, the first again when it is free, and none where none are wanted."""

from __future__ import annotations

from sidecar.sources.grpc_attempts import Attempts


def test_a_name_is_used_again_when_nothing_is_out_under_it() -> None:
    """While the request goes on, and while a message that came under it is unsettled, the next one has another."""
    attempts = Attempts("place")
    first, other = attempts.begin("t on b"), attempts.begin("u on b")
    attempts.hold(first)
    second = attempts.begin("t on b")
    attempts.answered(first, 1, wholly=True)
    third = attempts.begin("t on b")
    attempts.end(first)
    names = [attempts.name(use) for use in (first, other, second, third, attempts.begin("t on b"))]
    assert names == ["place-0", "place-0", "place-1", "place-2", "place-0"]


def test_a_name_that_may_have_left_something_comes_first() -> None:
    """It brought all it was asked for, or something while others were open: more may be out, of a life before too."""
    attempts = Attempts("place")
    for use in [attempts.begin("t on b") for _ in range(16)]:
        attempts.answered(use, 32 if use[1] == 7 else int(use[1] == 12), wholly=use[1] != 7)
    found = []
    for came in (1, 0, 0):
        found.append(attempts.begin("t on b"))
        attempts.answered(found[-1], came, wholly=True)
    assert [use[1] for use in found] == [7, 12, 0]


def test_without_order_no_request_has_a_name() -> None:
    """What is out matters not then."""
    attempts = Attempts("")
    uses = [attempts.begin("t on b") for _ in range(3)]
    assert [attempts.name(use) for use in uses] == ["", "", ""]
    assert not attempts.in_order
