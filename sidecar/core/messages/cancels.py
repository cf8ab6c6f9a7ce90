"""Finds messages that cancel held ones: a message may have a name, and a later one of its partition names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from sidecar.core.messages.fields import HeaderColumns
from sidecar.core.records import Columns, Header, Message

NAME_HEADER = "sidecar-delay-id"
"""The header, or property of RocketMQ, with the name of a message that may be held."""
CANCEL_HEADER = "sidecar-cancel"
"""The header of a message that cancels those with this name."""

Names: TypeAlias = Sequence[bytes]
ReadCancels: TypeAlias = Callable[[Sequence[Message]], Mapping[int, Names]]
"""Returns the names that messages cancel, by their places in the sequence; without those that cancel nothing."""


def name_in(headers: Sequence[Header]) -> bytes | None:
    """The name of a message: the last value of the header that is not empty."""
    return next((value for header, value in reversed(headers) if header == NAME_HEADER and value), None)


def cancel_reader(columns: Columns) -> ReadCancels:
    """Return a function that reads which names messages cancel: each value that is not empty."""

    def read_cancels(messages: Sequence[Message]) -> Mapping[int, Names]:
        found: dict[int, list[bytes]] = {}
        for place, value in _values(columns, messages):
            if value:
                found.setdefault(place, []).append(value)
        return found

    return read_cancels


def _values(columns: Columns, messages: Sequence[Message]) -> Iterable[tuple[int, bytes | None]]:
    """The values of the header, each with the place of its message. Most messages have none: a look must be cheap."""
    if isinstance(columns, HeaderColumns):
        column = columns.header(messages, CANCEL_HEADER)
        if column.count(None) == len(column):
            return ()
        several = ((raw,) if isinstance(raw, bytes) else raw or () for raw in column)
        return ((place, value) for place, values in enumerate(several) for value in values)
    rows = enumerate(columns.headers(messages))
    return [(place, value) for place, row in rows if row for name, value in row if name == CANCEL_HEADER]
