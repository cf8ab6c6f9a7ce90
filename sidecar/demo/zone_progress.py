"""Reads the progress of daemon and query in a landing zone. Starts and changes nothing; needs pyarrow."""

from __future__ import annotations

from pathlib import Path

from sidecar.zone import Tail, acknowledged


class ZoneProgress:
    """Progress of writers and consumer of a landing zone, from its manifests.

    Args:
        zone: Its folder; it may not exist yet.
    """

    def __init__(self, zone: Path) -> None:
        self._zone = zone
        self._tail = Tail(zone)
        self._landed: list[tuple[str, int, int]] = []

    def look(self) -> tuple[int, int]:
        """Numbers of rows landed so far, and of those that its one consumer has read."""
        for writer, entries in self._tail.poll().items():
            self._landed += [(writer, entry.seq, entry.rows) for entry in entries]
        read = next(iter(acknowledged(self._zone).values()), {})
        rows = sum(rows for *_, rows in self._landed)
        return rows, sum(rows for writer, seq, rows in self._landed if seq <= read.get(writer, -1))
