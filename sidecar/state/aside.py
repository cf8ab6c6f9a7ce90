"""Damaged databases, set aside under another name; a bounded number is kept. Does not know their content."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sidecar.state.folder import StateFolder, state_error
from sidecar.state.interface import Damage

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
