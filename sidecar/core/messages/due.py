"""The due time of a message, from its content only: never from a clock, so that a replay takes the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from sidecar.core.messages.fields import Field, Raw
from sidecar.core.messages.instants import END_MS, delay_text, instant_text, parse_delay, parse_instant
from sidecar.core.messages.tags import Memo
from sidecar.core.records import Columns, Message, TopicPartition

WRITTEN_MAX = 4_096
"""Number of due times that are remembered: delays are few, and of times to the millisecond the last ones repeat."""
SHOWN_MAX = 60
"""Characters of a value that a reason shows."""

Due: TypeAlias = int | str | None
"""When a message is due, in epoch milliseconds; why it becomes a dead letter; or None if it is not delayed."""
ReadDue: TypeAlias = Callable[[TopicPartition, Sequence[Message]], Sequence[Due]]


@dataclass(frozen=True, slots=True)
class DueRules:
    """How the due time of a message is read, and what happens if it is malformed or too late.

    Args:
        field: The field with the due time.
        topics: A fixed delay in milliseconds for topics; the field of a message wins over it.
        max_ms: The longest time from a message's timestamp to its due time.
        beyond_max: What becomes of a message that is due later: a dead letter; held for `max_ms`, and without a
            timestamp a dead letter; or on its way at once.
        malformed: What becomes of a message whose due time cannot be read: a dead letter, or on its way at once.
    """

    field: Field
    topics: Mapping[str, int]
    max_ms: int
    beyond_max: Literal["dead_letter", "clamp", "now"]
    malformed: Literal["dead_letter", "now"]


class _Written(NamedTuple):
    """A due time as it is written."""

    ms: int
    is_delay: bool
    """Whether it counts from the timestamp, instead of from 1970."""


def due_reader(rules: DueRules, columns: Columns) -> ReadDue:
    """Return a function that reads when messages of one partition are due.

    Each int lies above the message's timestamp and below `END_MS`: a message that is due at or before its timestamp
    is not delayed.
    """
    read = rules.field.reader(columns)
    fixed = {topic: _Written(delay_ms, is_delay=True) for topic, delay_ms in rules.topics.items()}
    known = Memo(_parse, WRITTEN_MAX)

    def read_due(tp: TopicPartition, messages: Sequence[Message]) -> Sequence[Due]:
        column, default = read(tp, messages), fixed.get(tp.topic)
        if default is None and column.count(None) == len(column):
            return [None] * len(column)
        dues: list[Due] = []
        for raw, timestamp in zip(column, columns.timestamps(messages), strict=True):
            written = default if raw is None else known[raw] or default
            dues.append(None if written is None else _judge(rules, written, timestamp))
        return dues

    return read_due


def _parse(raw: Raw) -> _Written | str | None:
    """The due time in the last value of a field; a reason if it is malformed, None if there is none."""
    last = raw[-1:] if isinstance(raw, tuple) else (raw,)
    text = b"".join(value or b"" for value in last).strip()
    if not text:
        return None
    if (at_ms := parse_instant(text)) is not None:
        return _Written(at_ms, is_delay=False)
    if (delay_ms := parse_delay(text)) is not None:
        return _Written(delay_ms, is_delay=True)
    return (
        f"delay: the due time {_shown(text)} is neither epoch milliseconds, RFC 3339 with its offset nor a delay "
        "such as 15m"
    )


def _shown(text: bytes) -> str:
    shown = repr(text[:SHOWN_MAX])
    return shown if len(shown) <= SHOWN_MAX else f"{shown[: SHOWN_MAX - 1]}…"


def _judge(rules: DueRules, written: _Written | str, timestamp: int | None) -> Due:
    if isinstance(written, str):
        return written if rules.malformed == "dead_letter" else None
    if written.is_delay and timestamp is None:
        reason = f"delay: {delay_text(written.ms)} counts from the message's timestamp, which it does not have"
        return reason if rules.malformed == "dead_letter" else None
    due_ms = written.ms + (timestamp or 0) * written.is_delay
    if due_ms >= END_MS or (timestamp is not None and due_ms - timestamp > rules.max_ms):
        return _beyond(rules, due_ms, timestamp)
    return _after(due_ms, timestamp)


def _beyond(rules: DueRules, due_ms: int, timestamp: int | None) -> Due:
    if rules.beyond_max == "now":
        return None
    if rules.beyond_max == "clamp" and timestamp is not None:
        return _after(min(timestamp + rules.max_ms, END_MS - 1), timestamp)
    if due_ms >= END_MS:
        return f"delay: due after {instant_text(END_MS - 1)}, the latest time to which a message can be held"
    return (
        f"delay: due {instant_text(due_ms)}, which is more than delay.max ({delay_text(rules.max_ms)}) after its "
        "timestamp"
    )


def _after(due_ms: int, timestamp: int | None) -> int | None:
    """The due time, None if it is not after the timestamp; without one, and for one before 1970, not after 1970."""
    return due_ms if due_ms > max(timestamp or 0, 0) else None
