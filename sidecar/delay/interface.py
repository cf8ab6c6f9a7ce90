"""The interface of a store that holds messages of several partitions. It contains no implementation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyroaring import BitMap64

from sidecar.delay.rows import Held, Leave, ListedRow, Pair

LISTED_MAX = 1_000
"""Messages that are listed at once."""


class FileDamage(NamedTuple):
    """A damaged file."""

    path: Path
    reason: str
    messages: int
    """Number of messages that are lost; 0 if that is not known."""


class StorePlace(NamedTuple):
    """Where the messages of a partition are."""

    store: int
    """The identity of the store, 48 bits; never 0."""
    scope: str
    """The identity of the partition's positions."""
    epoch: int = 0
    """Epoch of the ownership, see `delay.changelog.takeover`; 0 if only this host has the store."""
    put: int = 0
    """The number of the last durable change of this partition; 0 if there was none since the start."""
    found: int = -1
    """The number of the store's last change at the start; -1 if hosts share the store."""
    held: int = 0
    """Messages of the partition that are not ended, with parked parts."""
    put_below: int = 0
    """All messages with lower origins were put before the start, or since."""


class Job(Protocol):
    """A write to be made durable."""

    def run(self) -> None:
        """Make it durable, on the writer's thread.

        Raises:
            OSError: It failed.
        """
        ...


class StoreWrites(Protocol):
    """The durability of a store. One thread calls everything but `Job.run`."""

    @property
    def changes(self) -> int:
        """Number of calls so far that changed the store."""
        ...

    @property
    def synced(self) -> int:
        """Number of those changes that are durable."""
        ...

    @property
    def entered(self) -> int:
        """Number of those changes that can be read: messages before are found, or not any more."""
        ...

    @property
    def broken(self) -> OSError | None:
        """Why the last writes can no longer be made durable; None if they can."""
        ...

    @property
    def in_place(self) -> bool:
        """Whether the store's files are where it was opened: if not, what is written is lost."""
        ...

    def poll(self) -> None:
        """Note changes that have become durable."""
        ...

    def begin_sync(self) -> Job | None:
        """Begin to make all changes durable; None if they are, or if a job is under way. `ended_sync` must follow.

        Raises:
            StateError: The disk cannot be written; nothing is lost, and a later call tries again.
        """
        ...

    def ended_sync(self, job: Any, error: OSError | None) -> None:
        """Handle the end of a job."""
        ...

    def sync(self) -> None:
        """Make all changes durable now; a job that is under way no longer does anything.

        Raises:
            StateError: It failed.
        """
        ...


class View(Protocol):
    """Messages as they were at one moment, in the order of positions; for any thread."""

    def pieces(self, size: int) -> Iterator[Sequence[Pair]]:
        """Rows, about so many at once; all at one position are in one piece.

        Raises:
            StateError: A file cannot be read.
        """
        ...

    def hours(self) -> Mapping[int, int]:
        """Number of messages by the hour in which they are due; the content of none is read.

        Raises:
            StateError: A file cannot be read.
        """
        ...


