"""Answers of receivers of any bytes: one error, and the same answer however its bytes arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.sinks.response import InvalidError, Response

PIECES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204\r\n", b"HTTP/1.1 103 E\r\n",
        b"HTTP/1.1 101 S\r\n", b"HTTP/1.1 ", b"099 X\r\n", b"Content-Length: 2\r\n", b"Content-Length: ",
        b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Connection: close\r\n",
        b"Connection: keep-alive\r\n", b"X: y\r\n", b" y\r\n", b"\r\n", b"\n", b"\r", b"ok", b"2\r\nok\r\n", b"0\r\n",
        b"0\r\n\r\n", b"2;a\r\n", b"-1\r\n", b"\0", b"\xff",
    ]
)  # fmt: skip
ANSWERS = st.lists(PIECES | st.binary(max_size=3), max_size=12).map(b"".join)


def read(segments: list[bytes]) -> tuple[object, ...]:
    """What is found in these segments and the end of the connection."""
    response, error = Response(lambda _: 100), ""
    try:
        for segment in [*filter(None, segments), b""]:
            if not response.ended:
                response.feed(segment)
    except InvalidError as invalid:
        error = type(invalid).__name__
    return error, response.status, bytes(response.body), response.ended, response.whole


@settings(max_examples=300, deadline=None)
@given(ANSWERS, st.lists(st.integers(0, 100), max_size=5))
def test_an_answer_does_not_depend_on_its_segments(raw: bytes, cuts: list[int]) -> None:
    """It has ended or is an error, and the same in one segment, in some, and byte by byte."""
    at = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    found = read([raw])
    assert bool(found[0]) != found[3]
    assert read([raw[a:b] for a, b in pairwise(at)]) == found
    assert read([raw[i : i + 1] for i in range(len(raw))]) == found


@pytest.mark.parametrize("size, whole", [(99, True), (100, True), (101, False), (5000, False)])
def test_a_body_is_kept_up_to_its_limit(size: int, whole: bool) -> None:
    """The rest is not read, and the connection not used again."""
    response = Response(lambda _: 100)
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
    assert (response.ended, response.whole, response.reusable) == (True, whole, whole)
    assert len(response.body) == min(size, 100)
