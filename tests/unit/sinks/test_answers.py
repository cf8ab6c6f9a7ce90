"""The table of answers: what each status, header and body says about a batch."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.records import FailedRow, Verdict
from sidecar.sinks.answers import PARTIAL_MAX_BYTES, Reply, body_limit, excerpt, judge, retry_after_ms

NOW = 1_700_000_000.0

TABLE = {
    Verdict.ACK: [200, 201, 202, 203, 204, 205, 206, 208, 226, 299],
    Verdict.FAILED: [500, 501, 505, 506, 508, 510],
    Verdict.UNANSWERED: [100, 101, 102, 103, 408, 409, 502, 504, 520, 521, 522, 523, 524, 599],
    Verdict.BUSY: [425, 429, 503, 507, 529],
    Verdict.TOO_LARGE: [413],
    Verdict.REJECT: [400, 422],
    Verdict.HALT: [
        *[300, 301, 302, 303, 304, 307, 308],
        *[
            401,
            402,
            403,
            404,
            405,
            406,
            407,
            410,
            411,
            412,
            414,
            415,
            416,
            417,
            418,
            421,
            423,
            424,
            426,
            428,
            431,
            451,
            499,
        ],
        *[511, 600, 999],
    ],
}


def partial(body: Any, count: int = 3) -> Any:
    """The answer to a 207 with this body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(Reply(207, {}, raw), count, NOW)


@pytest.mark.parametrize("verdict, status", [(v, status) for v, statuses in TABLE.items() for status in statuses])
def test_every_status_has_its_verdict(verdict: Verdict, status: int) -> None:
    """A status means what the contract says, and the answer tells it."""
    answer = judge(Reply(status, {}), 3, NOW)
    assert (answer.verdict, answer.status) == (verdict, status)
    assert str(status) in answer.reason or verdict is Verdict.ACK


def test_a_status_may_mean_something_else() -> None:
    """The configuration moves a status to another kind, and no other."""
    moved = {403: Verdict.FAILED, 431: Verdict.TOO_LARGE}
    answers = [judge(Reply(status, {}), 3, NOW, moved=moved).verdict for status in (403, 431, 404)]
    assert answers == [Verdict.FAILED, Verdict.TOO_LARGE, Verdict.HALT]


def test_headers_that_are_too_large_are_a_matter_of_the_number_of_parts() -> None:
    """Of several parts each half has fewer; those of one part are as long with half of its rows."""
    assert [judge(Reply(431, {}), 9, NOW, parts=parts).verdict for parts in (1, 2)] == [
        Verdict.HALT,
        Verdict.TOO_LARGE,
    ]


@pytest.mark.parametrize(
    ("status", "verdict"), [(500, Verdict.BUSY), (504, Verdict.UNANSWERED), (400, Verdict.REJECT), (401, Verdict.HALT)]
)
def test_a_failure_with_a_wait_is_no_message_s(status: int, verdict: Verdict) -> None:
    """A receiver that asks for time has looked at no message; what may be stored stays so."""
    assert judge(Reply(status, {"retry-after": "3"}), 3, NOW).verdict is verdict


def test_a_207_names_the_failed_rows() -> None:
    """Failed rows come by rising index with retry and reason; what else stands there does not matter."""
    listed = [{"index": 2, "retry": True, "reason": "later", "x": 1}, {"index": 0, "retry": False, "reason": "bad\n"}]
    answer = partial({"failed": listed, "more": []})
    assert answer.verdict is Verdict.PARTIAL
    assert answer.failed == (FailedRow(0, retry=False, reason="bad"), FailedRow(2, retry=True, reason="later"))


def test_a_207_without_failed_rows_is_an_acknowledgement() -> None:
    """An empty list means that all rows were taken."""
    assert partial({"failed": []}).verdict is Verdict.ACK


def test_a_207_may_leave_out_the_reason() -> None:
    """A reason is for people, and an index and a retry are enough."""
    assert partial({"failed": [{"index": 1, "retry": False}]}).failed == (FailedRow(1, retry=False, reason=""),)


@pytest.mark.parametrize(
    "body, word",
    [
        (b"", "is not"),
        (b"[]", "is not"),
        (b"null", "is not"),
        ({}, "is not"),
        ({"failed": None}, "is not"),
        ({"failed": [1]}, "is not"),
        ({"failed": ["x"]}, "is not"),
        ({"failed": [{}]}, "is not"),
        ({"failed": [{"index": 1}]}, "is not"),
        ({"failed": {"index": 1, "retry": True}}, "is not"),
        ({"failed": [{"index": 3, "retry": True}]}, "index 3"),
        ({"failed": [{"index": -1, "retry": True}]}, "index -1"),
        ({"failed": [{"index": True, "retry": True}]}, "index true"),
        ({"failed": [{"index": 1.0, "retry": True}]}, "index 1.0"),
        ({"failed": [{"index": 1, "retry": "yes"}]}, "retry"),
        ({"failed": [{"index": 1, "retry": True}, {"index": 1, "retry": True}]}, "repeated"),
    ],
)
def test_a_malformed_207_is_sent_again(body: Any, word: str) -> None:
    """Nobody knows what was taken, so the batch comes again under the same names; the reason says what is wrong."""
    answer = partial(body)
    assert answer.verdict is Verdict.UNANSWERED
    assert "malformed" in answer.reason
    assert word in answer.reason


