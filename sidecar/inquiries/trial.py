"""A dry run of messages: their outcomes, and the requests as they would be sent. No broker, no state, nothing is sent.

The daemon's own code reads tags, groups, ids, due times and rows; only positions are not remembered.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from sidecar.config.model import Settings, SinkSection
from sidecar.core.intake.intake import fragment_of
from sidecar.core.json_text import loads
from sidecar.core.messages.cancels import cancel_reader
from sidecar.core.messages.fields import Raw, texts
from sidecar.core.messages.instants import instant_text
from sidecar.core.parts import Batch, Intent, Part
from sidecar.core.records import Columns, Details, GetterColumns, Header, TopicPartition
from sidecar.errors import ConfigError
from sidecar.runtime.build import build_reading, due_reader_of
from sidecar.sinks.http import HttpSink

ANY_SINK = SinkSection.model_validate({"http": {"url": "http://localhost/"}})
SCOPE = "00000000"
"""Placeholder for the scope in names, which depends on the broker."""
_TEXTS = ("key", "value")
_KNOWN = {
    "topic", "partition", "offset", "timestamp", "headers", "tag", "tags",
    *_TEXTS, *(f"{each}_base64" for each in _TEXTS),
}  # fmt: skip


class SampleMessage(NamedTuple):
    """A message of the sample."""

    tp: TopicPartition
    offset: int
    timestamp: int | None
    key: bytes | None
    headers: Sequence[Header]
    value: bytes | None
    details: Details | None = None


class Decision(NamedTuple):
    """The outcome of a message."""

    message: SampleMessage
    tags: list[str]
    outcome: str
    """`delivered`, `filtered`, `duplicate`, `held` or `dead letter`."""
    group: str | None = None
    why: str = ""
    due_ms: int | None = None
    """Due time of a held message; milliseconds since the epoch."""


class SampleRequest(NamedTuple):
    """A request as it would be sent."""

    group: str
    headers: dict[str, str]
    body: bytes


class Trial:
    """The rules of a configuration; raises `ConfigError` if they cannot be used here."""

    def __init__(self, settings: Settings) -> None:
        self._subscribe, field = settings.tags.subscribe, settings.tags.field
        self._is_json = field is not None and field.kind == "json"
        self._sends = settings.sink.http is not None
        if not self._sends:  # any other sink would open its file, table or zone
            settings = settings.model_copy(update={"sink": ANY_SINK})
        columns: Columns = SampleColumns()
        self._reading, self._sink = build_reading(settings, columns)
        self._due = due_reader_of(settings, columns)
        self._cancels = cancel_reader(columns) if settings.delay else None
        self._seen: dict[tuple[TopicPartition, int], int] = {}

    def decide(self, messages: Sequence[SampleMessage]) -> Iterator[Decision]:
        reading = self._reading
        for message in messages:
            tp, one = message.tp, [message]
            (raw,) = reading.tags(tp, one)
            tags, group = texts(raw), reading.groups[raw]
            if self._cancels is not None and (cancelled := self._cancels(one)):
                names = ", ".join(texts(tuple(cancelled[0])))
                yield Decision(message, tags, "filtered", why=f"it cancels held messages: {names}")
                continue
            if group is None:
                untagged = "" if tags else f", and it has no tag{self._not_json(message)}"
                yield Decision(message, tags, "filtered", why=f"tags.subscribe is {self._subscribe}{untagged}")
                continue
            (number,) = reading.ids(tp, one) if reading.ids is not None else (None,)
            first = None if number is None else self._seen.setdefault((tp, number), message.offset)
            (due,) = self._due(tp, one) if self._due is not None else (None,)
            if first is not None and first != message.offset:
                yield Decision(message, tags, "duplicate", group, f"its id came at offset {first}")
            elif isinstance(due, int):
                yield Decision(message, tags, "held", group, f"until {instant_text(due)}", due)
            elif isinstance(due, str):
                yield Decision(message, tags, "dead letter", group, due)
            else:
                fragment = fragment_of(reading, tp, one, 0.0, {})
                reason = "" if fragment.offsets else "unframeable: the sink's format cannot represent its value"
                yield Decision(message, tags, "dead letter" if reason else "delivered", group, reason)

    def _not_json(self, message: SampleMessage) -> str:
        """The reason why a tag cannot be written in JSON; empty if it can."""
        if not self._is_json:
            return ""
        try:
            loads(message.value or b"")
        except ValueError as error:
            return f": its value is no JSON ({error})"
        return ""

    def requests(self, decisions: Iterable[Decision]) -> Iterator[SampleRequest]:
        """One request for each group and partition, as if no limit cut them; none without `sink.http`."""
        if not self._sends:
            return
        together: dict[tuple[str, TopicPartition], list[SampleMessage]] = {}
        for decision in decisions:
            if decision.outcome == "delivered":
                together.setdefault((str(decision.group), decision.message.tp), []).append(decision.message)
        for (group, tp), messages in together.items():
            fragment = fragment_of(self._reading, tp, list(messages), 0.0, {})
            first, last = messages[0].offset, messages[-1].offset
            nbytes = len(fragment.data) + len(self._reading.framer.separator)
            part = Part(tp, SCOPE, group, first, last, [fragment], len(messages), nbytes, Intent(1, first, last))
            assert isinstance(self._sink, HttpSink)
            headers, chunks = self._sink.request(Batch(1, group, [part]))
            yield SampleRequest(group, headers, b"".join(chunks))

    def close(self) -> None:
        self._sink.close()


def read_sample(lines: Iterable[bytes], settings: Settings) -> Iterator[SampleMessage]:
    """Messages, one JSON object a line as in the format `envelope`; absent fields may be omitted.

    Defaults: the source's first topic, partition 0, and the number of the line as offset.

    Raises:
        ConfigError: The source is not Kafka, or a line is no message.
    """
    if settings.source.rocketmq is not None:
        raise ConfigError(
            "a sample can only have the fields of Kafka messages, and RocketMQ messages have more",
            hint="try the rules with source.kafka in a copy of this file",
        )
    topic = next((name for name in settings.source.kafka.topics if not name.startswith("^")), "sample")
    ends: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            message = _message(loads(line), number, topic)
            if message.offset < ends.get(message.tp, 0):
                raise ValueError(f"the offset {message.offset} is not above those before it in {message.tp}")
            ends[message.tp] = message.offset + 1
            yield message
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"line {number + 1} of the sample is no message: {error}",
                hint='each line is like {"headers": [["tag", "paid"]], "value": "{}"}; bytes are in value_base64',
            ) from error


def _message(row: dict[str, Any], number: int, topic: str) -> SampleMessage:
    if unknown := sorted(row.keys() - _KNOWN):
        raise ValueError(f"it has the unknown key {unknown[0]}")
    given = {
        name: _bytes(row[f"{name}_base64"], row.get(name)) if f"{name}_base64" in row else _encoded(row.get(name))
        for name in _TEXTS
    }
    headers = [(str(name), value if value is None else _header(value)) for name, value in row.get("headers") or ()]
    tp = TopicPartition(str(row.get("topic", topic)), int(row.get("partition", 0)))
    timestamp = row.get("timestamp")
    return SampleMessage(
        tp,
        int(row.get("offset", number)),
        None if timestamp is None else int(timestamp),
        given["key"],
        headers,
        given["value"],
    )


def _bytes(text: str, beside: object) -> bytes:
    if beside is not None:
        raise ValueError("it has both a text and a base64 value for one field")
    return base64.b64decode(text, validate=True)


def _encoded(text: object) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError("key and value are texts; JSON is a text too: quote it")
    return text.encode("utf-8", "surrogateescape")


def _header(value: Any) -> bytes:
    encoded = base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else _encoded(value)
    assert encoded is not None
    return encoded


class SampleColumns(GetterColumns):
    """Reads messages of the sample."""

    def __init__(self) -> None:
        super().__init__(*map(attrgetter, ("offset", "timestamp", "key", "headers", "value", "details")))

    def origins(self, tp: TopicPartition, messages: Sequence[Any]) -> list[Raw]:  # noqa: ARG002
        """No message is a copy of another."""
        return [None] * len(messages)
