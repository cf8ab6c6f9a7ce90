"""Message ids, for producers that send twice: as 64-bit numbers, or as keys of a ledger. Nothing is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, starmap
from typing import Literal

import xxhash

from sidecar.core.claims import place_of
from sidecar.core.messages.fields import Field, Raw
from sidecar.core.records import Columns, Details, Message, TopicPartition

_BIAS = 1 << 63


def text_id(raw: Raw) -> int | None:
    """A signed 64-bit xxh3 of the bytes; None without an id, and for several values, of which none is the id."""
    return xxhash.xxh3_64_intdigest(raw) - _BIAS if isinstance(raw, bytes) and raw else None


def int_id(raw: Raw) -> int | None:
    """The number in the text, 0 to 2**63 - 1; None if there is no such number."""
    if not isinstance(raw, bytes) or len(raw) > 19 or not raw.isdigit():
        return None
    number = int(raw)
    return number if number < _BIAS else None


class OddIds:
    """Counts messages whose id cannot be compared, and which therefore count as having none.

    That is an id with several values: a header that is given twice; in JSON a list, an object or a boolean. If ids are
    numbers, it is any other text, too.
    """

    def __init__(self, field: Field, kind: Literal["text", "int"], columns: Columns) -> None:
        self._read = field.id_reader(columns)
        self._is_number = kind == "int"
        self.why = _WHY.get(field.kind, "") or "it is no number"
        """Reason in words."""
        if self._is_number and field.kind in _WHY:
            self.why += ", or it is no number"
        self.count = 0
        self.last: TopicPartition | None = None
        """The partition of the last counted message."""

    def look(self, tp: TopicPartition, messages: Sequence[Message]) -> None:
        """Count them among messages that have no id."""
        self.add(tp, self._read(tp, messages))

    def add(self, tp: TopicPartition, raws: Iterable[Raw]) -> None:
        """Like `look`, with the raw values of their fields."""
        self.note(tp, sum(isinstance(raw, tuple) or (self._is_number and bool(raw)) for raw in raws))

    def note(self, tp: TopicPartition, count: int) -> None:
        """Add `count` messages of a partition."""
        if count:
            self.count, self.last = self.count + count, tp


_WHY = {
    "header": "its header is given more than once",
    "json": "it is a list, an object or a boolean",
}


def id_reader(
    field: Field, kind: Literal["text", "int"], columns: Columns
) -> Callable[[TopicPartition, Sequence[Message]], list[int | None]]:
    """Return a function that reads the ids of many messages of one partition."""
    read = field.id_reader(columns)
    number = text_id if kind == "text" else int_id
    return lambda tp, messages: [number(raw) for raw in read(tp, messages)]


def key_reader(
    field: Field, kind: Literal["text", "int"], columns: Columns, group_id: str, odd: OddIds | None = None
) -> Callable[[TopicPartition, Sequence[Message]], bytes]:
    """Return a function that reads the ledger keys of many messages of one partition, concatenated.

    A message without an id has its own key, made of its place or its identity: it is never a duplicate.

    Args:
        group_id: The consumer group; other groups with the same ledger have other keys.
        odd: Counts ids that cannot be compared.
    """
    read = field.id_reader(columns)
    normal = _text if kind == "text" else _number
    business, own = (f"{group_id}\0{kind}\0".encode("utf-8", "surrogatepass") for kind in ("id", "place"))

    def keys(tp: TopicPartition, messages: Sequence[Message]) -> bytes:
        prefix = own + b"%d\0" % place_of(tp)
        raws = read(tp, messages)
        ids, offsets = list(map(normal, raws)), columns.offsets(messages)
        if odd is not None and None in ids:
            odd.add(tp, (raw for raw, one_id in zip(raws, ids, strict=True) if one_id is None))
        details = columns.details(messages) if None in ids else repeat(None, len(ids))

        def one(raw: bytes | None, offset: int, known: Details | None) -> bytes:
            if raw is not None:
                return xxhash.xxh3_128_digest(business + raw)
            identity = known.identity if known is not None else None
            return xxhash.xxh3_128_digest(prefix + b"%d" % offset if identity is None else own + identity)

        return b"".join(starmap(one, zip(ids, offsets, details, strict=True)))

    return keys


def _text(raw: Raw) -> bytes | None:
    return raw if isinstance(raw, bytes) and raw else None


def _number(raw: Raw) -> bytes | None:
    number = int_id(raw)
    return None if number is None else b"%d" % number
