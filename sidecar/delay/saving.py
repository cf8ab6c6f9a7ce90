"""A checkpoint that is prepared a little at a time, while the store continues. Knows no log."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from sidecar import files
from sidecar.delay.disk.blocks import Table
from sidecar.delay.disk.hour import HourFile
from sidecar.delay.disk.rewriting import DamagedError, Rewrite
from sidecar.delay.disk.snapshot import Snapshot
from sidecar.delay.lanes import PartitionReaders

REWRITTEN_BYTES = 2 << 20
"""Bytes of a file that are rewritten at once, about."""


class Saving:
    """A checkpoint that is prepared: files are appended to, rewritten and made durable, a few at a time.

    Args:
        snapshot: The store's knowledge when its log began.
        unsaved: Hours whose files are not as the snapshot has to know them.
        wasteful: Hours whose files are rewritten.
        removed: Files that the checkpoint does not need.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        unsaved: Sequence[int],
        wasteful: Collection[int],
        removed: Iterable[Path],
        nbytes: int,
    ) -> None:
        self.snapshot, self.old_bytes = snapshot, nbytes
        self._removed = list(removed)
        self.paths: list[Path] = []
        """Files that must be made durable."""
        self.is_allowed = True
        """Whether the checkpoint may be written, once it is ready."""
        self._unsaved = deque(hour for hour in unsaved if hour in snapshot.hours and hour not in wasteful)
        self._wasteful = deque(wasteful)
        self._rewrite: Rewrite | None = None
        watermarks = [each.watermark for each in snapshot.partitions]
        self._watermarks = np.zeros(1 << 16, np.uint64)
        """By partition number; 0 for partitions that are newer than the snapshot."""
        self._watermarks[: len(watermarks)] = watermarks

    def step(self, lanes: PartitionReaders) -> None:
        """Append some messages to their files, or copy some to others.

        Raises:
            OSError: The disk cannot be written; the next call tries again.
        """
        for file in lanes.flush_some(self._unsaved):
            settled = self.snapshot.hours[file.hour].settled
            self._know(file, settled)
        if not self._unsaved and self._wasteful:
            self._rewrite_some(lanes, self._wasteful[0])

    def _know(self, file: HourFile, settled: BitMap) -> None:
        self.snapshot.hours[file.hour] = file.known._replace(settled=settled)
        file.is_synced = True
        if file.size:
            self.paths.append(file.path)

    def _rewrite_some(self, lanes: PartitionReaders, hour: int) -> None:
        """Copy some messages of an hour; one that cannot be rewritten keeps its file."""
        file = lanes.file(hour)
        assert file is not None
        try:
            rewrite = self._rewrite = self._rewrite or Rewrite(file, partial(self._ended, hour), self.snapshot.mark)
            if not rewrite.step(REWRITTEN_BYTES):
                return
        except (OSError, DamagedError) as error:
            lanes.spare(hour)
            if isinstance(error, DamagedError):
                with contextlib.suppress(OSError):
                    lanes.check(file)
            self._leave(hour)
        else:
            lanes.rewritten(rewrite)
            self._removed.append(file.path)
            self.old_bytes += file.size
            self._know(rewrite.following, BitMap())
        self._rewrite = None
        self._wasteful.popleft()

    def _leave(self, hour: int) -> None:
        """Let an hour keep its file."""
        if self._rewrite is not None:
            with contextlib.suppress(OSError):
                files.remove(self._rewrite.following.path)
        self._unsaved.append(hour)

    def hurry(self) -> None:
        """Rewrite no more files."""
        for hour in self._wasteful:
            self._leave(hour)
        self._rewrite = None
        self._wasteful.clear()

    def _ended(self, hour: int, first: int, table: Table) -> NDArray[np.bool_]:
        """Which messages were ended when the snapshot was taken: every process that reads it knows them as ended."""
        ended = table["position"] < self._watermarks[table["partition"]]
        settled = self.snapshot.hours[hour].settled & BitMap(range(first, first + len(table)))
        ended[np.fromiter(settled, np.int64, len(settled)) - first] = True
        return np.asarray(ended)

    def remove(self) -> None:
        """Remove files that the checkpoint does not need, on any thread; failures are left to the next start."""
        for path in self._removed:
            with contextlib.suppress(OSError):
                files.remove(path)

    @property
    def is_flushed(self) -> bool:
        """Whether all messages are in files."""
        return not self._unsaved and not self._wasteful
