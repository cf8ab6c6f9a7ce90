"""Messages of the fast lane: they stay in C until they are sorted there, or asked for. Decides nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, overload

from sidecar.core.records import Header
from sidecar.sources.kafka.columns import hash_of

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane
    from sidecar_fastlane.columns import Table


class LaneColumns:
    """`records.Columns` for messages of the lane."""

    def offsets(self, messages: Sequence[fastlane.Message]) -> Iterable[int]:
        """The offset of each message."""
        if isinstance(messages, LaneMessages):
            return messages.offsets()
        return [message.offset for message in messages]

    def timestamps(self, messages: Sequence[fastlane.Message]) -> Iterable[int | None]:
        """The timestamp of each message in milliseconds since the epoch, None if it has none."""
        return [at_ms if kind else None for kind, at_ms in (message.timestamp for message in messages)]

    def keys(self, messages: Sequence[fastlane.Message]) -> Iterable[bytes | None]:
        """The key of each message."""
        return [message.key for message in messages]

    def headers(self, messages: Sequence[fastlane.Message]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message."""
        return [message.headers for message in messages]

    def values(self, messages: Sequence[fastlane.Message]) -> Iterable[bytes | None]:
        """The value of each message."""
        return [message.value for message in messages]

    def details(self, messages: Sequence[fastlane.Message]) -> Iterable[None]:
        """None."""
        return repeat(None, len(messages))

    def digest(self, message: fastlane.Message) -> int:
        """The same hash as `columns.digest_of`."""
        parts = [message.key, message.value]
        for name, value in message.headers or ():
            parts += [name.encode("utf-8", "surrogateescape"), value]
        return hash_of(message.leader_epoch, message.timestamp, parts)


class LaneMessages(Sequence["fastlane.Message"]):
    """The messages of a run, which come from C when they are asked for; they sort themselves there."""

    def __init__(self, run: fastlane.Run) -> None:
        self._run = run
        self._all: list[fastlane.Message] | None = None
        self._newest: fastlane.Message | None = None

    def __len__(self) -> int:
        return self._run.count

    @overload
    def __getitem__(self, place: int) -> fastlane.Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[fastlane.Message]: ...
    def __getitem__(self, place: int | slice) -> fastlane.Message | list[fastlane.Message]:
        if place == -1 and self._newest is not None:
            return self._newest
        return self._loaded()[place]

    def __iter__(self) -> Iterator[fastlane.Message]:
        return iter(self._loaded())

    def _loaded(self) -> list[fastlane.Message]:
        if self._all is None:
            self._all = [self._run.message(place) for place in range(self._run.count)]
        return self._all

    def offsets(self) -> Sequence[int]:
        """The offset of each message, which makes no message of it."""
        return self._run.offsets() if self._all is None else [message.offset for message in self._all]

    def keep(self, count: int) -> None:
        """See `Run.keep` of the package; call it before a message is asked for."""
        self._run.keep(count)

    def ids(self, rules: Any, /) -> tuple[array[int], int]:
        """See `RunSorter.ids`."""
        self._keep_newest()
        return self._run.ids(rules)

    def sort(self, rules: Any, fresh: bytes | None, /) -> fastlane.Sorted:
        """See `RunSorter.sort`."""
        self._keep_newest()
        return self._run.sort(rules, fresh)

    def columns(self, rules: fastlane.Rules) -> Table:
        """See `Run.columns` of the package."""
        return self._run.columns(rules)

    def _keep_newest(self) -> None:
        """Keep the newest message, for its fingerprint."""
        if self._newest is None:
            self._newest = self._run.message(-1)
