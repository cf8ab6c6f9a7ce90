"""What the local files of a changelog vouch for, as they are on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rocksdict import AccessType, Rdict

from sidecar.delay.changelog.cache import table_in
from sidecar.delay.changelog.notes import Note, decoded
from sidecar.delay.database import ROWS, options
from sidecar.delay.rows import Kind


def notes_in(folder: Path) -> Sequence[Note]:
    """The notes that a start would find; none if there are none yet. A process may use the folder."""
    try:
        rows = Rdict(str(folder / ROWS), options(), access_type=AccessType.read_only())
    except Exception:  # noqa: BLE001  # files come and go
        return []
    with closing(rows):
        raw = rows.get(Kind.VOUCHED)
    return [] if raw is None else decoded(table_in(raw)[1])
