"""Columns for sources whose messages a store may hold: of messages as they come, and of held ones that are due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from sidecar.core.records import Columns, Details, Header, Message
from sidecar.delay.disk.blocks import Held
from sidecar.delay.headers import unpack_headers


class HeldColumns:
    """`records.Columns` for held messages.

    Args:
        origins: Whether the offset of a message is that at the source; else it is its position in the store.
    """

    def __init__(self, *, origins: bool) -> None:
        self._origins = origins

    def offsets(self, messages: Sequence[Held]) -> Iterable[int]:
        """The offset of each message."""
        return [held.origin for held in messages] if self._origins else [held.position for held in messages]

    def timestamps(self, messages: Sequence[Held]) -> Iterable[int | None]:
        """The timestamp of each message, None if it has none."""
        return [held.timestamp_ms for held in messages]

    def keys(self, messages: Sequence[Held]) -> Iterable[bytes | None]:
        """The key of each message."""
        return [held.key for held in messages]

    def headers(self, messages: Sequence[Held]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message."""
        return [unpack_headers(held.headers) for held in messages]

    def values(self, messages: Sequence[Held]) -> Iterable[bytes | None]:
        """The value of each message."""
        return [held.value for held in messages]

    def details(self, messages: Sequence[Held]) -> Iterable[Details | None]:
        """None: only messages of Kafka are held."""
        return repeat(None, len(messages))


class BothColumns:
    """`records.Columns` for lists that are either a source's messages or held ones.

    Args:
        source: For the source's messages.
        origins: See `HeldColumns`.
    """

    def __init__(self, source: Columns, *, origins: bool) -> None:
        self._source = source
        self._held = HeldColumns(origins=origins)

    def _of(self, messages: Sequence[Message]) -> Columns:
        return self._held if messages and isinstance(messages[0], Held) else self._source

    def offsets(self, messages: Sequence[Message]) -> Iterable[int]:
        """The offset of each message."""
        return self._of(messages).offsets(messages)

    def timestamps(self, messages: Sequence[Message]) -> Iterable[int | None]:
        """The timestamp of each message, None if it has none."""
        return self._of(messages).timestamps(messages)

    def keys(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The key of each message."""
        return self._of(messages).keys(messages)

    def headers(self, messages: Sequence[Message]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message."""
        return self._of(messages).headers(messages)

    def values(self, messages: Sequence[Message]) -> Iterable[bytes | None]:
        """The value of each message."""
        return self._of(messages).values(messages)

    def details(self, messages: Sequence[Message]) -> Iterable[Details | None]:
        """RocketMQ's own attributes of each message, None for other brokers."""
        return self._of(messages).details(messages)
