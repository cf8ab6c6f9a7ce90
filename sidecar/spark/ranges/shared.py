"""Small files on storage that driver and executors share. Knows no meaning of the bytes.

Each file is complete or missing: written under a hidden name, synced, renamed, and its folder synced. Each function
raises `StateError` if it fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from sidecar import files
from sidecar.errors import StateError


def names(folder: Path) -> list[str]:
    """The names in a folder without hidden ones; empty if it does not exist."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise error_of("read", folder, error) from error


def read(path: Path) -> bytes:
    """A file as a whole."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise error_of("read", path, error) from error


def read_if_there(path: Path) -> bytes | None:
    """A file as a whole; None if it does not exist."""
    try:
        return files.read_from(path)
    except OSError as error:
        raise error_of("read", path, error) from error


def read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """A file as a whole; the first process that needs it makes it, and all get the same."""
    found = read_if_there(path)
    if found is None:
        write(path, make(), exclusive=True)
        found = read(path)
    return found


def write(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Write a file durably, completely or not at all, in its folder; an existing one stays if it is `exclusive`."""
    try:
        files.make_folder(path.parent, shared=True)
        files.put_shared(path, data, shared=True, exclusive=exclusive)
    except OSError as error:
        raise error_of("write", path, error) from error


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    try:
        shutil.rmtree(path) if path.is_dir() else files.remove(path)
    except OSError as error:
        raise error_of("remove", path, error) from error


def error_of(action: str, path: Path, error: OSError) -> StateError:
    """The error of a file that cannot be used."""
    return StateError(
        f"cannot {action} {path}: {error.strerror or error}",
        hint="it must be on storage that the driver and all executors share and can write to",
    )
