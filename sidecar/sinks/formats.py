"""Conversion of messages to rows, and of rows to a request body. Pure: it uses no socket, file or clock."""

from __future__ import annotations

import base64
import codecs
import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import contains
from typing import Any, Literal, TypeAlias

import orjson

from sidecar.core.json_text import loads
from sidecar.core.records import Columns, Details, Fragment, Framer, Header, Message, TopicPartition

FormatName: TypeAlias = Literal["envelope", "ndjson", "json_array"]
TagsOf: TypeAlias = Callable[[TopicPartition, Sequence[Message]], Iterable[tuple[bytes, ...]]]
"""Reads the tags of many messages of one partition; a message without a tag has an empty tuple."""

CHUNK_BYTES = 256 * 1024
"""Small fragments are joined up to this size before they are sent: every send releases the interpreter lock."""
LARGE_BYTES = 1024 * 1024
"""Size from which no further copy of a value or row is made."""
PIECE_BYTES = 3 * 64 * 1024
"""Size of pieces of a large value; base64 needs a multiple of 3."""


@dataclass(frozen=True, slots=True)
class Format:
    """The bytes around and between rows, in memory and in a body."""

    media_type: str
    separator: bytes
    opening: bytes
    between: bytes
    closing: bytes
    empty: bytes
    """The body of a batch without rows."""


FORMATS: dict[FormatName, Format] = {
    "envelope": Format("application/x-ndjson", b"\n", b"", b"\n", b"\n", b""),
    "ndjson": Format("application/x-ndjson", b"\n", b"", b"\n", b"\n", b""),
    # A record separator is a control character: no JSON text can contain it unescaped (RFC 8259, section 7).
    "json_array": Format("application/json", b"\x1e", b"[", b",", b"]", b"[]"),
}


def make_framer(name: FormatName, columns: Columns, tags_of: TagsOf) -> Framer:
    """The framer of a format; only `envelope` calls `tags_of`."""
    if name == "envelope":
        return EnvelopeFramer(columns, tags_of)
    return NdjsonFramer(columns) if name == "ndjson" else JsonArrayFramer(columns)


class NdjsonFramer:
    r"""Values as they are, one per line. Null, empty, or with a ``\n`` inside cannot be framed; ``\r`` is data."""

    separator = b"\n"

    def __init__(self, columns: Columns) -> None:
        self._values = columns.values

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:  # noqa: ARG002
        values = list(self._values(messages))
        try:
            data = b"\n".join(values)  # type: ignore[arg-type]  # a null raises: cheaper than to look for it
        except TypeError:
            return self._frame_slowly(values)
        if all(values) and not _any_has_line_feed(values, len(data)):  # type: ignore[arg-type]
            return data, ()
        return self._frame_slowly(values)

    def _frame_slowly(self, values: list[bytes | None]) -> tuple[bytes, Sequence[int]]:
        left_out = [i for i, value in enumerate(values) if not value or b"\n" in value]
        return b"\n".join([value for value in values if value and b"\n" not in value]), left_out


def _any_has_line_feed(values: list[bytes], size: int) -> bool:
    # A second join and one search take 40 ns per message of 200 bytes, counting in the first takes 150: `count` checks
    # every byte. From 1 MiB on the copy is saved.
    if size < LARGE_BYTES:
        return b"\n" in b"".join(values)
    return any(map(contains, values, repeat(b"\n"[0])))


class JsonArrayFramer:
    """JSON values, byte for byte, as the elements of one array."""

    separator = FORMATS["json_array"].separator

    def __init__(self, columns: Columns) -> None:
        self._values = columns.values

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:  # noqa: ARG002
        rows: list[bytes] = []
        left_out: list[int] = []
        for i, value in enumerate(self._values(messages)):
            if value is not None and is_json(value):
                rows.append(value)
            else:
                left_out.append(i)
        return self.separator.join(rows), left_out


class EnvelopeFramer:
    """A JSON object for each message, with its origin, key, tags, headers and timestamp. Frames everything."""

    separator = b"\n"

    def __init__(self, columns: Columns, tags_of: TagsOf) -> None:
        self._columns = columns
        self._tags_of = tags_of

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:
        columns = self._columns
        rows = zip(
            columns.offsets(messages),
            columns.timestamps(messages),
            columns.keys(messages),
            self._tags_of(tp, messages),
            columns.headers(messages),
            columns.values(messages),
            columns.details(messages),
            strict=True,
        )
        data = b"\n".join([envelope_row(tp, *row) for row in rows])
        # For one row `join` returns the row itself, and orjson leaves 4 KiB after each.
        return data if len(messages) > 1 or len(data) > LARGE_BYTES else bytes(memoryview(data)), ()


