"""What the local files of a changelog vouch for, as they are on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sidecar.delay.changelog.cache import vouched_in
from sidecar.delay.changelog.notes import Note, decoded


def notes_in(folder: Path) -> Sequence[Note]:
    """The notes that a start would find in the logs; none if there are none yet."""
    found = vouched_in(folder)
    return decoded(found) if found else []
