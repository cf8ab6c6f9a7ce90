"""Repeats the logs of a store with several partitions; has the forms of records other than messages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sidecar.core.snapshots import bitmap_of
from sidecar.delay.disk.blocks import ROW_TYPE
from sidecar.delay.disk.changes import Kind, LogEntry, sections
from sidecar.delay.disk.gathered import Gathered
from sidecar.delay.disk.hour import FileDamage
from sidecar.delay.disk.wal import records
from sidecar.delay.lanes import PartitionReaders
from sidecar.errors import StateError

GATHERED_BYTES_MAX = 16 << 20
KEEP = struct.Struct("<HQQQ")
"""Partition, watermark, mark, floor; the state follows."""
CANCEL = struct.Struct("<HQ")
"""Partition and position."""
REMOVE = struct.Struct("<HQQ")
"""Partition, position and epoch of one of several messages at a position."""
FORGET = struct.Struct("<HQQ")
"""Partition, and a range of origins."""
PARTITION = struct.Struct("<H")
"""Number of a partition that is dropped, or that learns origins, which follow."""


def unreadable(path: Path, error: Exception) -> StateError:
    """The error of a log whose records are undamaged, and of another form."""
    return StateError(
        f"delayed messages: {path} cannot be read: {error}",
        hint="use the version of Sidecar that wrote it, or a later one",
    )


class Replay:
    """Repeats logged changes on the messages of files.

    Args:
        register: Gives the next number to a name.
        damages: Gets the damage that is found.
    """

    def __init__(self, lanes: PartitionReaders, register: Callable[[bytes], object], damages: list[FileDamage]) -> None:
        self._lanes, self._register, self._damages = lanes, register, damages
        self._cancelled: list[tuple[int, int]] = []
        self._gathered, self._kind = Gathered(), Kind.PUT
        """Messages that the hours do not have yet, and whether they were put or adopted."""
        self._removed: list[tuple[int, int, int]] = []
        self._moved: set[int] = set()
        """Partitions whose watermark has changed."""

    def run(self, logs: Iterable[tuple[Path, int | None]]) -> bool:
        """Repeat logs in their order; return whether they have anything.

        Args:
            logs: Each with its durable bytes, None if they are not known; see `records`.

        Raises:
            OSError: A log or the file of an hour cannot be read, or the disk cannot be written.
            StateError: A later version wrote a log.
        """
        is_changed = False
        for path, until in logs:
            for record in records(path, until):
                is_changed = True
                if isinstance(record, int):
                    self._damages.append(FileDamage(path, f"{record} bytes of it are damaged", 0))
                    continue
                self._repeat_all(path, record)
        if is_changed:
            self._restore()
            self._lanes.settle(self._cancelled, self._moved)
            for number, position, epoch in self._removed:
                self._lanes.cancel(number, position, epoch)
        return is_changed

    def _repeat_all(self, path: Path, record: memoryview) -> None:
        try:
            for kind, body in sections(record):
                self._repeat(kind, body)
        except (ValueError, LookupError, struct.error) as error:
            raise unreadable(path, error) from error

    def _repeat(self, kind: Kind, body: memoryview) -> None:
        lanes = self._lanes
        if kind in {Kind.PUT, Kind.ADOPT}:
            self._gather(kind, LogEntry.decoded(body))
        elif kind == Kind.NAME:
            self._register(bytes(body))
        elif kind == Kind.KEEP:
            self._keep(body)
        elif kind == Kind.FORGET:
            number, first, end = FORGET.unpack(body)
            lanes.lanes[number].known.remove_range(first, end)
        elif kind == Kind.LEARN:
            lanes.lanes[PARTITION.unpack_from(body)[0]].learn(bitmap_of(bytes(body[PARTITION.size :])))
        elif kind == Kind.DROP:
            self._restore()
            lanes.leave(*PARTITION.unpack(body))
        elif kind == Kind.REMOVE:
            self._removed.append(REMOVE.unpack(body))
        else:
            self._cancelled.append(CANCEL.unpack(body))

    def _gather(self, kind: Kind, entry: LogEntry) -> None:
        if kind == Kind.PUT:
            rows = np.frombuffer(entry.table, ROW_TYPE)
            for number in np.unique(rows["partition"]).tolist():
                self._lanes.lanes[number].learn(rows["origin"][rows["partition"] == number].tolist())
        if kind != self._kind or self._gathered.nbytes > GATHERED_BYTES_MAX:
            self._restore()
        self._kind = kind
        self._gathered.add_rows(entry.table, entry.payloads)

    def _restore(self) -> None:
        """Pass the gathered messages to the hours."""
        self._lanes.restore(self._gathered, is_adopted=self._kind == Kind.ADOPT)
        self._gathered = Gathered()

    def _keep(self, body: memoryview) -> None:
        number, watermark, mark, floor = KEEP.unpack_from(body)
        lane = self._lanes.lanes[number]
        lane.state, lane.watermark = bytes(body[KEEP.size :]), max(lane.watermark, watermark)
        lane.forget_origins(floor)
        self._lanes.mark = max(self._lanes.mark, mark)
        self._moved.add(number)
