"""Which messages cancel held ones: a message may have a name, and a later one of its partition names it. Names only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sidecar.core.messages.fields import Field
from sidecar.core.records import Columns, Header, Message, TopicPartition

NAME_HEADER = "sidecar-delay-id"
"""The header, or property of RocketMQ, with the name of a message that may be held."""
CANCEL_HEADER = "sidecar-cancel"
"""The header of a message that cancels those with this name."""

Names: TypeAlias = Sequence[bytes]
ReadCancels: TypeAlias = Callable[[TopicPartition, Sequence[Message]], Mapping[int, Names]]
"""Returns the names that messages cancel, by their places in the sequence; without those that cancel nothing."""


def name_in(headers: Sequence[Header]) -> bytes | None:
    """The name of a message: the last value of the header that is not empty."""
    return next((value for header, value in reversed(headers) if header == NAME_HEADER and value), None)


def cancel_reader(columns: Columns) -> ReadCancels:
    """Return a function that reads which names messages of one partition cancel: each value that is not empty."""
    read = Field("header", CANCEL_HEADER).reader(columns)

    def read_cancels(tp: TopicPartition, messages: Sequence[Message]) -> Mapping[int, Names]:
        column = read(tp, messages)
        if column.count(None) == len(column):
            return {}
        several = ((raw,) if isinstance(raw, bytes) else raw or () for raw in column)
        found = ([name for name in names if name] for names in several)
        return {place: names for place, names in enumerate(found) if names}

    return read_cancels
