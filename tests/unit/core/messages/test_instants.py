"""Moments and delays as text: digits, RFC 3339 and units, both ways."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.messages.instants import END_MS, delay_text, instant_text, parse_delay, parse_instant

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEW_YEAR = 1_798_761_600_000
"""2027-01-01T00:00:00Z."""


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        (b"0", 0),
        (b"1798761600000", NEW_YEAR),
        (b"0001798761600000", NEW_YEAR),
        (b"4398046511103", END_MS - 1),
        (b"4398046511104", END_MS),
        (b"9" * 13, END_MS),
        (b"9" * 10_000, END_MS),
        (b"2027-01-01T00:00:00Z", NEW_YEAR),
        (b"2027-01-01t00:00:00z", NEW_YEAR),
        (b"2027-01-01T01:30:00+01:30", NEW_YEAR),
        (b"2026-12-31T19:00:00-05:00", NEW_YEAR),
        (b"2027-01-01T00:00:00-00:00", NEW_YEAR),
        (b"2027-01-01T00:00:00.5Z", NEW_YEAR + 500),
        (b"2027-01-01T00:00:00.012000Z", NEW_YEAR + 12),
        (b"2027-01-01T00:00:00.0120001Z", NEW_YEAR + 13),
        (b"2026-12-31T23:59:60Z", NEW_YEAR),
        (b"2026-12-31T23:59:60.25Z", NEW_YEAR + 250),
        (b"1969-12-31T23:59:59Z", -1_000),
        (b"2109-05-15T07:35:11.103Z", END_MS - 1),
        (b"9999-12-31T23:59:60-23:59", END_MS),
    ],
)
def test_moments_are_read(text: bytes, at_ms: int) -> None:
    """Digits and RFC 3339 with an offset are a moment, which is never before the one that is written."""
    assert parse_instant(text) == at_ms


NO_MOMENTS = """
-1 +1 1.5 1e12 2027-01-01 2027-01-01T00:00:00 2027-01-01T00:00Z 2027-13-01T00:00:00Z 2027-00-01T00:00:00Z
2027-01-32T00:00:00Z 2027-01-00T00:00:00Z 2027-02-29T00:00:00Z 2100-02-29T00:00:00Z 2027-04-31T00:00:00Z
2027-01-01T24:00:00Z 2027-01-01T00:60:00Z 2027-01-01T00:00:61Z 2027-01-01T00:00:00.Z 2027-01-01T00:00:00,5Z
2027-01-01T00:00:00+0100 2027-01-01T00:00:00+24:00 2027-01-01T00:00:00+01:60 2027-1-01T00:00:00Z
27-01-01T00:00:00Z 2027-01-01T00:00:00ZZ soon 15m \u0661
"""
NO_DELAYS = "15 m -1m 1.5h 30m1h 1m1m 1H 1w 15min 1ms1s 1µs m15"


@pytest.mark.parametrize("text", ["", "1 2", "2027-01-01 00:00:00Z", *NO_MOMENTS.split()])
def test_other_text_is_no_moment(text: str) -> None:
    """A time without an offset, a date that the calendar does not have, and signs are refused."""
    assert parse_instant(text.encode()) is None


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(2109, 5, 14)),  # noqa: DTZ001
    st.integers(-1439, 1439),
)
def test_moments_are_those_of_the_standard_library(at: datetime, offset_minutes: int) -> None:
    """Each moment of each offset is the one that `datetime` has, rounded up, and can be written and read again."""
    at = at.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    expected = -((EPOCH - at) // timedelta(milliseconds=1))
    assert parse_instant(at.isoformat().encode()) == expected
    assert parse_instant(instant_text(expected).encode()) == expected


def test_every_day_of_400_years_is_right() -> None:
    """The calendar repeats after 400 years: each day of them is written and read as `datetime` does it."""
    for ordinal in range(EPOCH.toordinal(), EPOCH.toordinal() + 146_097):
        text, at_ms = f"{date.fromordinal(ordinal)}T00:00:00Z", (ordinal - EPOCH.toordinal()) * 86_400_000
        assert instant_text(at_ms) == text
        assert parse_instant(text.encode()) == min(at_ms, END_MS)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (b"500ms", 500),
        (b"15s", 15_000),
        (b"15m", 900_000),
        (b"1h30m", 5_400_000),
        (b"2d", 172_800_000),
        (b"1d2h3m4s5ms", 93_784_005),
        (b"1m5ms", 60_005),
        (b"0s", 0),
        (b"007s", 7_000),
        (b"9" * 5_000 + b"d", END_MS),
        (b"200000d", END_MS),
    ],
)
def test_delays_are_read(text: bytes, delay_ms: int) -> None:
    """Each unit counts once, the largest first."""
    assert parse_delay(text) == delay_ms


@pytest.mark.parametrize("text", ["", "1h 30m", *NO_DELAYS.split()])
def test_other_text_is_no_delay(text: str) -> None:
    """A number without a unit, an unknown unit, a sign and another order are refused."""
    assert parse_delay(text.encode()) is None


def test_moments_and_delays_are_written_briefly() -> None:
    """A moment has milliseconds only where it needs them, a delay the largest unit that divides it."""
    assert instant_text(NEW_YEAR) == "2027-01-01T00:00:00Z"
    assert instant_text(NEW_YEAR + 3_723_004) == "2027-01-01T01:02:03.004Z"
    assert [delay_text(ms) for ms in (2_592_000_000, 5_400_000, 61_000, 1_001)] == ["30d", "90m", "61s", "1001ms"]
