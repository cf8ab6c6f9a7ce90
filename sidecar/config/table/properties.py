"""Properties of a Delta table that a user may set, and those that Sidecar needs as they are. Opens no table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from sidecar.config.base import Text

LOG_RETENTION: Final = "delta.logRetentionDuration"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
HOURS_MIN: Final = {LOG_RETENTION: 48.0, FILE_RETENTION: 24.0}
"""Shortest durations, hours."""
_REASONS: Final = {
    LOG_RETENTION: "the log tells which parts the table has",
    FILE_RETENTION: "readers and writers under way need the files",
}
_RESERVED: Final = {
    "delta.setTransactionRetentionDuration": "these entries tell which micro-batches the table has, however old",
}
_HOURS: Final = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_PART: Final = r"(\d{1,9})\s+(week|day|hour|minute|second)s?"


def hours_of(text: str) -> float | None:
    """Hours of a duration as Delta writes it (`interval 2 days`); None if it is none."""
    plain = text.strip().lower().removeprefix("interval ").strip()
    if not re.fullmatch(rf"{_PART}(\s+{_PART})*", plain):
        return None
    return sum(int(number) * _HOURS[unit] for number, unit in re.findall(_PART, plain))


def check_retention(properties: Mapping[str, str | None]) -> None:
    """Check how long a table keeps files that left it: readers and writers under way need them.

    Args:
        properties: Those that the table has.

    Raises:
        ValueError: For less than a day.
    """
    written = properties.get(FILE_RETENTION)
    if written is not None and (hours_of(written) or 0.0) < HOURS_MIN[FILE_RETENTION]:
        raise ValueError(f"the table's {FILE_RETENTION} is {written}, and must be at least 1 day")


def _checked(properties: dict[str, str]) -> dict[str, str]:
    for name, value in properties.items():
        if not re.fullmatch(r"delta\.[A-Za-z0-9_.-]+", name):
            raise ValueError(f"has {name}: Delta's properties begin with delta.")
        for reserved, reason in _RESERVED.items():
            if name.lower() == reserved.lower():
                raise ValueError(f"cannot have {name}, which Sidecar needs as it is: {reason}")
        for limited, least in HOURS_MIN.items():
            if name.lower() == limited.lower() and (hours_of(value) or 0.0) < least:
                days = round(least / 24)
                raise ValueError(
                    f"needs {limited} of at least `interval {days} day{'s' if days > 1 else ''}`, and has `{value}`: "
                    f"{_REASONS[limited]}"
                )
    return properties


def _text(properties: Any) -> Any:
    """Flags and whole numbers of YAML, as Delta writes them."""
    if not isinstance(properties, Mapping):
        return properties
    return {name: str(value).lower() if isinstance(value, bool | int) else value for name, value in properties.items()}


Properties: TypeAlias = Annotated[dict[Text, Text], BeforeValidator(_text), AfterValidator(_checked)]
