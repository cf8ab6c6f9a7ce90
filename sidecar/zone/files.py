"""What the zone does to a file system: make, append, replace, remove durably. What the bytes mean may not come in.

An object store would need another module of these names: `put` is one upload, a line an object of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Without it a power cut may take away a file that was just made or renamed, synced bytes included.

    Raises:
        OSError: It failed.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(path: Path) -> None:
    """Make what another program wrote into a file, or into a folder, survive a power cut.

    Raises:
        OSError: It failed, or nothing is there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(path: Path, data: bytes | memoryview) -> None:
    """Make or replace a file: all of it or nothing is there, also after a power cut.

    After a failure the hidden file is gone, and the file under its name is the old one or the new one.

    Raises:
        OSError: It failed.
    """
    hidden = path.with_name(f"{HIDDEN}{path.name}")
    try:
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_at(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(hidden, path)  # noqa: PTH104
    except OSError:
        with contextlib.suppress(OSError):
            remove(hidden)
        raise
    sync_folder(path.parent)


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


def read_from(path: Path, at: int) -> bytes | None:
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


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at a place, however many calls it takes.

    Raises:
        OSError: It failed; a part may be written.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


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
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.end = os.fstat(self._fd).st_size
            """Bytes that count."""
            sync_folder(path.parent)
        except OSError:
            os.close(self._fd)
            raise

    def append(self, line: bytes) -> None:
        """Add a line, given without its line feed.

        Raises:
            OSError: It failed, and nobody sees the line; `cut` has to succeed before the next call.
        """
        write_at(self._fd, line, self.end)
        os.fsync(self._fd)
        write_at(self._fd, b"\n", self.end + len(line))
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
        write_at(self._fd, line, at)
        os.fsync(self._fd)
        write_at(self._fd, b"\n", at + len(line))
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)
