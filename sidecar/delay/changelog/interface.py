"""The changelog as its users see it. It contains no implementation.

A changelog has a partition for each partition of the source's topic, with the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.core.records import TopicPartition

LOST = -1
"""In place of an offset: the entries were refused, since a later owner has claimed the partition."""


class ChangelogEntry(NamedTuple):
    """An entry to append. A value of None marks the key as no longer needed."""

    key: bytes
    value: bytes | None


class ChangelogRecord(NamedTuple):
    """An entry with its offset."""

    offset: int
    key: bytes
    value: bytes | None


class Changelog(Protocol):
    """Appends to the changelogs of partitions of the source. For the main thread."""

    @property
    def broken(self) -> str:
        """Why an entry can no longer be appended, and what to do; empty if all is well. It stays."""
        ...

    @property
    def waiting(self) -> str:
        """Why no entry has been acknowledged for some seconds, though some wait for it; empty if all is well."""
        ...

    def append(
        self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Callable[[int], None] | None = None
    ) -> None:
        """Append entries in this order behind those before. It never blocks, and tries until `broken`.

        Args:
            tp: A partition of the source, for which `Restorer.open` was called.
            done: Called from a later `serve` with the offset of the last one, once all of them are acknowledged by all
                replicas in sync; in the order of the calls, for one partition. `LOST` if they are refused.
        """
        ...

    def serve(self, timeout_s: float = 0.0) -> None:
        """Call `done` for acknowledged appends; wait this long at most for the first acknowledgement."""
        ...

    def close(self) -> None:
        """Drop unacknowledged entries, and disconnect."""
        ...


class Restorer(Protocol):
    """Reads the changelog of one partition while it is taken over. For any thread, one at a time for a partition."""

    def open(self, tp: TopicPartition) -> int:
        """Make the topic if it is missing, and give it partitions up to this one; check it.

        Returns:
            48 bits of the topic's id, never 0.

        Raises:
            ConfigError: The topic cannot be used, or the rights are missing.
            UnavailableError: No broker answers.
        """
        ...

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        """Append entries, and wait until all are acknowledged; return the offset of the last one.

        Raises:
            UnavailableError: No broker answers; some may have been appended.
        """
        ...

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        """All records in [begin, end) that are not compacted away, in order, in batches of some hundred.

        There is a record at `end`, or behind it.

        Raises:
            UnavailableError: No broker answers.
        """
        ...


@runtime_checkable
class FencingRestorer(Restorer, Protocol):
    """For a changelog that refuses an earlier owner's appends after a claim: so all of its entries count."""

    def find(self, tp: TopicPartition, key: bytes) -> bytes | None:
        """The value of a key; None if there is none.

        Raises:
            UnavailableError: No database answers.
        """
        ...
