"""Moments and delays as text: epoch milliseconds, RFC 3339, and delays such as ``1h30m``. Knows no clock."""

from __future__ import annotations

import re

END_MS = 1 << 42
"""The first moment at which no message can be due, in the year 2248: a position has 63 bits, and 20 of them count."""
UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

_DAYS_TO_1970 = 719_468
"""Days from 0000-03-01, where the years of this calendar begin, so that a leap day is the last of its year."""
_DELAY = re.compile(rb"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_RFC_3339 = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)[Tt]([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d+))?"
    rb"(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))"
)


def parse_instant(text: bytes) -> int | None:
    """Milliseconds since 1970 of digits or of RFC 3339, at most `END_MS`; None if the text is neither.

    A fraction of a millisecond is rounded up, and a leap second is the first second of the next minute.
    """
    if text.isdigit():
        return _number(text)
    match = _RFC_3339.fullmatch(text)
    if not match:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    days = _days(year, month, day)
    if _date(days) != (year, month, day):  # the calendar has no such day
        return None
    minutes = (days * 24 + hour) * 60 + minute - _offset_minutes(match)
    return min(minutes * 60_000 + second * 1_000 + _fraction_ms(match[7] or b""), END_MS)


def parse_delay(text: bytes) -> int | None:
    """Milliseconds of a delay such as ``15m`` or ``1h30m``, largest unit first, at most `END_MS`; None for others."""
    match = _DELAY.fullmatch(text)
    if not text or not match:
        return None
    factors = zip(match.groups(b"0"), UNITS_MS.values(), strict=True)
    return min(sum(_number(digits) * factor for digits, factor in factors), END_MS)


def instant_text(at_ms: int) -> str:
    """The moment in RFC 3339, in UTC; with milliseconds if it is not a whole second."""
    days, rest_ms = divmod(at_ms, UNITS_MS["d"])
    seconds, millis = divmod(rest_ms, 1_000)
    fraction = f".{millis:03}" if millis else ""
    year, month, day = _date(days)
    clock = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{year:04}-{month:02}-{day:02}T{clock}{fraction}Z"


def delay_text(delay_ms: int) -> str:
    """The delay in the largest unit that divides it."""
    factor, unit = next((factor, unit) for unit, factor in UNITS_MS.items() if delay_ms % factor == 0)
    return f"{delay_ms // factor}{unit}"


def _number(digits: bytes) -> int:
    """The number, at most `END_MS`: Python refuses to read thousands of digits."""
    digits = digits.lstrip(b"0") or b"0"
    return min(int(digits), END_MS) if len(digits) <= 13 else END_MS


def _offset_minutes(match: re.Match[bytes]) -> int:
    if match[8] is None:
        return 0
    minutes = int(match[9]) * 60 + int(match[10])
    return -minutes if match[8] == b"-" else minutes


def _fraction_ms(digits: bytes) -> int:
    return int(digits[:3].ljust(3, b"0")) + bool(digits[3:].strip(b"0"))


def _days(year: int, month: int, day: int) -> int:
    """Days from 1970 to a date of the Gregorian calendar."""
    year -= month <= 2
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - _DAYS_TO_1970


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day: the inverse of `_days`."""
    centuries, rest = divmod(days + _DAYS_TO_1970, 146_097)
    of_era = (rest - rest // 1_460 + rest // 36_524 - rest // 146_096) // 365
    of_year = rest - (365 * of_era + of_era // 4 - of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = (shifted + 2) % 12 + 1
    return centuries * 400 + of_era + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1
