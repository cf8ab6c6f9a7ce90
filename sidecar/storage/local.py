"""A local folder, or a shared one with POSIX renames and locks, as a `Storage`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sidecar import files

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
