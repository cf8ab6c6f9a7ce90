"""Files that outlive a power cut: make, append, replace, remove. What the bytes mean may not come in.

An object store would need another module of these names: `put` is one upload, a line an object of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

HIDDEN = "."
"""Names that begin so are unfinished; readers and Spark's own file source look past them."""


def make_folder(folder: Path) -> None:
    """Make a folder and what is above it, to stay after a power cut.

    Raises:
        OSError: It cannot be made.
    """
    missing = [folder, *folder.parents]
    missing = missing[: next((i for i, path in enumerate(missing) if path.is_dir()), len(missing))]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)  # noqa: PTH102  # os alone, so that tests can break each call
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file survive a power cut; or, of a folder, the names of what was just made or renamed in it.

    Raises:
        OSError: It failed, or nothing is there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(path: Path, data: bytes | memoryview) -> None:
    """Make or replace a file: all of it or nothing is there, also after a power cut. One process at a time.

    After a failure the hidden file is gone, and the file under its name is the old one or the new one.

    Raises:
        OSError: It failed.
    """
    _put(path, data, path.with_name(f"{HIDDEN}{path.name}"), os.rename)


def put_shared(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """As `put`, where several processes may do it at once.

    Args:
        path: The file.
        data: Its content.
        exclusive: One that is there stays as it is.

    Raises:
        OSError: It failed.
    """
    _put(path, data, path.with_name(f"{HIDDEN}{os.urandom(8).hex()}"), _link if exclusive else os.rename)


def _put(path: Path, data: bytes | memoryview, hidden: Path, name: Callable[[Path, Path], None]) -> None:
    try:
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_at(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        name(hidden, path)
    except OSError:
        with contextlib.suppress(OSError):
            remove(hidden)
        raise
    sync(path.parent)


def _link(hidden: Path, path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(hidden, path)
    remove(hidden)


def remove(path: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        OSError: It failed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def remove_folder_if_empty(folder: Path) -> None:
    """Remove a folder when nothing is in it; anything else is no matter."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def read_from(path: Path, at: int = 0) -> bytes | None:
    """The bytes of a file from a place on; None when the file is not there.

    Raises:
        OSError: It cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        pieces: list[bytes] = []
        while piece := os.pread(fd, 1 << 24, at):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def write_at(fd: int, data: bytes | memoryview, at: int) -> int:
    """Write all of `data` at a place, however many calls it takes, and return the place behind it.

    Raises:
        OSError: It failed; a part may be written.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    return at


def lock(path: Path) -> int | None:
    """A descriptor that holds the lock file, None when another process has it; `unlock` lets go.

    Raises:
        OSError: There are no locks here, or the file cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


def unlock(fd: int) -> None:
    """Let go of what `lock` gave."""
    os.close(fd)


class Lines:
    """A file of lines that is appended to. A line counts when its line feed is there, and that is written last.

    The line itself is synced before its line feed is written. So whoever sees a line sees one that no power cut takes
    back; a line that lost nothing but its line feed is whole, and gets it at the next start.

    Args:
        path: The file; made when it is missing.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.end = os.fstat(self._fd).st_size
            """Bytes that count."""
            sync(path.parent)
        except OSError:
            os.close(self._fd)
            raise

    def append(self, line: bytes) -> None:
        """Add a line, given without its line feed.

        Raises:
            OSError: It failed, and nobody sees the line; `cut` has to succeed before the next call.
        """
        self._write(line, self.end)
        self.end += len(line) + 1

    def cut(self, end: int | None = None) -> None:
        """Take away durably what is behind the last line, or behind `end` bytes.

        Raises:
            OSError: It failed.
        """
        self.end = self.end if end is None else end
        os.ftruncate(self._fd, self.end)
        os.fsync(self._fd)

    def mend(self, at: int, line: bytes) -> None:
        """Write a line and its line feed over the bytes at a place.

        Raises:
            OSError: It failed.
        """
        self._write(line, at)
        os.fsync(self._fd)

    def _write(self, line: bytes, at: int) -> None:
        write_at(self._fd, line, at)
        os.fsync(self._fd)
        write_at(self._fd, b"\n", at + len(line))

    def in_place(self) -> bool:
        """Whether the file is still the one under its name: else nobody sees what is appended.

        Raises:
            OSError: It cannot be told.
        """
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)
