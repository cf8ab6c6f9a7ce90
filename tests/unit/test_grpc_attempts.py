"""Names of requests: one at a time for what is out, the first again when it is free, and none where none are wanted."""

from __future__ import annotations

from sidecar.sources.grpc_attempts import Attempts


def test_a_name_is_used_again_when_nothing_is_out_under_it() -> None:
    """While the request goes on, and while a message that came under it is unsettled, the next one has another."""
    attempts = Attempts("place")
    first, other = attempts.begin("t on b"), attempts.begin("u on b")
    attempts.hold(first)
    second = attempts.begin("t on b")
    attempts.end(first)
    third = attempts.begin("t on b")
    attempts.end(first)
    names = [attempts.name(use) for use in (first, other, second, third, attempts.begin("t on b"))]
    assert names == ["place-0", "place-0", "place-1", "place-2", "place-0"]


def test_without_order_no_request_has_a_name() -> None:
    """What is out matters not then."""
    attempts = Attempts("")
    assert [attempts.name(attempts.begin("t on b")) for _ in range(3)] == ["", "", ""]
    assert not attempts.in_order
