"""Checks whether open files are still under their names. Does not know their content."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sidecar.errors import StateError


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
                raise _lost(f"{path} cannot be found any more: {error.strerror}") from error
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
