"""The state folder: created, checked, locked by one process; damaged files set aside. Reads no content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sidecar import files
from sidecar.errors import StateError
from sidecar.state.interface import Damage

IDS_FOLDER = "ids"
DAMAGED_KEPT_MAX = 10
"""Number of set-aside files that are kept; a new one replaces the oldest."""
_SIDE_FILES = ("-wal", "-shm", "-journal")


def set_aside(folder: StateFolder, path: Path, reason: str) -> Damage:
    """Rename a damaged database of this folder, with its side files; return the damage to report.

    Raises:
        StateError: It could not be renamed.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    try:
        # Side files first: a log must never be beside a database that is not its own.
        for suffix in (*_SIDE_FILES, ""):
            with suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{target}{suffix}")
        folder.sync()
        removed = _remove_oldest(path)
    except OSError as error:
        raise state_error("set aside the damaged", path, error) from error
    outcome = f"set aside as {target.name}, a new one begun" + (f", {removed} removed" if removed else "")
    return Damage("database", str(path), reason, outcome)


def files_set_aside(path: Path) -> list[Path]:
    """The databases that were set aside in the place of this one, the oldest first.

    Raises:
        OSError: The folder cannot be read.
    """
    return sorted(
        (file for file in path.parent.glob(f"{path.name}.damaged-*") if not file.name.endswith(_SIDE_FILES)),
        key=lambda file: (file.stat().st_mtime_ns, file.name),
    )


def _remove_oldest(path: Path) -> str:
    kept = files_set_aside(path)
    for file in kept[:-DAMAGED_KEPT_MAX]:
        for suffix in (*_SIDE_FILES, ""):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
    return ", ".join(file.name for file in kept[:-DAMAGED_KEPT_MAX])


class Presence:
    """The files that are under some names now, identified by device and inode.

    The next process does not find data written to a file that was moved, removed, replaced, or hidden by another file
    system. An open file keeps its inode, so no other file can be mistaken for it.

    Args:
        paths: The names. A name without a file is expected to stay so.

    Raises:
        OSError: A name cannot be checked.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known = {path: _identity(path) for path in paths}

    def check(self) -> None:
        """Compare with the files that are there now; takes about 2 µs per file.

        Raises:
            StateError: A name has another file, or none.
        """
        for path, known in self._known.items():
            try:
                identity = _identity(path)
            except OSError as error:
                raise _lost(f"{path} can no longer be found: {error.strerror}") from error
            if identity != known:
                raise _lost(f"{path} was {'removed or moved' if identity is None else 'replaced'} while it was in use")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116  # a third of the time that Path.stat takes
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino


def _lost(what: str) -> StateError:
    return StateError(
        f"state folder: {what}: what is stored now would be lost",
        hint="put it back, and the daemon resumes by itself; if it is lost for good, restart the daemon",
    )


LOCK_FILE = "lock"
FOLDERS = ("ids", "delay", "delay-cache", "native")
FILES = ("state.db", "ledger.db", "lock", "replay.lock", "admin", "zone-writer", "table-maintenance.json")
"""All files that the daemon creates there; names of unfinished and set-aside files are longer."""
_OURS = re.compile(rf"\.?(?:{'|'.join(map(re.escape, FOLDERS + FILES))})(?:[-.].*)?")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

WRITABLE = "to a writable place; under systemd, name it in StateDirectory= or ReadWritePaths="
_CURES = {
    errno.ENOSPC: "free space on its file system",
    errno.EDQUOT: "free space within the user's quota",
    errno.EROFS: f"set state.dir {WRITABLE}",
    errno.ENOTDIR: "set state.dir to a folder; a part of this path is a file",
    errno.ENOLCK: "use a local file system: this one has no file locks",
    errno.EOPNOTSUPP: "use a local file system: this one has no file locks",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE=)",
}


def state_error(action: str, path: Path, error: OSError) -> StateError:
    """A `StateError` with the path and the cure of an operating system error."""
    cure = _CURES.get(error.errno or 0, f"let user id {os.geteuid()} write there, or set state.dir to another folder")
    return StateError(f"state folder: cannot {action} {path}: {error.strerror or error}", hint=cure)


@contextlib.contextmanager
def errors(action: str, path: Path) -> Iterator[None]:
    """Raise errors of the operating system as `StateError`, with the path and the cure."""
    try:
        yield
    except OSError as error:
        raise state_error(action, path, error) from error


def is_read_only(path: Path) -> bool:
    """Whether no process can write to the file system of a path."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def holder_of(folder: Path) -> str:
    """The process that holds the lock of a folder; empty if none does, or if the lock cannot be queried."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        # Released at once; shared, so that two callers do not see each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_in(fd)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return ""


def _written_in(fd: int) -> str:
    """The process whose number the lock file has."""
    pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return f"pid {pid}" if pid else "another process"


class StateFolder:
    """A folder that no other process can open while this object is open; the lock dies with the process.

    Args:
        path: Created with mode 0700 if it is missing.

    Raises:
        StateError: It cannot be created, is no folder, cannot be written, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._make()
        self._lock()

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise StateError(
                f"state folder: {self.path} is a file, not a folder", hint="set state.dir to a folder"
            ) from error
        except OSError as error:
            raise state_error("create", self.path, error) from error

    def _lock(self) -> None:
        path = self.path / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _written_in(self._fd)
            self.close()
            raise StateError(
                f"state folder: {self.path} is in use by {holder}",
                hint="stop that process, or set state.dir in the configuration: each sidecar needs a folder of its own",
            ) from error
        except OSError as error:
            self.close()
            raise state_error("lock", path, error) from error
        # Only the message above needs the pid; a full disk must not keep the daemon from starting.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def file(self, name: str) -> Path:
        """The path of a regular, writable file with mode 0600; created empty if it is missing."""
        path = self.path / name
        try:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise StateError(f"state folder: {path} is not a file", hint="move it away")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                with contextlib.suppress(PermissionError):  # another user's file that is writable
                    os.fchmod(fd, 0o600)
            finally:
                os.close(fd)
            self.sync()
        except OSError as error:
            raise state_error("open", path, error) from error
        return path

    def sync(self) -> None:
        """Make new and renamed files outlive a power loss."""
        files.sync(self.path)

    def close(self) -> None:
        """Unlock the folder; the lock file stays, because removing it would let two processes hold two locks."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def make_private(folder: Path) -> None:
    """Remove the access of other users that earlier versions, or the folder's creator, gave them.

    A folder with other files in it keeps its mode, since somebody else may need them. So does a folder or file of
    another user, such as a mounted volume.

    Raises:
        OSError: The folder cannot be read.
    """
    entries = list(os.scandir(folder))
    ours = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    if len(ours) + sum(entry.name == "lost+found" for entry in entries) == len(entries):
        _close_to_others([folder])
    for entry in ours:
        path = Path(entry.path)
        _close_to_others([path])
        if entry.is_dir(follow_symlinks=False):
            _close_to_others(path.rglob("*"))


def _close_to_others(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            is_file = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
            if is_file and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
                path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
