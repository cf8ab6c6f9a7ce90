"""A place for files, and its form as a folder. Names are relative to the place and have slashes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from sidecar import files
from sidecar.errors import SidecarError


class StorageError(OSError):
    """A request to a remote store failed, perhaps with an effect; `told` is the error to show, with the exit code."""

    def __init__(self, told: SidecarError) -> None:
        super().__init__(f"{told}. {told.hint}" if told.hint else str(told))
        self.told = told

    def __reduce__(self) -> tuple[type[StorageError], tuple[SidecarError]]:
        """Spark pickles the errors of its workers."""
        return StorageError, (self.told,)


class Storage(Protocol):
    """A tree of files. ``str()`` is the place as a user writes it. Every call may raise `OSError`."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it is missing."""
        ...

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write or replace a file durably: readers see the old or the new one."""
        ...

    def new_name(self, name: str) -> str:
        """The name to write this file under, so that no failed attempt can still overwrite it."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that exist; folders that become empty may go too."""
        ...

    def sync(self, name: str) -> None:
        """Make a file that was found survive a power loss."""
        ...

    def files(self, folder: str) -> list[str]:
        """The names of all files below a folder, unfinished ones included, in any order."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The last parts of the names of a folder's folders, sorted; empty if it is missing."""
        ...

    def has(self, folder: str) -> bool:
        """Whether a folder exists; the empty name is the place itself."""
        ...

    def lines(self, folder: str) -> LineLog:
        """The lines of one writer, in a folder of their own."""
        ...


class LineLog(Protocol):
    """Lines with the numbers 0, 1, 2, …, in segments of a fixed number of lines.

    One process appends, any may read. A reader sees lines in their order, each completely, with its line feed.
    """

    @property
    def segment_lines(self) -> int: ...

    remembered: int
    """Number of the latest lines that a writer reads when it starts."""

    def lock(self) -> bool:
        """Prepare to append; return False if another process does. `unlock` ends it.

        Raises:
            ConfigError: The store cannot keep two writers apart.
            OSError: It failed.
        """
        ...

    def unlock(self) -> None:
        """Let another process append."""
        ...

    def segments(self, first: int) -> list[int]:
        """The first numbers of the segments from `first` on, in order."""
        ...

    def name(self, seq: int) -> str:
        """The name of the file that has line `seq`."""
        ...

    def exists(self, first: int) -> bool: ...

    def read(self, seq: int, at: int = 0) -> bytes | None:
        """The segment that begins at `seq`, from a byte offset on; None if it is missing."""
        ...

    def head(self, first: int) -> int:
        """The last number of the lines from a segment on, found without reading all; `first` - 1 if there is none."""
        ...

    def remove(self, firsts: Iterable[int]) -> None: ...

    def open(self, first: int) -> Lines:
        """A segment for its writer; created if it is missing."""
        ...


class Lines(Protocol):
    """A segment that is written."""

    end: int
    """Number of valid bytes."""

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
        """Whether readers find appended lines: false once the file was moved or removed."""
        ...

    def close(self) -> None: ...


def first_of(log: LineLog, seq: int) -> int:
    """The first number of the segment that has line `seq`."""
    return seq - seq % log.segment_lines


SEGMENT_LINES: Final = 4096
"""Lines of a segment: the segment of a number is known without listing a folder."""
LOCK: Final = "lock"


class LocalStorage:
    """A `Storage` in a folder, which may be missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def read(self, name: str) -> bytes | None:
        return files.read_from(self._root / name)

    def put(self, name: str, data: bytes | memoryview) -> None:
        """One process at a time for each name."""
        path = self._root / name
        files.make_folder(path.parent, shared=True)
        files.put(path, data, shared=True)

    def new_name(self, name: str) -> str:
        """The same: a local write that failed has ended."""
        return name

    def remove(self, names: Iterable[str]) -> None:
        paths = [self._root / name for name in names]
        for path in paths:
            files.remove(path)
        for folder in {path.parent for path in paths}:
            files.remove_folder_if_empty(folder)

    def sync(self, name: str) -> None:
        files.sync((self._root / name).parent)

    def files(self, folder: str) -> list[str]:
        return [
            f"{Path(path).relative_to(self._root).as_posix()}/{name}"
            for path, _, names in os.walk(self._root / folder)
            for name in names
        ]

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._root / folder) as found:
                return sorted(one.name for one in found if one.name[0] != files.HIDDEN and one.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def has(self, folder: str) -> bool:
        return (self._root / folder).is_dir()

    def lines(self, folder: str) -> LocalLog:
        return LocalLog(self._root, folder)


class LocalLog:
    """A `LineLog` in files of `SEGMENT_LINES`, which are appended to; a lock keeps a second writer out."""

    remembered = 8_192

    def __init__(self, root: Path, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._lock_fd: int | None = None

    @property
    def segment_lines(self) -> int:
        return SEGMENT_LINES

    def lock(self) -> bool:
        files.make_folder(self._root / self._folder, shared=True)
        self._lock_fd = files.lock(self._root / self._folder / LOCK)
        return self._lock_fd is not None

    def unlock(self) -> None:
        if self._lock_fd is not None:
            files.unlock(self._lock_fd)
            self._lock_fd = None

    def segments(self, first: int) -> list[int]:
        found = sorted(int(path.stem) for path in (self._root / self._folder).glob("[0-9]*.log"))
        return [number for number in found if number >= first]

    def name(self, seq: int) -> str:
        return f"{self._folder}/{seq - seq % SEGMENT_LINES:012d}.log"

    def exists(self, first: int) -> bool:
        return os.path.exists(self._root / self.name(first))  # noqa: PTH110

    def read(self, seq: int, at: int = 0) -> bytes | None:
        return files.read_from(self._root / self.name(seq), at)

    def head(self, first: int) -> int:
        """Counts lines and does not check them: a damaged one may make the result one less or more."""
        while self.exists(first + SEGMENT_LINES):
            first += SEGMENT_LINES
        return first + (self.read(first) or b"").count(b"\n") - 1

    def remove(self, firsts: Iterable[int]) -> None:
        for first in firsts:
            files.remove(self._root / self.name(first))

    def open(self, first: int) -> files.LineFile:
        return files.LineFile(self._root / self.name(first))
