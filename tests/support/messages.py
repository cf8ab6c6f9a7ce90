"""Messages as a list holds them, for tests of sinks without a source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sidecar.core.records import Details, Header, TopicPartition


class Msg(NamedTuple):
    offset: int = 0
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int | None = 1_700_000_000_000
    headers: Sequence[Header] | None = None
    tags: tuple[bytes, ...] = ()
    details: Details | None = None


class ListColumns:
    """Reads columns of `Msg`."""

    def offsets(self, messages: Sequence[Msg]) -> Iterable[int]:
        return [m.offset for m in messages]

    def timestamps(self, messages: Sequence[Msg]) -> Iterable[int | None]:
        return [m.timestamp for m in messages]

    def keys(self, messages: Sequence[Msg]) -> Iterable[bytes | None]:
        return [m.key for m in messages]

    def headers(self, messages: Sequence[Msg]) -> Iterable[Sequence[Header] | None]:
        return [m.headers for m in messages]

    def values(self, messages: Sequence[Msg]) -> Iterable[bytes | None]:
        return [m.value for m in messages]

    def details(self, messages: Sequence[Msg]) -> Iterable[Details | None]:
        return [m.details for m in messages]


def tags_of(tp: TopicPartition, messages: Sequence[Msg]) -> Iterable[tuple[bytes, ...]]:
    """The tags of each message."""
    return [m.tags for m in messages]
