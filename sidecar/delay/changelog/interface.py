"""The changelog, and local rows that outlive the process, as their users see them. It contains no implementation.

A changelog has a partition for each partition of the source's topic, with the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.core.records import TopicPartition
from sidecar.delay.interface import HeldStore
from sidecar.delay.rows import Held

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


class Point(NamedTuple):
    """A place in the order of all changes of the files."""

    changes: int
    """The number of changes before it."""
    change: int
    """The number of the first change behind it; numbers go on in the next process."""


class KeptRows(HeldStore, Protocol):
    """Rows of partitions, which a later process finds as they were at the last point that was vouched for.

    Partitions come from other hosts, and go to them. Positions are unique in a partition, but several messages may be
    adopted at one, until all but one are removed.
    """

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        """Hold messages that have positions, in any order; those below the watermark are ignored.

        Their origins are not learned. A position where the partition had a message before must not come again.

        Raises:
            StateError: The disk is full; nothing is held.
        """
        ...

    def learn(self, number: int, origins: Iterable[int]) -> None:
        """Note origins as those of messages that were put."""
        ...

    def remove(self, number: int, position: int, epoch: int) -> bool:
        """End the message that was adopted with this epoch, and not taken; return whether there was one."""
        ...

    def drop(self, number: int) -> None:
        """Forget a partition, and all that it has."""
        ...

    @property
    def vouched(self) -> bytes | None:
        """The table that was vouched for when the files were opened; None if they begin empty."""
        ...

    def retain(self, numbers: Collection[int]) -> None:
        """Drop all partitions but these, which are *spare* until they are used. From now on `vouch` is called."""
        ...

    def use(self, number: int) -> None:
        """A spare partition is owned from now on."""
        ...

    def begin_partition(self, name: bytes) -> int:
        """The number of a new partition."""
        ...

    def point(self) -> Point:
        """The present state of all partitions."""
        ...

    def vouch(self, point: Point, table: bytes) -> None:
        """Let a later process find the state at a point that is durable, with a table."""
        ...

    @property
    def loss(self) -> str:
        """Why the files can no longer be used; empty if they can."""
        ...
