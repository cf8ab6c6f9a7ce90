"""Interfaces of a place for files. Names are relative to it and have slashes; no implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sidecar.errors import SidecarError


class StorageError(OSError):
    """A store that is not on this host did not do what was asked; its effect is unknown.

    Args:
        told: The same for a person, with the exit code.
    """

    def __init__(self, told: SidecarError) -> None:
        super().__init__(f"{told}. {told.hint}" if told.hint else str(told))
        self.told = told

    def __reduce__(self) -> tuple[type[StorageError], tuple[SidecarError]]:
        """For a worker of Spark, whose errors are pickled."""
        return StorageError, (self.told,)


class Storage(Protocol):
    """A tree of files. ``str()`` is the place as a user writes it. Every call may raise `OSError`."""

    def read(self, name: str) -> bytes | None:
        """The content of a file, None without it."""
        ...

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write or replace a file durably: readers see the old or the new one."""
        ...

    def new_name(self, name: str) -> str:
        """The name to use for a file instead of this one, so that no attempt that failed can still write it."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that exist; folders that become empty may go too."""
        ...

    def sync(self, name: str) -> None:
        """Make a file that was found survive a power loss."""
        ...

    def files(self, folder: str) -> list[str]:
        """The names of all files below a folder, those of unfinished ones too, in any order."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The last parts of the names of the folders in a folder, sorted; none without it."""
        ...

    def has(self, folder: str) -> bool:
        """Whether there is such a folder; the empty name is the place itself."""
        ...

    def lines(self, folder: str) -> LineLog:
        """The lines of one writer, in a folder of their own."""
        ...


class LineLog(Protocol):
    """Lines with the numbers 0, 1, 2, …, in segments of a fixed number of lines.

    One process appends, any may read. A reader sees lines in their order, each completely, with its line feed.
    """

    @property
    def segment_lines(self) -> int:
        """Lines of a segment."""
        ...

    remembered: int
    """Number of the latest lines that a writer reads at its start."""

    def lock(self) -> bool:
        """Prepare to append; whether no other process does. `unlock` ends it.

        Raises:
            ConfigError: The store cannot keep two writers apart.
            OSError: It failed.
        """
        ...

    def unlock(self) -> None:
        """Let another process append."""
        ...

    def segments(self, first: int) -> list[int]:
        """The first numbers of the segments from one on, in order."""
        ...

    def name(self, seq: int) -> str:
        """The name of the file that has a line."""
        ...

    def exists(self, first: int) -> bool:
        """Whether there is a segment."""
        ...

    def read(self, seq: int, at: int = 0) -> bytes | None:
        """The segment of a number, from an offset in bytes on; None without it."""
        ...

    def head(self, first: int) -> int:
        """The last number of the lines from a segment on, found without reading all; one less than `first` if none."""
        ...

    def remove(self, firsts: Iterable[int]) -> None:
        """Remove segments."""
        ...

    def open(self, first: int) -> Lines:
        """A segment for its writer; created if it is missing."""
        ...


class Lines(Protocol):
    """A segment that is written."""

    end: int
    """Number of bytes that count."""

    def append(self, line: bytes) -> None:
        """Add a line, given without its line feed.

        Raises:
            OSError: It failed; `settle` must succeed before the next call.
            ZoneError: Another process has written this line.
        """
        ...

    def settle(self) -> bool:
        """Bring an `append` that failed to its end; return whether the line is visible. Harmless when repeated.

        Raises:
            OSError: It failed, and nothing is known.
            ZoneError: Another process has written this line.
        """
        ...

    def cut(self, end: int | None = None, /) -> None:
        """Durably remove everything after the last line, or after `end` bytes."""
        ...

    def mend(self, at: int, line: bytes, /) -> None:
        """Overwrite the bytes at an offset with a line and its line feed."""
        ...

    def in_place(self) -> bool:
        """Whether readers find what is appended here."""
        ...

    def close(self) -> None:
        """Close the segment."""
        ...


def first_of(log: LineLog, seq: int) -> int:
    """The first number in the segment of this one."""
    return seq - seq % log.segment_lines
