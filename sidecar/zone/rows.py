"""Conversion of a message to a row of bytes inside the daemon, and back. Pure: it uses no file and no Arrow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tags import Memo
from sidecar.core.records import Columns, Header, Message, TopicPartition

_HEAD: Final = struct.Struct("<qiiii")
"""Timestamp in ms, then the lengths of key, value, tag and headers in bytes; -1 is null."""
_NAMED: Final = struct.Struct("<ii")
_NO_TIME: Final = -(1 << 63)
_ABSENT: Final = -1
SEPARATOR: Final = b"\xfe"
"""One byte, as the core requires, which never occurs in UTF-8; in a row it is escaped."""
_ESCAPES: Final = ((b"\xfd", b"\xfd\x01"), (SEPARATOR, b"\xfd\x02"))


def bytes_of_name(name: str) -> bytes:
    """The bytes of a name; surrogate escapes in it stand for bytes that are not UTF-8."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that escapes no byte keeps the bytes of its own encoding
        return name.encode("utf-8", "surrogatepass")


class Row(NamedTuple):
    """A message in the form that the zone stores."""

    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    tag: bytes | None
    """The first tag, as in the format `envelope`."""
    headers: list[Header]
    group: bytes
    """The tag group; empty for the group of the row's part."""


class RowFramer:
    """Packs messages into rows; every message can be framed. Tags without a group are not wanted."""

    separator = SEPARATOR

    def __init__(
        self,
        columns: Columns,
        tags_of: Callable[[TopicPartition, Sequence[Message]], Iterable[tuple[bytes, ...]]],
        groups: Mapping[Raw, str | None],
    ) -> None:
        self._columns = columns
        self._tags_of = tags_of
        self._groups: Memo[Raw, bytes] = Memo(lambda tags: bytes_of_name(groups[tags] or ""))

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:
        """Returns rows joined by `separator`; no message is left out."""
        columns = self._columns
        tags = list(self._tags_of(tp, messages))
        rows = zip(
            columns.timestamps(messages),
            columns.keys(messages),
            columns.values(messages),
            tags,
            columns.headers(messages),
            map(self._groups.__getitem__, tags),
            strict=True,
        )
        return self.separator.join([pack(*row) for row in rows]), ()


def pack(
    timestamp_ms: int | None,
    key: bytes | None,
    value: bytes | None,
    tags: Sequence[bytes],
    headers: Sequence[Header] | None,
    group: bytes = b"",
) -> bytes:
    """One message as bytes, at least 24 of them, without a separator."""
    tag = tags[0] if tags else None
    packed = _pack_headers(headers) if headers else b""
    head = _HEAD.pack(
        _NO_TIME if timestamp_ms is None else timestamp_ms,
        _ABSENT if key is None else len(key),
        _ABSENT if value is None else len(value),
        _ABSENT if tag is None else len(tag),
        len(packed),
    )
    row = b"".join((head, key or b"", value or b"", tag or b"", packed, group))
    for byte, escape in _ESCAPES:
        row = row.replace(byte, escape)
    return row


def _pack_headers(headers: Sequence[Header]) -> bytes:
    pieces: list[bytes] = []
    for name, value in headers:
        raw = name.encode("utf-8", "surrogatepass")
        pieces += (_NAMED.pack(len(raw), _ABSENT if value is None else len(value)), raw, value or b"")
    return b"".join(pieces)


def unpack(row: bytes) -> Row:
    """The message of a row."""
    row = _unescaped(row)
    at_ms, key, value, tag, headers = _HEAD.unpack_from(row)
    key_end = _HEAD.size + (key if key > 0 else 0)  # unrolled: a loop over the four costs 1 us more per row
    value_end = key_end + (value if value > 0 else 0)
    tag_end = value_end + (tag if tag > 0 else 0)
    end = tag_end + headers
    if headers < 0 or end > len(row) or key < _ABSENT or value < _ABSENT or tag < _ABSENT:
        raise ValueError(f"a row of {len(row)} bytes says that it has {end}")
    return Row(
        None if at_ms == _NO_TIME else at_ms,
        None if key == _ABSENT else row[_HEAD.size : key_end],
        None if value == _ABSENT else row[key_end:value_end],
        None if tag == _ABSENT else row[value_end:tag_end],
        _unpack_headers(row, tag_end, end) if headers else [],
        row[end:],
    )


def order_of(row: bytes) -> tuple[bytes, bool, bytes]:
    """Group of a row, whether it has a tag, and the tag: the sort key of rows in a file. Cheaper than `unpack`."""
    row = _unescaped(row)
    _, key, value, tag, headers = _HEAD.unpack_from(row)
    start = _HEAD.size + max(key, 0) + max(value, 0)
    end = start + max(tag, 0)
    return row[end + headers :], tag != _ABSENT, row[start:end]


def _unescaped(row: bytes) -> bytes:
    if b"\xfd" in row:
        for byte, escape in reversed(_ESCAPES):
            row = row.replace(escape, byte)
    if len(row) < _HEAD.size:
        raise ValueError("a row is shorter than its head")
    return row


def _unpack_headers(row: bytes, start: int, end: int) -> list[Header]:
    headers: list[Header] = []
    while start < end:
        if start + _NAMED.size > end:
            raise ValueError("headers of a row are cut off")
        name_length, value_length = _NAMED.unpack_from(row, start)
        if name_length < 0 or value_length < _ABSENT:
            raise ValueError("a header of a row has a negative size")
        begin = start + _NAMED.size
        start = begin + name_length
        name = row[begin:start].decode("utf-8", "surrogatepass")
        if value_length == _ABSENT:
            headers.append((name, None))
        else:
            headers.append((name, row[start : start + value_length]))
            start += value_length
    if start != end:
        raise ValueError("headers of a row are cut off")
    return headers
