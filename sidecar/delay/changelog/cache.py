"""The rows of a changelog's owned partitions on the local disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from sidecar.delay.partitions import PartitionStore
from sidecar.state.folder import state_error


class LocalCache(PartitionStore):
    """A `Cache`. It begins empty: what it holds is restored from the changelog.

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

    @property
    def unsynced(self) -> int | None:
        """Nothing waits for this disk: the broker has it."""
        return None
