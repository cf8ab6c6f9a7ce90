"""The rows of a changelog's owned partitions on the local disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.disk.hours import hour_of
from sidecar.delay.interface import Row
from sidecar.delay.partitions import PartitionStore
from sidecar.state.folder import state_error

RECLAIMED_BYTES = 1 << 20
"""Size of the file of an hour from which on it is removed when all its partitions have gone."""


class LocalCache(PartitionStore):
    """A `RestoredRows`. It begins empty: what it holds is restored from the changelog.

    Args:
        path: A folder that no other process uses; what is there is removed.

    Raises:
        StateError: The folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        try:
            if path.exists():
                shutil.rmtree(path)
        except OSError as error:
            raise state_error("remove", path, error) from error
        super().__init__(path)
        self._lanes.reclaimed_bytes = RECLAIMED_BYTES

    def put(self, number: int, rows: Iterable[Row]) -> list[int]:
        """Hold messages; see `PartitionStore.put`."""
        rows, floor = list(rows), hour_of(self._lanes.mark)
        hours = [floor, *(row[0] // HOUR_MS for row in rows)]
        self._journal.reuse(min(hours), max(hours) + 1)
        return super().put(number, rows)

    def remove(self, number: int, position: int, epoch: int) -> bool:
        """End the message that was adopted with this epoch, and not taken; return whether there was one.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._folder.errors("read"):
            return self._lanes.cancel(number, position, epoch)

    @property
    def unsynced(self) -> int | None:
        """Nothing waits for this disk: the broker has it."""
        return None

    def close(self) -> None:
        """Free the folder; nothing in it is needed any more."""
        self._journal.close()
        self._folder.close()
