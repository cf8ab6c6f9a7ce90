"""A place for files, and its form as a folder. Names are relative to the place and have slashes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from sidecar import files
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


SEGMENT_LINES: Final = 4096
"""Lines of a segment: the segment of a number is known without listing a folder."""
LOCK: Final = "lock"


class LocalStorage:
    """A folder, which may be missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def read(self, name: str) -> bytes | None:
        """See `Storage`."""
        return files.read_from(self._root / name)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """See `Storage`; one process at a time for each name."""
        path = self._root / name
        files.make_folder(path.parent, shared=True)
        files.put(path, data, shared=True)

    def new_name(self, name: str) -> str:
        """The same."""
        return name

    def remove(self, names: Iterable[str]) -> None:
        """See `Storage`."""
        paths = [self._root / name for name in names]
        for path in paths:
            files.remove(path)
        for folder in {path.parent for path in paths}:
            files.remove_folder_if_empty(folder)

    def sync(self, name: str) -> None:
        """See `Storage`."""
        files.sync((self._root / name).parent)

    def files(self, folder: str) -> list[str]:
        """See `Storage`."""
        return [
            f"{Path(path).relative_to(self._root).as_posix()}/{name}"
            for path, _, names in os.walk(self._root / folder)
            for name in names
        ]

    def folders(self, folder: str) -> list[str]:
        """See `Storage`."""
        try:
            with os.scandir(self._root / folder) as found:
                return sorted(one.name for one in found if one.name[0] != files.HIDDEN and one.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def has(self, folder: str) -> bool:
        """See `Storage`."""
        return (self._root / folder).is_dir()

    def lines(self, folder: str) -> LocalLog:
        """See `Storage`."""
        return LocalLog(self._root, folder)


class LocalLog:
    """Lines in files of `SEGMENT_LINES`, which are appended to; a lock keeps a second writer out."""

    remembered = 8_192

    def __init__(self, root: Path, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._lock_fd: int | None = None

    @property
    def segment_lines(self) -> int:
        """See `LineLog`."""
        return SEGMENT_LINES

    def lock(self) -> bool:
        """See `LineLog`."""
        files.make_folder(self._root / self._folder, shared=True)
        self._lock_fd = files.lock(self._root / self._folder / LOCK)
        return self._lock_fd is not None

    def unlock(self) -> None:
        """See `LineLog`."""
        if self._lock_fd is not None:
            files.unlock(self._lock_fd)
            self._lock_fd = None

    def segments(self, first: int) -> list[int]:
        """See `LineLog`."""
        found = sorted(int(path.stem) for path in (self._root / self._folder).glob("[0-9]*.log"))
        return [number for number in found if number >= first]

    def name(self, seq: int) -> str:
        """See `LineLog`."""
        return f"{self._folder}/{seq - seq % SEGMENT_LINES:012d}.log"

    def exists(self, first: int) -> bool:
        """See `LineLog`."""
        return os.path.exists(self._root / self.name(first))  # noqa: PTH110

    def read(self, seq: int, at: int = 0) -> bytes | None:
        """See `LineLog`."""
        return files.read_from(self._root / self.name(seq), at)

    def head(self, first: int) -> int:
        """See `LineLog`. Lines are counted, not checked: a damaged one may make it one less or more."""
        while self.exists(first + SEGMENT_LINES):
            first += SEGMENT_LINES
        return first + (self.read(first) or b"").count(b"\n") - 1

    def remove(self, firsts: Iterable[int]) -> None:
        """See `LineLog`."""
        for first in firsts:
            files.remove(self._root / self.name(first))

    def open(self, first: int) -> files.LineFile:
        """See `LineLog`."""
        return files.LineFile(self._root / self.name(first))
