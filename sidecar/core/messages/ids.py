"""Message ids, for producers that send twice: as 64-bit numbers, or as keys of a ledger. Nothing is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import Literal

import xxhash

from sidecar.core.claims import place_of
from sidecar.core.messages.fields import Field, Raw
from sidecar.core.records import Columns, Details, Message, TopicPartition

_BIAS = 1 << 63


def text_id(raw: Raw) -> int | None:
    """A signed 64-bit xxh3 of the bytes, of the first value if there are several; None without an id."""
    first = _text(raw)
    return None if first is None else xxhash.xxh3_64_intdigest(first) - _BIAS


def int_id(raw: Raw) -> int | None:
    """The number in the text, 0 to 2**63 - 1; None if it is no such number."""
    first = raw[0] if isinstance(raw, tuple) and raw else raw
    if not isinstance(first, bytes) or len(first) > 19 or not first.isdigit():
        return None
    number = int(first)
    return number if number < _BIAS else None


def id_reader(
    field: Field, kind: Literal["text", "int"], columns: Columns
) -> Callable[[TopicPartition, Sequence[Message]], list[int | None]]:
    """Return a function that reads the ids of many messages of one partition."""
    read = field.reader(columns)
    number = text_id if kind == "text" else int_id
    return lambda tp, messages: [number(raw) for raw in read(tp, messages)]


def key_reader(
    field: Field, kind: Literal["text", "int"], columns: Columns, group_id: str
) -> Callable[[TopicPartition, Sequence[Message]], bytes]:
    """Return a function that reads the ledger keys of many messages of one partition, concatenated.

    A message without an id has its own key, made of its place or its identity: it is never a duplicate.

    Args:
        field: The field with the id.
        kind: How ids are compared.
        columns: The source's readers.
        group_id: The consumer group; other groups with the same ledger have other keys.
    """
    read = field.reader(columns)
    normal = _text if kind == "text" else _number
    business, own = (f"{group_id}\0{kind}\0".encode("utf-8", "surrogatepass") for kind in ("id", "place"))

    def keys(tp: TopicPartition, messages: Sequence[Message]) -> bytes:
        prefix = own + b"%d\0" % place_of(tp)
        ids, offsets = list(map(normal, read(tp, messages))), columns.offsets(messages)
        details = columns.details(messages) if None in ids else repeat(None, len(ids))

        def one(raw: bytes | None, offset: int, known: Details | None) -> bytes:
            if raw is not None:
                return xxhash.xxh3_128_digest(business + raw)
            identity = known.identity if known is not None else None
            return xxhash.xxh3_128_digest(prefix + b"%d" % offset if identity is None else own + identity)

        return b"".join(starmap(one, zip(ids, offsets, details, strict=True)))

    return keys


def _text(raw: Raw) -> bytes | None:
    first = raw[0] if isinstance(raw, tuple) and raw else raw
    return first if isinstance(first, bytes) and first else None


def _number(raw: Raw) -> bytes | None:
    number = int_id(raw)
    return None if number is None else b"%d" % number