class ReadRows(Protocol):
    """What a store has, and says without a change. Methods that read files raise `StateError` if that fails."""

    @property
    def damages(self) -> Sequence[FileDamage]:
        """Damage found since the start."""
        ...

    def note_reported(self) -> None:
        """Note that all damage so far was reported: no later start reports it again."""
        ...

    def disk_bytes(self) -> int:
        """Bytes of what is not ended."""
        ...

    def hours(self) -> Mapping[int, int]:
        """Number of messages that are not ended, by the hour in which they are due, without parked parts."""
        ...

    def state(self, number: int) -> bytes | None:
        """The last state given to `keep`."""
        ...

    def known(self, number: int) -> BitMap64:
        """Origins of all messages that were put, at or above the floor."""
        ...

    def held(self, number: int) -> int:
        """Number of messages that were put and are not ended, without parked parts."""
        ...

    def next(self, number: int) -> int | None:
        """A position below which there is nothing to take."""
        ...

    def find(self, number: int, position: int) -> Held | None:
        """One message, or parked part; None if it is gone."""
        ...

    def parked(self, number: int) -> Sequence[Held]:
        """The parked parts that are kept, in no order, without their values."""
        ...

    def listed(
        self, number: int, first: int, end: int, limit: int = LISTED_MAX, origin: int | None = None
    ) -> Sequence[ListedRow]:
        """Messages in [first, end) that were not taken, in order; those of an origin, if one is given."""
        ...

    def view(self, lowest: Mapping[int, int], end: int) -> View:
        """What some partitions have now that was not taken, for any thread; it takes no time.

        Args:
            lowest: The lowest position of each partition, by its number.
            end: The position behind the last.
        """
        ...


class ReadStore(Protocol):
    """Read access to a store."""

    @property
    def rows(self) -> ReadRows:
        """What it has."""
        ...

    def place(self, number: int) -> StorePlace:
        """Where the messages of a partition are."""
        ...


class HeldStore(ReadStore, Protocol):
    """Holds messages by partition and position. One thread calls everything but `Job.run`."""

    @property
    def writes(self) -> StoreWrites:
        """Its durability."""
        ...

    def number(self, name: bytes) -> int:
        """The number of a partition; a new name gets a new one."""
        ...

    def put(self, number: int, rows: Iterable[Held]) -> Sequence[int]:
        """Put messages at their due times; return their positions, none of which is at or below one that was taken.

        Raises:
            StateError: The disk is full, and so is the memory that stands in for it; nothing was put.
        """
        ...

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> Sequence[Held]:
        """The next messages below a position, in order; none that is not durable; `Unread` where `leave` says so.

        Raises:
            StateError: A file cannot be read.
        """
        ...

    def rewind(self, number: int) -> None:
        """Let `take_due` begin again at the watermark."""
        ...

    def cancel(self, number: int, position: int) -> bool:
        """End a message that was not taken, or a parked part; return whether there was one. `forget_cancelled` follows.

        Raises:
            StateError: A file cannot be read.
        """
        ...

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        """End messages that were not taken by their names, in steps of some milliseconds; then call `forget_cancelled`.

        Args:
            lowest: The position from which on messages are ended.
            names: By name, the origin below which messages are ended.

        Yields:
            The messages that a step has ended, without their values; there may be none.

        Raises:
            StateError: A file cannot be read.
        """
        ...

    def forget_cancelled(self, number: int, positions: Iterable[int]) -> None:
        """Make cancellations final for all later owners."""
        ...

    def is_moving(self, number: int) -> bool:
        """Whether a message is being brought forward: it is found at neither position yet."""
        ...

    def release(self, number: int, position: int, due_ms: int) -> int | None:
        """Bring a message that was not taken forward; return its new position, None if there is no such message.

        The position stays if the message is due earlier anyway.

        Raises:
            StateError: A file cannot be read, or the disk is full.
        """
        ...

    def park(self, number: int, part: Held) -> None:
        """Keep a parked part, at a position from `PARKED_FROM` on.

        Raises:
            StateError: The disk is full; nothing was put.
        """
        ...

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        """Keep a state; end the messages below its watermark, and put none below `seen`."""
        ...

    def committed(self, number: int, watermark: int) -> None:
        """Note that the state with this watermark now counts for all owners."""
        ...

    def floor(self, number: int, origin: int) -> None:
        """Forget the origins below this one: they are not put again."""
        ...

    def void(self, number: int, first: int, end: int, *, restarts: bool = False) -> None:
        """Forget the origins in [first, end), and end their messages.

        Args:
            restarts: Whether all origins are forgotten: they may come again.
        """
        ...

    def leave(self, number: int) -> None:
        """Note that the partition is no longer owned."""
        ...
