"""When a message is due: by its content and timestamp alone, with limits and reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.messages.due import Due, DueRules, due_reader
from sidecar.core.messages.fields import Field, Raw
from sidecar.core.messages.instants import END_MS
from sidecar.core.records import TopicPartition
from tests.support.messages import ListColumns, Msg

NAME = "sidecar-deliver-at"
AT = 1_700_000_000_000
MINUTE, DAY = 60_000, 86_400_000
TP, RETRY = TopicPartition("orders", 3), TopicPartition("orders-retry", 0)
RULES = DueRules(Field("header", name=NAME), {"orders-retry": 15 * MINUTE}, 30 * DAY, "dead_letter", "dead_letter")


def message(*values: bytes | None, timestamp: int | None = AT) -> Msg:
    """A message with the header once for each value."""
    return Msg(timestamp=timestamp, headers=[("other", b"1h"), *((NAME, value) for value in values)])


def due(
    *values: bytes | None, tp: TopicPartition = TP, timestamp: int | None = AT, rules: DueRules = RULES, **change: Any
) -> Due:
    """When a message with these values of the header is due."""
    (found,) = due_reader(replace(rules, **change), ListColumns())(tp, [message(*values, timestamp=timestamp)])
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1700000000001", AT + 1),
        (b"2023-11-14T23:13:21+01:00", AT + 1_000),
        (b"15m", AT + 15 * MINUTE),
        (b" \t1h30m\r\n", AT + 90 * MINUTE),
        (b"30d", AT + 30 * DAY),
    ],
)
def test_each_form_is_a_due_time(value: bytes, expected: int) -> None:
    """Digits, RFC 3339 and a delay from the timestamp say when a message is due; blanks around them do not count."""
    assert due(value) == expected


@pytest.mark.parametrize("value", [b"0", b"1699999999999", b"1700000000000", b"2023-11-14T22:13:20Z", b"0s"])
def test_what_is_due_at_its_timestamp_goes_on(value: bytes) -> None:
    """A due time at or before the record's timestamp holds nothing, nor does it wait for the topic's delay."""
    assert due(value) is None
    assert due(value, tp=RETRY) is None


@pytest.mark.parametrize("values", [(), (None,), (b"",), (b"  ",), (b"15m", b"")])
def test_without_a_due_time_the_topic_decides(values: tuple[bytes | None, ...]) -> None:
    """No header, an empty one and one without a value are alike: only a fixed delay of the topic holds the message."""
    assert due(*values) is None
    assert due(*values, tp=RETRY) == AT + 15 * MINUTE


def test_the_message_wins_over_its_topic() -> None:
    """A due time in the message replaces the fixed delay, also if it is malformed."""
    assert due(b"1m", tp=RETRY) == AT + MINUTE
    assert isinstance(due(b"soon", tp=RETRY), str)
    assert due(b"soon", tp=RETRY, malformed="now") is None


def test_the_last_of_repeated_headers_counts() -> None:
    """A hop that sets the header again replaces what was there."""
    assert due(b"soon", b"2h", b"1m") == AT + MINUTE


def test_each_message_of_a_run_has_its_own_answer() -> None:
    """Answers stand in the order of the messages, with and without a header, and are the same when read again."""
    run = [message(), message(b"1m"), message(b"soon"), message(b"1m", timestamp=AT + 1), message(b"", timestamp=None)]
    read = due_reader(RULES, ListColumns())
    found = read(TP, run)
    assert [one if not isinstance(one, str) else "reason" for one in found] == [
        None,
        AT + MINUTE,
        "reason",
        AT + 1 + MINUTE,
        None,
    ]
    assert read(TP, run) == found
    assert read(RETRY, run[:1]) == [AT + 15 * MINUTE]


def test_a_run_without_due_times_reads_one_column() -> None:
    """Timestamps are read only where a message may be held."""
    columns = ListColumns()
    columns.timestamps = None  # type: ignore[method-assign,assignment]
    assert due_reader(RULES, columns)(TP, [message(), message(None), Msg()]) == [None, None, None]


@pytest.mark.parametrize("value", [b"soon", b"-5", b"2027-01-01T00:00:00", b"1.5h", b"true", b"\xff"])
def test_a_malformed_due_time_has_its_reason(value: bytes) -> None:
    """An operator sees the value and the forms that are read; with `now` the message goes on."""
    assert due(value) == (
        f"delay: the due time {value!r} is neither epoch milliseconds, RFC 3339 with its offset nor a delay such as 15m"
    )
    assert due(value, malformed="now") is None


@pytest.mark.parametrize("value", [b"x" * 61, b"x" * 1_000_000, b"\0" * 30])
def test_a_long_value_is_cut(value: bytes) -> None:
    """A reason shows at most 60 characters of a value, and that it was cut."""
    found = due(value)
    assert isinstance(found, str)
    shown = found.removeprefix("delay: the due time ").partition(" is neither")[0]
    assert len(shown) == 60
    assert shown.endswith("…")


def test_60_characters_are_not_cut() -> None:
    """A value whose form fits is shown whole."""
    assert f"{b'x' * 57!r} is neither" in str(due(b"x" * 57))


def test_a_delay_needs_a_timestamp() -> None:
    """A delay, of the message or of the topic, cannot count from nothing; a time needs no timestamp."""
    reason = "delay: 15m counts from the message's timestamp, which it does not have"
    assert due(b"15m", timestamp=None) == reason
    assert due(tp=RETRY, timestamp=None) == reason
    assert due(tp=RETRY, timestamp=None, malformed="now") is None
    assert due(b"1700000000001", timestamp=None) == AT + 1
    assert due(b"%d" % (AT + 365 * DAY), timestamp=None) == AT + 365 * DAY


def test_a_message_due_in_1970_without_a_timestamp_goes_on() -> None:
    """No position is negative: what is due before 1970 holds nothing, whatever the timestamp."""
    assert due(b"0", timestamp=None) is None
    assert due(b"1969-12-31T00:00:00Z", timestamp=None) is None
    assert due(b"1969-12-31T00:00:00Z", timestamp=-2 * DAY) is None


BEYOND = [
    (b"30d1ms", "delay: due 2023-12-14T22:13:20.001Z, which is more than delay.max (30d) after its timestamp"),
    (b"1798761600000", "delay: due 2027-01-01T00:00:00Z, which is more than delay.max (30d) after its timestamp"),
    (b"9" * 50, "delay: due after 2109-05-15T07:35:11.103Z, the latest time to which a message can be held"),
    (b"200000d", "delay: due after 2109-05-15T07:35:11.103Z, the latest time to which a message can be held"),
]


@pytest.mark.parametrize(("value", "reason"), BEYOND)
def test_what_is_due_too_late_follows_the_rule(value: bytes, reason: str) -> None:
    """Beyond the longest time a message is a dead letter with its reason, held for that time, or goes on."""
    assert due(value) == reason
    assert due(value, beyond_max="clamp") == AT + 30 * DAY
    assert due(value, beyond_max="now") is None


def test_without_a_timestamp_the_year_2109_is_the_limit() -> None:
    """The longest time counts from the timestamp: without one a message cannot be held for it either."""
    assert due(b"4398046511103", timestamp=None) == END_MS - 1
    for rule in ("dead_letter", "clamp"):
        assert due(b"4398046511104", timestamp=None, beyond_max=rule) == BEYOND[2][1]
    assert due(b"4398046511104", timestamp=None, beyond_max="now") is None


def test_a_clamped_message_stays_below_the_last_position() -> None:
    """A timestamp near the end of all positions shortens the wait, or ends it."""
    assert due(b"9" * 50, timestamp=END_MS - 5, beyond_max="clamp") == END_MS - 1
    assert due(b"9" * 50, timestamp=END_MS - 1, beyond_max="clamp") is None
    assert due(tp=RETRY, timestamp=END_MS - 5) == BEYOND[2][1]


def test_a_json_value_has_the_due_time() -> None:
    """Numbers and text of a JSON value are read, a list by its last entry; null is no due time."""
    read = due_reader(replace(RULES, field=Field("json", path=("at",))), ListColumns())
    texts = [b"1700000000001", b'"15m"', b'["2h", "1m"]', b"null", b"[]", b"{}", b"1.5", b"-1"]
    found = read(TP, [Msg(value=b'{"at": %s}' % text) for text in texts] + [Msg(value=b"{}"), Msg(value=None)])
    assert found[:6] == [AT + 1, AT + 15 * MINUTE, AT + MINUTE, None, None, None]
    assert [isinstance(one, str) for one in found[6:8]] == [True, True]
    assert found[8:] == [None, None]


TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.integers(-(1 << 70), 1 << 70).map(lambda number: b"%d" % number),
    st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat().encode()),
    st.from_regex(rb"\A(\d{1,9}d)?(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?\Z"),
    st.from_regex(rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z"),
    st.just(b"9" * 5_000),
)
RAWS: st.SearchStrategy[Raw] = st.one_of(TEXTS, st.lists(TEXTS.filter(bool), max_size=3).map(tuple))
TIMESTAMPS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(AT, AT + DAY)


class RawColumns:
    """Columns of pairs of a field's raw value and a timestamp."""

    def header(self, messages: Sequence[tuple[Raw, int | None]], name: str) -> list[Raw]:
        return [raw for raw, _ in messages]

    def timestamps(self, messages: Sequence[tuple[Raw, int | None]]) -> list[int | None]:
        return [timestamp for _, timestamp in messages]

    headers: Callable[..., Any] = header


