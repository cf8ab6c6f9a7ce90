"""Reads Kafka messages by column and cuts consumed messages into runs. Every line is on the hot path."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from typing_extensions import override

from sidecar.core.records import GetterColumns, Header, Run, TopicPartition

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane


class Failed(NamedTuple):
    """An error in the place of a message."""

    tp: TopicPartition
    error: KafkaError
    offset: int


_NO_NAME = "\N{REPLACEMENT CHARACTER}"


class KafkaColumns(GetterColumns):
    """`records.Columns` for confluent-kafka's messages: unbound methods, mapped in C."""

    def __init__(self) -> None:
        super().__init__(Message.offset, _timestamp, Message.key, headers_of, Message.value)  # type: ignore[arg-type]

    @override
    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message; bytes of a name that are not UTF-8 become U+FFFD, as in Java's client."""
        try:
            return list(map(Message.headers, messages))  # type: ignore[arg-type]
        except SystemError:
            return list(map(headers_of, messages))

    def digest(self, message: Message) -> int:
        return digest_of(message)


def _timestamp(message: Message) -> int | None:
    kind, at_ms = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms


def headers_of(message: Message) -> Sequence[Header] | None:
    """The headers of one message, repaired if the client cannot decode a name.

    In that case the client raises, but only at the first call, and keeps pairs whose first half is a null pointer.
    Access to such a pair crashes the process: so they are recognized by what the garbage collector finds in them, and
    replaced before any access.
    """
    with contextlib.suppress(SystemError):
        next(map(Message.headers, (message,)))  # a plain call, once it is hot, raises anywhere but here
    headers: Any = message.headers()
    if headers and any(len(gc.get_referents(pair)) < 2 for pair in headers):
        headers = [pair if len(gc.get_referents(pair)) == 2 else (_NO_NAME, pair[1]) for pair in headers]
        message.set_headers(headers)
    return headers  # type: ignore[no-any-return]


def digest_of(message: Message) -> int:
    """Hash over leader epoch, timestamp, key, headers and value, 64 bits: it identifies the message at its offset."""
    parts = [message.key(), message.value()]
    for name, value in headers_of(message) or ():
        parts += [name.encode("utf-8", "surrogateescape"), value]
    return hash_of(message.leader_epoch(), message.timestamp(), parts)


def hash_of(leader_epoch: int | None, timestamp: tuple[int, int], parts: Sequence[bytes | None]) -> int:
    """The hash over these; `parts` are key, value, and the names and values of the headers."""
    whole = xxhash.xxh3_64()
    whole.update(repr((leader_epoch, timestamp, [part and len(part) for part in parts])).encode())
    for part in parts:
        whole.update(part or b"")
    return int(whole.intdigest())


class LaneColumns(GetterColumns):
    """`records.Columns` for messages of the fast lane."""

    def __init__(self) -> None:
        offset, key, headers, value = map(attrgetter, ("offset", "key", "headers", "value"))
        super().__init__(offset, _lane_timestamp, key, headers, value)

    @override
    def offsets(self, messages: Sequence[fastlane.Message]) -> Iterable[int]:
        offsets = getattr(messages, "offsets", None)  # of `LaneMessages`, which makes no message of it
        return super().offsets(messages) if offsets is None else offsets()

    def digest(self, message: fastlane.Message) -> int:
        """The same hash as `digest_of`."""
        parts = [message.key, message.value]
        for name, value in message.headers or ():
            parts += [name.encode("utf-8", "surrogateescape"), value]
        return hash_of(message.leader_epoch, message.timestamp, parts)


def _lane_timestamp(message: fastlane.Message) -> int | None:
    kind, at_ms = message.timestamp
    return at_ms if kind else None


def runs_and_errors(messages: list[Message], *, one_topic: bool = False) -> list[Run | Failed]:
    """Cut messages as `runs_of` does; errors are in their places."""
    if not any(map(Message.error, messages)):
        return list[Run | Failed](runs_of(messages, one_topic=one_topic)) if messages else []
    found: list[Run | Failed] = []
    for is_good, group in groupby(messages, lambda message: message.error() is None):
        some = list(group)
        found += runs_of(some, one_topic=one_topic) if is_good else map(_failed, some)
    return found


def _failed(message: Message) -> Failed:
    error = message.error()
    assert error is not None
    return Failed(TopicPartition(message.topic() or "", message.partition() or 0), error, message.offset() or 0)


def runs_of(messages: list[Message], *, one_topic: bool = False) -> list[Run]:
    """Cut consumed messages, at least one and none with an error, into runs of one partition with rising offsets."""
    if len(set(map(Message.partition, messages))) == 1 and (one_topic or len(set(map(Message.topic, messages))) == 1):
        return _rising(messages)
    places = list(zip(map(Message.topic, messages), map(Message.partition, messages), strict=True))
    cuts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1]), len(places)]
    return [run for start, stop in pairwise(cuts) for run in _rising(messages[start:stop])]


def _rising(messages: list[Message]) -> list[Run]:
    """Cut where offsets fall back, as they do within one call's messages after a seek."""
    first, last = _offset(messages[0]), _offset(messages[-1])
    tp = TopicPartition(messages[0].topic() or "", messages[0].partition() or 0)
    if last - first + 1 == len(messages):
        return [Run(tp, messages, first, last)]
    offsets = list(map(_offset, messages))
    falls = [i for i in range(1, len(offsets)) if offsets[i] <= offsets[i - 1]]
    cuts = [0, *falls, len(offsets)]
    return [Run(tp, messages[a:b], offsets[a], offsets[b - 1]) for a, b in pairwise(cuts)]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
