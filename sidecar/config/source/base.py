"""Shared settings of all sources. Imports no client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from sidecar.config.base import KeyKind, Model, address

MS_MIN = 100_000_000_000
"""A time in 1973: lower numbers are in seconds, or no times."""
MS_MAX = 253_402_300_799_999
_MS = 1_769_860_800_000
_SEVERAL = "; several as a list or separated by commas"


def servers(value: Any, example: str, read: Callable[[str], str]) -> str:
    """The servers as one text; `read` returns the part of each server that must be an address."""
    given = value.split(",") if isinstance(value, str) else value
    for server in given if isinstance(given, list) and given else [None]:
        address(read(server) if isinstance(server, str) else None, example, _SEVERAL)
    return ",".join(server.strip() for server in given)


def unique_topics(names: list[str]) -> list[str]:
    """Return the topics; ValueError if a topic is named twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names {', '.join(twice)} twice")
    return names


def start_of(value: Any) -> str | int:
    """A start position: ``earliest``, ``latest``, or milliseconds since the epoch; otherwise raises ValueError."""
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not MS_MIN <= value <= MS_MAX:
            raise ValueError(f"needs milliseconds since 1970, such as {_MS}: {value} is before 1973 or after 9999")
        return value
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"needs earliest, latest or a timestamp such as 2026-01-31T12:00:00Z or {_MS}") from None
    if when.tzinfo is None:
        raise ValueError("needs a time zone at the end of the timestamp, such as Z or +02:00")
    if when.timestamp() < 0:
        raise ValueError("must not be before 1970")
    return round(when.timestamp() * 1000)


def _start_text(start: str | int) -> str:
    return start if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC).isoformat()


SERVERS_SCHEMA = WithJsonSchema(
    {"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": {"type": "string"}}
)
Start: TypeAlias = Annotated[
    Literal["earliest", "latest"] | int,
    KeyKind("text"),
    BeforeValidator(start_of),
    PlainSerializer(_start_text, return_type=str),
    WithJsonSchema({"type": ["string", "integer"]}),
]


class SourceSettings(Model):
    """Settings of one source, with everything the program asks of a source; `sidecar.sources.KEY.build` makes it."""

    holds_large_blocks: ClassVar[bool] = True
    """Whether the allocator returns large blocks to the system at once, because the client frees them rarely."""

    @property
    def takeover_ms(self) -> int:
        """Time for which a killed member's messages stay its own at the broker: by its session, lock or leases."""
        raise NotImplementedError

    @property
    def consumer_group(self) -> str:
        raise NotImplementedError

    @property
    def isolation(self) -> str:
        """Isolation level of transactions, if it is a setting; else empty."""
        return ""

    @property
    def pushed_filter(self) -> str:
        """Filter expression in the broker's language, in addition to tags; empty if there is none."""
        return ""

    @property
    def numbers_messages(self) -> bool:
        """Whether the source assigns offsets instead of the broker."""
        return False

    def summary(self) -> str:
        """Summary of what is read and from where, for `sidecar validate`; without secrets."""
        raise NotImplementedError
