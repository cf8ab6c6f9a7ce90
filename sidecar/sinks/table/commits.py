"""Commits of a Delta table on a local disk: made durable, and checked after a power loss. deltalake syncs nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import orjson

from sidecar import files
from sidecar.errors import ConfigError

UNSYNCED_MAX: Final = 16
"""Number of the newest commits that are checked after a power loss: one of each process may not have been synced."""


def sync_commit(path: str, version: int) -> None:
    """Make a commit in a folder survive a power loss, data before the log that names it; deltalake syncs nothing."""
    root = folder_of(path)
    if root is not None:
        added = [Path(name) for name, _ in _added(root, version)]
        folders = {root / folder for file in added for folder in file.parents}
        log = _log(root, version)
        for synced in [*(root / file for file in added), *folders, log, log.parent]:
            files.sync(synced)


def sync_commits(path: str, first: int, last: int) -> None:
    """Make commits of others survive too, the last `UNSYNCED_MAX` at most: a torn one makes all after it unreadable.

    Args:
        path: The table; nothing is done for a URL.
    """
    root = folder_of(path)
    if root is None:
        return
    for version in range(max(0, first, last - UNSYNCED_MAX), last + 1):
        if _added(root, version):
            with contextlib.suppress(FileNotFoundError):  # compacted and vacuumed meanwhile
                sync_commit(path, version)


def check_newest(path: str, version: int) -> None:
    """Refuse a table whose newest commits a power loss has torn: their names would confirm rows that are missing."""
    root = folder_of(path)
    if root is None:
        return
    for torn in range(max(0, version - UNSYNCED_MAX), version + 1):
        for name, size in _added(root, torn):
            file = root / name
            if file.exists() and file.stat().st_size != size:  # a missing file was compacted and vacuumed
                raise ConfigError(
                    f"the Delta table {path} was torn by a power loss: {name} is incomplete, and version "
                    f"{torn} names it",
                    hint=f"Remove {_log(root, torn).name} and later files from _delta_log: they were not acknowledged",
                )


def folder_of(path: str) -> Path | None:
    """The folder of a table on a local file system; None for a URL, whose store is responsible for its files."""
    path = path.removeprefix("file://")
    return None if "://" in path else Path(path)


def _log(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020d}.json"


def _added(root: Path, version: int) -> list[tuple[str, int]]:
    """Files and sizes in bytes that a commit adds; empty if its log file was cleaned up."""
    actions = map(orjson.loads, (files.read_from(_log(root, version)) or b"").splitlines())
    adds = [action["add"] for action in actions if "add" in action]
    return [(unquote(add["path"]), add["size"]) for add in adds]
