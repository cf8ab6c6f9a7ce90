"""What the local files of a changelog have, as they are on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rocksdict import AccessType, Rdict

from sidecar.delay.changelog.notes import NotedPlace
from sidecar.delay.database import ROWS, options, pairs
from sidecar.delay.rows import Kind, prefix

PREFIX_BYTES = len(prefix(Kind.NOTE, 0))


def places_in(folder: Path) -> Sequence[NotedPlace]:
    """The places that a start would find; none if there are none yet. A process may use the folder."""
    try:
        rows = Rdict(str(folder / ROWS), options(), access_type=AccessType.read_only())
    except Exception:  # noqa: BLE001  # files come and go
        return []
    with closing(rows):
        found = pairs(rows.iter(), Kind.NOTE)
        return [NotedPlace.decoded(raw) for key, raw in found if len(key) == PREFIX_BYTES]
