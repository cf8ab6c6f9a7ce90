"""Message ids as 64-bit numbers, for producers that send twice. Numbers come out; nothing is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import xxhash

from sidecar.core.fields import Field, Raw
from sidecar.core.records import Columns, Message, TopicPartition

_BIAS = 1 << 63


def text_id(raw: Raw) -> int | None:
    """A signed 64-bit xxh3 of the bytes, of the first value where there are several; None without an id."""
    first = raw[0] if isinstance(raw, tuple) and raw else raw
    return xxhash.xxh3_64_intdigest(first) - _BIAS if isinstance(first, bytes) and first else None


def int_id(raw: Raw) -> int | None:
    """The number that is written there, 0 to 2**63 - 1; None when it is no such number."""
    first = raw[0] if isinstance(raw, tuple) and raw else raw
    if not isinstance(first, bytes) or len(first) > 19 or not first.isdigit():
        return None
    number = int(first)
    return number if number < _BIAS else None


def id_reader(
    field: Field, kind: Literal["text", "int"], columns: Columns
) -> Callable[[TopicPartition, Sequence[Message]], list[int | None]]:
    """A function that reads the ids of many messages of one partition."""
    read = field.reader(columns)
    number = text_id if kind == "text" else int_id
    return lambda tp, messages: [number(raw) for raw in read(tp, messages)]