@given(
    st.lists(st.tuples(RAWS, TIMESTAMPS), max_size=5),
    st.sampled_from([TP, RETRY]),
    st.sampled_from(["dead_letter", "clamp", "now"]),
    st.sampled_from(["dead_letter", "now"]),
    st.integers(1, 3_650 * DAY),
)
def test_whatever_is_written_has_an_answer(
    run: list[tuple[Raw, int | None]],
    tp: TopicPartition,
    beyond_max: Literal["dead_letter", "clamp", "now"],
    malformed: Literal["dead_letter", "now"],
    max_ms: int,
) -> None:
    """Nothing raises; a due time is after the timestamp, not beyond the limits, and a reason is short."""
    columns: Any = RawColumns()
    found = due_reader(DueRules(RULES.field, RULES.topics, max_ms, beyond_max, malformed), columns)(tp, run)
    assert len(found) == len(run)
    for one, (_, timestamp) in zip(found, run, strict=True):
        if isinstance(one, int):
            assert max(timestamp or 0, 0) < one < END_MS
            assert timestamp is None or one - timestamp <= max_ms
        elif isinstance(one, str):
            assert "dead_letter" in (beyond_max, malformed) or timestamp is None
            assert len(one) < 200
            assert one.startswith("delay: ")


def test_moments_of_the_tests() -> None:
    """The timestamp that the tests count from is the one that their texts name."""
    assert datetime.fromtimestamp(AT / 1000, UTC).isoformat() == "2023-11-14T22:13:20+00:00"
