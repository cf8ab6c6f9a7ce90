"""Columns for sources whose messages a store may hold: of messages as they come, and of held ones that are due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from sidecar.core.messages.fields import HeaderColumns, OriginColumns, Raw, header_column
from sidecar.core.records import Columns, Details, GetterColumns, Header, Message, Original, TopicPartition
from sidecar.delay.headers import Attached, pack_headers, unpack_attached, unpack_headers
from sidecar.delay.rows import Held


def packed_headers(columns: Columns, tp: TopicPartition, messages: Sequence[Message]) -> list[bytes]:
    """Pack the headers of a source's messages for a store, with all that RocketMQ attaches to them."""
    headers = columns.headers(messages)
    if not isinstance(columns, OriginColumns):
        return [pack_headers(each) if each else b"" for each in headers]
    rows = zip(headers, columns.details(messages), columns.origins(tp, messages), strict=True)
    return [pack_headers(each or (), _attached(details, origin)) for each, details, origin in rows]


def _attached(details: Details | None, origin: Raw) -> Attached | None:
    return Attached(details, origin) if details is not None and isinstance(origin, bytes) else None


def original_of(held: Held) -> Original:
    """A held message as it was at the broker."""
    return Original(held.key, held.value, unpack_headers(held.headers), held.timestamp_ms, _details(held))


class HeldColumns(GetterColumns):
    """Reads held messages.

    Args:
        origins: Whether the offset of a message is that at the source; else it is its position in the store.
    """

    def __init__(self, *, origins: bool) -> None:
        super().__init__(
            attrgetter("origin" if origins else "position"), attrgetter("timestamp_ms"), attrgetter("key"),
            lambda held: unpack_headers(held.headers), attrgetter("value"), _details,
        )  # fmt: skip

    def header(self, messages: Sequence[Held], name: str) -> list[Raw]:
        return header_column(self, messages, name)

    def origins(self, tp: TopicPartition, messages: Sequence[Held]) -> list[Raw]:  # noqa: ARG002
        """Where each message was stored first, None if the broker does not report it."""
        return [None if attached is None else attached.origin for attached in _attached_to(messages)]


def _details(held: Held) -> Details | None:
    attached = unpack_attached(held.headers)
    return None if attached is None else attached.details


def _attached_to(messages: Sequence[Held]) -> Iterator[Attached | None]:
    return (unpack_attached(held.headers) for held in messages)


class BothColumns:
    """`records.Columns` for lists that are either a source's messages or held ones."""

    def __init__(self, source: Columns, *, origins: bool) -> None:
        self._source = source
        self._held = HeldColumns(origins=origins)

    def _of(self, messages: Sequence[Message]) -> Columns:
        return self._held if messages and isinstance(messages[0], Held) else self._source

    def offsets(self, messages: Sequence[Message]) -> Iterable[int]:
        return self._of(messages).offsets(messages)

    def timestamps(self, messages: Sequence[Message]) -> Iterable[int | None]:
        return self._of(messages).timestamps(messages)

    def keys(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        return self._of(messages).keys(messages)

    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        return self._of(messages).headers(messages)

    def values(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        return self._of(messages).values(messages)

    def details(self, messages: Sequence[Message]) -> Iterable[Details | None]:
        return self._of(messages).details(messages)

    def header(self, messages: Sequence[Message], name: str) -> list[Raw]:
        columns = self._of(messages)
        if isinstance(columns, HeaderColumns):
            return columns.header(messages, name)
        return header_column(columns, messages, name)

    def origins(self, tp: TopicPartition, messages: Sequence[Message]) -> list[Raw]:
        """Where each message was stored first; only if the source's columns have it."""
        columns = self._of(messages)
        assert isinstance(columns, OriginColumns)
        return columns.origins(tp, messages)
