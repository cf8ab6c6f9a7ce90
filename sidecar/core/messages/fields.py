"""The field with a tag, message id or due time: header, key, topic, path in a JSON value, or the broker's message id.

Reads columns, decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import orjson

from sidecar.core.json_text import loads
from sidecar.core.records import Columns, Header, Message, TopicPartition

JsonPath: TypeAlias = tuple[str | int, ...]
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Raw: TypeAlias = bytes | tuple[bytes, ...] | None
"""Content of a field: nothing, one value, or several."""

_STEP = re.compile(r"""\.(?P<name>[^.\[\]'"\s]+)|\[(?P<index>\d+)\]|\['(?P<single>[^']+)'\]|\["(?P<double>[^"]+)"\]""")


def texts(raw: Raw) -> list[str]:
    """The values as text for people: bytes that are not UTF-8 are escaped."""
    values = raw if isinstance(raw, tuple) else (raw,)
    return [value.decode("utf-8", "backslashreplace") for value in values if value is not None]


class FieldError(ValueError):
    """The description of a field is invalid."""


@runtime_checkable
class HeaderColumns(Protocol):
    """`Columns` that find one header without reading all headers."""

    def header(self, messages: Sequence[Message], name: str) -> list[Raw]:
        """The value of this header of each message; a tuple if it is repeated."""
        ...


@runtime_checkable
class OriginColumns(Protocol):
    """`Columns` that know where a message was stored first."""

    def origins(self, tp: TopicPartition, messages: Sequence[Message]) -> list[Raw]:
        """Broker and commit-log offset of each message; for a message of a retry topic, those of its origin."""
        ...


def parse_json_path(text: str) -> JsonPath:
    """Steps of a JSON path such as ``$.order.items[0]['the id']``.

    Raises:
        FieldError: The text is not such a path.
    """
    if not text.startswith("$"):
        raise FieldError(f"a JSON path starts with $, as in $.order.id, not {text!r}")
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        step = _STEP.match(text, position)
        if not step:
            raise FieldError(
                f"cannot read {text[position:]!r} in the JSON path {text!r}: write .name, ['a name'] or [0]"
            )
        steps.append(int(step["index"]) if step["index"] else step["name"] or step["single"] or step["double"])
        position = step.end()
    if not steps:
        raise FieldError("the JSON path $ names the whole value: name a member, as in $.order.id")
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of messages.

    Args:
        kind: The attribute of a message.
        name: The header's name, for `header`.
        path: The steps into the value, for `json`.
    """

    kind: Literal["header", "key", "topic", "json", "offset_msg_id"]
    name: str = ""
    path: JsonPath = ()

    def reader(self, columns: Columns) -> Callable[[TopicPartition, Sequence[Message]], list[Raw]]:
        """Return a function that reads this field of many messages of one partition."""
        if self.kind == "topic":
            return lambda tp, messages: [tp.topic.encode()] * len(messages)
        if self.kind == "offset_msg_id":
            assert isinstance(columns, OriginColumns)
            return columns.origins
        if self.kind == "key":
            return lambda tp, messages: list(columns.keys(messages))
        if self.kind == "json":
            return lambda tp, messages: [json_at(value, self.path) for value in columns.values(messages)]
        if isinstance(columns, HeaderColumns):
            return lambda tp, messages: columns.header(messages, self.name)
        return lambda tp, messages: header_column(columns, messages, self.name)

    def id_reader(self, columns: Columns) -> Callable[[TopicPartition, Sequence[Message]], list[Raw]]:
        """Like `reader`; a list, an object and a boolean in JSON are several values, since none of them is an id."""
        if self.kind == "json":
            return lambda tp, messages: [json_at(value, self.path, _id_raw) for value in columns.values(messages)]
        return self.reader(columns)


def header_column(columns: Columns, messages: Sequence[Message], name: str) -> list[Raw]:
    """The value of header `name` of each message; a tuple if it is repeated."""
    try:
        rows = columns.headers(messages)
        column: list[Raw] = [value for row in rows if row is not None for ((key, value),) in [row] if key == name]
    except (TypeError, ValueError):  # a message with none or several; with one each, the usual case, twice as fast
        column = []
    if len(column) == len(messages):
        return column
    return [_header(row, name) if row else None for row in columns.headers(messages)]


def _header(row: Sequence[Header], name: str) -> Raw:
    matching = [value for key, value in row if key == name and value is not None]
    return tuple(matching) if len(matching) > 1 else matching[0] if matching else None


def _raw(value: Json) -> Raw:
    if isinstance(value, list):
        return tuple(raw for raw in map(_scalar, value) if raw is not None)
    return _scalar(value)


def json_at(value: bytes | None, path: JsonPath, raw_of: Callable[[Json], Raw] = _raw) -> Raw:
    """The value at `path` of a JSON text: text and numbers as bytes, a list as several, anything else as nothing."""
    if not value:
        return None
    try:
        try:
            return raw_of(_walk(orjson.loads(value), path))
        except ValueError:  # no JSON to orjson, or a number that it may have changed
            return raw_of(_walk(_literal(value), path))
    except (ValueError, LookupError, TypeError):
        return None


def _literal(value: bytes) -> Json:
    """Parse slowly, but keep numbers as written, and accept lone surrogates, as most writers do."""
    value_read: Json = loads(value, parse_int=str, parse_float=str, parse_constant=str)
    return value_read


def _walk(value: Json, path: JsonPath) -> Json:
    for step in path:
        value = _member(value, step)
    return value


def _member(value: Json, step: str | int) -> Json:
    if isinstance(step, str):
        return value[step] if isinstance(value, dict) else None
    return value[step] if isinstance(value, list) else None


def _id_raw(value: Json) -> Raw:
    return () if isinstance(value, list | dict | bool) else _scalar(value)


def _scalar(value: Json) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, float):
        raise ValueError("2**64 and 2**64 + 1 are one float")
    if value is None or isinstance(value, dict | list):
        return None
    return orjson.dumps(value)
