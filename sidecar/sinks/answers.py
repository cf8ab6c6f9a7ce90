"""The table of answers: the meaning of status, headers and body for a batch. It uses no socket and no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TypeAlias

import orjson

from sidecar.core.backoff import RETRY_AFTER_MAX_MS
from sidecar.core.records import Answer, FailedRow, Verdict

Redact: TypeAlias = Callable[[bytes], bytes]

ANSWER_MAX_BYTES = 64 * 1024
PARTIAL_ROW_MAX_BYTES = 256
PARTIAL_MAX_BYTES = 4 * 1024 * 1024
EXCERPT_MAX_CHARS = 200

HEADERS_TOO_LARGE = 431
_KINDS: Mapping[Verdict, tuple[int, ...]] = {
    Verdict.REJECT: (400, 422),
    Verdict.TOO_LARGE: (413, HEADERS_TOO_LARGE),
    Verdict.FAILED: (500, 501, 505, 506, 508, 510),
    # 409 also means that an earlier request with the same name is still being processed (drafts of Idempotency-Key).
    Verdict.UNANSWERED: (408, 409),
    Verdict.BUSY: (425, 429, 503, 507, 529),
    Verdict.HALT: (511,),
}
_BY_STATUS = {status: verdict for verdict, statuses in _KINDS.items() for status in statuses}
_BY_CLASS = {1: Verdict.UNANSWERED, 2: Verdict.ACK, 3: Verdict.HALT, 4: Verdict.HALT, 5: Verdict.UNANSWERED}
Moved: TypeAlias = Mapping[int, Verdict]
"""Statuses to which the configuration gives another meaning."""


class MalformedError(ValueError):
    """The body of a 207 does not list the failed rows."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it was received.

    Args:
        body: The beginning of the body, up to `body_limit`.
        whole: Whether that is the complete body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    whole: bool = True


def verdict_of(status: int, moved: Moved = MappingProxyType({})) -> Verdict:
    """The verdict of a status alone; a status unknown to HTTP does not come from the receiver."""
    return moved.get(status) or _BY_STATUS.get(status) or _BY_CLASS.get(status // 100, Verdict.HALT)


def body_limit(status: int, count: int) -> int:
    """Limit of an answer's body in bytes; a 207 may need more, as it lists rows of `count`."""
    if status == 207:
        return min(ANSWER_MAX_BYTES + PARTIAL_ROW_MAX_BYTES * count, PARTIAL_MAX_BYTES)
    return ANSWER_MAX_BYTES


def judge(
    reply: Reply, count: int, now: float, redact: Redact = bytes, *, parts: int = 1, moved: Moved = MappingProxyType({})
) -> Answer:
    """The answer for a batch of `count` rows in `parts` parts.

    Args:
        now: Seconds since the epoch, for a `Retry-After` that is a date.
        redact: Removes secrets from the receiver's text, which may repeat them.
    """
    status = reply.status
    after_ms = retry_after_ms(reply.headers.get("retry-after"), now)
    if status == 207:
        return _judge_partial(reply, count, after_ms, redact)
    verdict = verdict_of(status, moved)
    if status == HEADERS_TOO_LARGE and parts == 1 and status not in moved:
        verdict = Verdict.HALT  # the headers of one part are the same for each of its halves
    if verdict is Verdict.FAILED and after_ms is not None:
        verdict = Verdict.BUSY
    if verdict is Verdict.ACK:
        return Answer(verdict, status=status)
    reason = f"HTTP {status}"
    if status // 100 == 3:
        reason += " (redirects are not followed: correct the url)"
    text = excerpt(redact(reply.body))
    return Answer(
        verdict,
        f"{reason}: {text}" if text else reason,
        status,
        retry_after_ms=after_ms if verdict.is_retry else None,
    )


def _judge_partial(reply: Reply, count: int, after_ms: int | None, redact: Redact) -> Answer:
    try:
        if not reply.whole:
            raise MalformedError(f"the body is longer than {len(reply.body)} bytes")
        failed = parse_failed(reply.body, count, redact)
    except MalformedError as error:
        return Answer(Verdict.UNANSWERED, f"HTTP 207 malformed: {error}", 207, retry_after_ms=after_ms)
    if not failed:
        return Answer(Verdict.ACK, status=207)
    reason = f"HTTP 207: {len(failed)} of {count} rows failed"
    return Answer(Verdict.PARTIAL, reason, 207, retry_after_ms=after_ms, failed=failed)


def parse_failed(body: bytes, count: int, redact: Redact = bytes) -> tuple[FailedRow, ...]:
    """The failed rows that a 207 lists, by rising index.

    Raises:
        MalformedError: It is not the JSON of the contract, or an index is out of range or repeated.
    """
    try:
        listed = orjson.loads(body)["failed"]
        rows = [_failed_row(item, count, redact) for item in listed]
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, MalformedError):
            raise
        raise MalformedError('the body is not {"failed": [{"index": 0, "retry": false, "reason": "why"}]}') from error
    if len({row.index for row in rows}) < len(rows):
        raise MalformedError("an index is repeated")
    return tuple(sorted(rows, key=lambda row: row.index))


def _failed_row(item: dict[str, object], count: int, redact: Redact) -> FailedRow:
    index, retry, reason = item["index"], item["retry"], item.get("reason", "")
    if type(index) is not int or not 0 <= index < count:
        raise MalformedError(f"index {excerpt(orjson.dumps(index))} is not one of the {count} rows")
    if not isinstance(retry, bool):
        raise MalformedError(f"retry of index {index} must be true or false")
    return FailedRow(index, retry, excerpt(redact(str(reason).encode())))


def retry_after_ms(text: str | None, now: float) -> int | None:
    """Milliseconds of a `Retry-After`, seconds or a date, at most 5 minutes; None if it is missing or invalid."""
    if text is None:
        return None
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        return min(int(text[:10]) * 1000, RETRY_AFTER_MAX_MS)
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:  # asctime's form names no zone, nor does -0000: they are GMT, not this host's time
            date = date.replace(tzinfo=UTC)
        wait_ms = int((date.timestamp() - now) * 1000)
    except (ValueError, OverflowError, OSError):
        return None
    return max(0, min(wait_ms, RETRY_AFTER_MAX_MS))


def excerpt(raw: bytes) -> str:
    """The first 200 characters on one line, without control characters of a terminal."""
    text = raw[: 4 * EXCERPT_MAX_CHARS].decode("utf-8", "replace").strip()[:EXCERPT_MAX_CHARS]
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
