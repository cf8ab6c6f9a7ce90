"""Files that survive a power loss: write, append, replace, remove. A failure is an `OSError`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

HIDDEN = "."
"""Prefix of unfinished files; readers and Spark's own file source skip them."""
_PRIVATE, _SHARED = 0o600, 0o644
"""Modes of files that are for this user alone, and of those that others read, such as Spark's processes."""


def make_folder(folder: Path, *, shared: bool = False) -> None:
    """Create a folder and its parents, which survive a power loss; if `shared`, as open as the umask allows."""
    missing = [folder, *folder.parents]
    missing = missing[: next((i for i, path in enumerate(missing) if path.is_dir()), len(missing))]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o777 if shared else 0o700)  # noqa: PTH102  # os alone, so that tests can break each call
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file survive a power loss; for a folder, the names that were just created or renamed in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(path: Path, data: bytes | memoryview, *, shared: bool = False) -> None:
    """Write or replace a file, completely or not at all, also after a power loss. One process at a time.

    After a failure the hidden file is gone, and the file under its name is the old or the new one.
    """
    _put(path, data, path.with_name(f"{HIDDEN}{path.name}"), os.rename, shared)


def put_shared(path: Path, data: bytes, *, shared: bool = False, exclusive: bool = False) -> None:
    """Like `put`, but several processes may do it at once; with `exclusive`, an existing file stays unchanged."""
    _put(path, data, path.with_name(f"{HIDDEN}{os.urandom(8).hex()}"), _link if exclusive else os.rename, shared)


def _put(path: Path, data: bytes | memoryview, hidden: Path, name: Callable[[Path, Path], None], shared: bool) -> None:
    try:
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _SHARED if shared else _PRIVATE)
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


def cut(path: Path, size: int) -> None:
    """Durably remove all but the first bytes of a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


def remove_folder_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty; failures are ignored."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def read_from(path: Path, at: int = 0) -> bytes | None:
    """The bytes of a file from an offset on; None if the file does not exist."""
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
    """Write all of `data` at an offset, in as many calls as necessary; return the offset after it.

    Raises:
        OSError: It failed; a part may be written.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    return at


def lock(path: Path) -> int | None:
    """A descriptor that holds the lock file, None if another process has it; `unlock` releases it.

    Raises:
        OSError: The file system has no locks, or the file cannot be created.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _SHARED)
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
    """Release a lock of `lock`."""
    os.close(fd)


class LineFile:
    """An append-only file of lines. A line counts once its line feed is there, which is written last.

    The line itself is synced before its line feed is written. So a visible line survives a power loss; a line that lost
    only its line feed is complete, and gets it at the next start.

    Args:
        path: The file; created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _SHARED)
        try:
            self.end = os.fstat(self._fd).st_size
            """Number of bytes that count."""
            sync(path.parent)
        except OSError:
            os.close(self._fd)
            raise

    def append(self, line: bytes) -> None:
        """Add a line, given without its line feed.

        Raises:
            OSError: It failed, and the line is not visible; `settle` must succeed before the next call.
        """
        self._write(line, self.end)
        self.end += len(line) + 1

    def settle(self) -> bool:
        """Remove the remains of a failed `append`; return False, as its line is not visible."""
        self.cut()
        return False

    def cut(self, end: int | None = None) -> None:
        """Durably remove everything after the last line, or after `end` bytes."""
        self.end = self.end if end is None else end
        os.ftruncate(self._fd, self.end)
        os.fsync(self._fd)

    def mend(self, at: int, line: bytes) -> None:
        """Overwrite the bytes at an offset with a line and its line feed."""
        self._write(line, at)
        os.fsync(self._fd)

    def _write(self, line: bytes, at: int) -> None:
        write_at(self._fd, line, at)
        os.fsync(self._fd)
        write_at(self._fd, b"\n", at + len(line))

    def in_place(self) -> bool:
        """Whether the file is still the one under its name; otherwise appended lines are not visible."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        os.close(self._fd)