def test_a_207_that_is_cut_short_is_malformed() -> None:
    """A body beyond its bound is not half believed."""
    answer = judge(Reply(207, {}, b'{"failed": []}', whole=False), 3, NOW)
    assert answer.verdict is Verdict.UNANSWERED
    assert "longer than" in answer.reason


def test_the_bound_of_a_207_grows_with_the_batch() -> None:
    """5,000 rows can all be named, and yet no batch makes the bound pass 4 MiB."""
    named = json.dumps({"failed": [{"index": i, "retry": False, "reason": "x" * 150} for i in range(5000)]})
    assert body_limit(200, 5000) == body_limit(500, 5000) == 65_536
    assert len(named) <= body_limit(207, 5000)
    assert body_limit(207, 10**9) == PARTIAL_MAX_BYTES


@pytest.mark.parametrize(
    "text, wait_ms",
    [
        ("0", 0),
        ("7", 7_000),
        (" 7 ", 7_000),
        ("299", 299_000),
        ("301", 300_000),
        ("9" * 5000, 300_000),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        (format_datetime(datetime.fromtimestamp(NOW + 20, UTC), usegmt=True), 20_000),
        (format_datetime(datetime.fromtimestamp(NOW - 20, UTC), usegmt=True), 0),
        (format_datetime(datetime.fromtimestamp(NOW + 86_400, UTC), usegmt=True), 300_000),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after_is_read_and_bounded(text: str | None, wait_ms: int | None) -> None:
    """Seconds or a date, five minutes at most, and nothing where it cannot be read."""
    assert retry_after_ms(text, NOW) == wait_ms


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
@pytest.mark.parametrize(
    "form", ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y", "%a, %d %b %Y %T -0000"]
)
def test_a_date_is_in_gmt_whatever_the_zone_of_the_host(monkeypatch: pytest.MonkeyPatch, zone: str, form: str) -> None:
    """Each form of RFC 9110, and one that says that it does not know its zone, names the same instant everywhere."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", zone)
        time.tzset()
        found = retry_after_ms(datetime.fromtimestamp(NOW + 30, UTC).strftime(form), NOW)
    time.tzset()
    assert found == 30_000


def test_retry_after_counts_where_something_is_sent_again() -> None:
    """A wait is taken from retries and partial answers, and from no other answer."""
    headers = {"retry-after": "3"}
    assert judge(Reply(503, headers), 1, NOW).retry_after_ms == 3000
    assert judge(Reply(429, headers), 1, NOW).retry_after_ms == 3000
    assert judge(Reply(207, headers, b'{"failed":[{"index":0,"retry":true}]}'), 1, NOW).retry_after_ms == 3000
    assert judge(Reply(400, headers), 1, NOW).retry_after_ms is None


def test_a_reason_has_the_beginning_of_the_text_on_one_line() -> None:
    """200 characters at most, and control characters, line separators and text direction marks escaped."""
    answer = judge(Reply(500, {}, b"  down\r\n\x1b[31m\x00\xff\xe2\x80\xae" + b"x" * 500), 1, NOW)
    assert answer.reason.startswith("HTTP 500: down\\r\\n\\x1b[31m\\x00\ufffd\\u202exxx")
    assert len(answer.reason) < 240


def test_secrets_are_taken_out_of_a_reason_before_it_is_cut() -> None:
    """A secret that a receiver repeats is not shown, not even its first half."""
    body = b"x" * 195 + b"hunter2-hunter2"
    answer = judge(Reply(401, {}, body), 1, NOW, lambda raw: raw.replace(b"hunter2-hunter2", b"***"))
    assert "hunt" not in answer.reason
    named = json.dumps({"failed": [{"index": 0, "retry": False, "reason": body.decode()}]}).encode()
    answer = judge(Reply(207, {}, named), 1, NOW, lambda raw: raw.replace(b"hunter2-hunter2", b"***"))
    assert "hunt" not in answer.failed[0].reason


def test_a_redirect_says_that_it_is_not_followed() -> None:
    """Who configured the wrong address reads what to correct."""
    assert "redirect" in judge(Reply(302, {"Location": "http://elsewhere/"}), 1, NOW).reason


@settings(max_examples=60, deadline=None)
@given(st.integers(100, 999), st.binary(max_size=300), st.dictionaries(st.sampled_from(["retry-after"]), st.text()))
def test_any_answer_is_judged(status: int, body: bytes, headers: dict[str, str]) -> None:
    """Whatever a receiver writes there is one verdict, a printable reason, and rows only in a partial one."""
    answer = judge(Reply(status, headers, body), 2, NOW)
    assert answer.reason.isprintable()
    assert bool(answer.failed) == (answer.verdict is Verdict.PARTIAL)
    assert len(excerpt(body)) <= 200 * 10
