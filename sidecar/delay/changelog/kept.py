"""Local rows that outlive the process, as their user sees them. It contains no implementation."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from sidecar.delay.interface import RestoredRows


class Point(NamedTuple):
    """A place in the order of all changes of the files."""

    changes: int
    """The number of changes before it."""
    log: int
    """The log that was written then."""
    end: int
    """Its bytes."""
    is_behind: bool
    """Whether all is before it that is in the files of a checkpoint that waits."""


class KeptRows(RestoredRows, Protocol):
    """Rows of partitions, which a later process finds as they were at the last point that was vouched for."""

    @property
    def vouched(self) -> bytes | None:
        """What was vouched for when the files were opened; None if they begin empty."""
        ...

    def retain(self, numbers: Collection[int]) -> None:
        """Drop all partitions but these, which are *spare* until they are used. From now on `vouch` is called."""
        ...

    def use(self, number: int) -> None:
        """A spare partition is owned from now on."""
        ...

    def begin(self, name: bytes) -> int:
        """The number of a new partition.

        Raises:
            StateError: There are too many.
        """
        ...

    @property
    def asks(self) -> bool:
        """Whether a checkpoint waits for a point behind it to be vouched for."""
        ...

    def point(self) -> Point:
        """The present state of all partitions.

        Raises:
            StateError: The disk cannot be written.
        """
        ...

    def vouch(self, point: Point, table: bytes) -> None:
        """Let a later process find the state at a point that is durable, with a table."""
        ...

    def allow(self, point: Point) -> None:
        """What was vouched for is durable: a checkpoint may be written that has all before this point."""
        ...

    @property
    def loss(self) -> str:
        """Why the files cannot be used any more; empty if they can."""
        ...