def envelope_row(
    tp: TopicPartition,
    offset: int,
    timestamp_ms: int | None,
    key: bytes | None,
    tags: tuple[bytes, ...],
    headers: Sequence[Header] | None,
    value: bytes | None,
    details: Details | None = None,
) -> bytes:
    """One message as a line of JSON, without its line end."""
    row: dict[str, Any] = {"topic": tp.topic, "partition": tp.partition, "offset": offset, "timestamp": timestamp_ms}
    _put(row, "key", key)
    _put_tags(row, tags)
    if details is None:
        row["headers"] = [[_header_name(name), _text(raw)] for name, raw in headers] if headers else []
    else:
        row["broker"] = tp.broker
        if details.place is not None:
            row["topic"], row["broker"], row["partition"], row["offset"] = details.place
        row["message_id"] = _text(details.message_id)
        row["offset_message_id"] = details.offset_message_id
        row["keys"] = [_text(key) for key in details.keys]
        row["reconsume_times"] = details.reconsume_times
        row["properties"] = {name: _text(raw) for name, raw in headers or ()}
    if value is not None and len(value) > LARGE_BYTES:
        return _row_of_pieces(row, value)
    _put(row, "value", value)
    return orjson.dumps(row)


def row_head(topic: str, partition: int) -> bytes:
    """The beginning of a Kafka message's row, up to its offset."""
    return b'{"topic":%s,"partition":%d,"offset":' % (orjson.dumps(topic), partition)


def tag_members(tags: tuple[bytes, ...]) -> bytes:
    """The tags in a row, with a comma in front."""
    row: dict[str, Any] = {}
    _put_tags(row, tags)
    return b"," + orjson.dumps(row)[1:-1]


def _put_tags(row: dict[str, Any], tags: tuple[bytes, ...]) -> None:
    _put(row, "tag", tags[0] if tags else None)
    if len(tags) > 1:
        row["tags"] = [_text(tag) for tag in tags]


def _row_of_pieces(row: dict[str, Any], value: bytes) -> bytes:
    """`envelope_row` without another object as large as the value: neither its text, nor a second row."""
    head = orjson.dumps(row)[:-1]
    with contextlib.suppress(UnicodeDecodeError):
        return _joined(head, b',"value":"', _text_pieces(value))
    return _joined(head, b',"value_base64":"', _base64_pieces(value))


def _joined(head: bytes, name: bytes, pieces: Iterable[bytes | memoryview]) -> bytes:
    row = io.BytesIO(head + name)
    row.seek(0, io.SEEK_END)
    for piece in pieces:
        row.write(piece)
    row.write(b'"}')
    return row.getvalue()


def _text_pieces(value: bytes) -> Iterator[memoryview]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(value), PIECE_BYTES):
        text = decoder.decode(value[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(value))
        yield memoryview(orjson.dumps(text))[1:-1]


def _base64_pieces(value: bytes) -> Iterator[bytes]:
    return (base64.b64encode(value[start : start + PIECE_BYTES]) for start in range(0, len(value), PIECE_BYTES))


def _put(row: dict[str, Any], name: str, raw: bytes | None) -> None:
    if raw is None:
        row[name] = None
        return
    try:
        row[name] = raw.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(raw).decode("ascii")


def _text(raw: bytes | None) -> str | dict[str, str] | None:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def _header_name(name: str) -> str | dict[str, str] | None:
    if name.isascii():
        return name
    try:
        return _text(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # a surrogate that escapes no byte keeps the bytes of its own encoding
        return _text(name.encode("utf-8", "surrogatepass"))


def is_json(value: bytes) -> bool:
    """Whether these bytes are one JSON text (RFC 8259): no NaN, no byte order mark, nested at most 1,024 deep."""
    try:
        orjson.loads(value)
    except ValueError:
        return _is_json_slowly(value)
    return True


def _is_json_slowly(value: bytes) -> bool:
    """Whether it is JSON that orjson refuses although the grammar allows it: 1e999 and lone surrogate escapes."""
    try:
        loads(value.decode(), parse_constant=_refuse, parse_int=str, parse_float=str)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def body_length(name: FormatName, fragments: Iterable[Fragment]) -> int:
    """The exact length in bytes of the chunks of `body_chunks`."""
    form = FORMATS[name]
    sizes = [len(fragment.data) for fragment in fragments if len(fragment.offsets)]
    if not sizes:
        return len(form.empty)
    return sum(sizes) + len(form.opening) + len(form.between) * (len(sizes) - 1) + len(form.closing)


def body_chunks(name: FormatName, fragments: Iterable[Fragment]) -> Iterator[bytes]:
    """The body in pieces of about 256 KiB; a larger fragment is its own piece, without a copy if possible."""
    return joined(body_pieces(name, fragments))


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about 256 KiB; a larger piece stays as it is."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        if size and size + len(piece) > CHUNK_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
        if piece:  # joining a single piece makes no copy
            pending.append(piece)
            size += len(piece)
    if size:
        yield b"".join(pending)


def body_pieces(name: FormatName, fragments: Iterable[Fragment]) -> Iterator[bytes]:
    """The body in pieces, without a copy if possible."""
    form, started = FORMATS[name], False
    for fragment in fragments:
        if not len(fragment.offsets):
            continue
        yield form.between if started else form.opening
        started = True
        data = bytes(fragment.data)
        yield data if form.separator == form.between else data.replace(form.separator, form.between)
    yield form.closing if started else form.empty
