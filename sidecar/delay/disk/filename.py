"""The names of the files of a store, which have the salts of their checksums. Opens no file."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.errors import StateError

SUFFIX, LOG_SUFFIX = ".delay", ".wal"
FORM = "-2"
"""Version of the rows in files and logs; the first version had no mark."""
_FILE = re.compile(rf"(\d+)-([0-9a-f]{{8}}){FORM}\.delay")
_LOG = re.compile(rf"(\d+)-([0-9a-f]{{8}}){FORM}\.wal")


def path_of(folder: Path, hour: int, salt: int) -> Path:
    """The path of an hour's file."""
    return folder / f"{hour}-{salt:08x}{FORM}{SUFFIX}"


def named_by(path: Path) -> tuple[int, int] | None:
    """The hour and the salt in a file's name; None if it is not the file of an hour."""
    found = _FILE.fullmatch(path.name)
    return None if found is None else (int(found[1]), int(found[2], 16))


def logged_by(path: Path) -> tuple[int, int] | None:
    """The number and the salt in a log's name; None if it is not a log."""
    found = _LOG.fullmatch(path.name)
    return None if found is None else (int(found[1]), int(found[2], 16))


def logs_of(folder: Path) -> dict[int, Path]:
    """The logs of a folder by number, in order."""
    found = [(logged_by(path), path) for path in folder.glob(f"*{LOG_SUFFIX}")]
    return dict(sorted((name[0], path) for name, path in found if name is not None))


def is_unused(path: Path) -> bool:
    """Whether a folder without a checkpoint is new, also where the first checkpoint could not be written."""
    logs = path.glob(f"*{LOG_SUFFIX}")
    return not any(path.glob(f"*{SUFFIX}")) and not any(log.stat().st_size for log in logs)


def refuse_unknown(path: Path) -> None:
    """Refuse files whose names have no salt or another form: their bytes mean something else.

    Raises:
        StateError: There is one.
    """
    found = [each for each in path.glob(f"*{SUFFIX}") if named_by(each) is None]
    found += [each for each in path.glob(f"*{LOG_SUFFIX}") if logged_by(each) is None]
    for each in sorted(found):
        raise StateError(
            f"delayed messages: {each} was written by another version of Sidecar, and this one cannot read it",
            hint="deliver its messages with that version, and then move the folder away",
        )
