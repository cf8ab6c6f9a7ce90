"""The rows of a changelog's owned partitions on the local disk. Knows no changelog.

They outlive the process. After a start they are as they were at one *point* in the order of all changes: the last one
that was vouched for. So each change behind a point is written with what undoes it, until a later point is vouched for:
a start undoes what is behind the last one. A range of rows that ended is removed only then.
"""

from __future__ import annotations

import shutil
import struct
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from rocksdict import WriteBatch

from sidecar import files
from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.delay.changelog.interface import Point
from sidecar.delay.database import DAMAGED, ROWS, RowDatabase, has_files
from sidecar.delay.partition import HeldPartition, Write
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import Kind, end_of, prefix
from sidecar.delay.stored import IDENTITY
from sidecar.errors import StateError
from sidecar.state.folder import LOCK_FILE

UNDO_BYTES_MAX = 64 << 20
"""Bytes of what undoes changes from which on no point is waited for: the next start finds nothing."""
_KIND, _VERSION = "LocalCache", 1
_POINT = struct.Struct("<Q")
"""Number of the first change behind the point; the table follows."""
_UNDO = struct.Struct("<H?I")
"""Bytes of a key, whether it had a value before, and its bytes; key and value follow."""
_NUMBER = struct.Struct(">Q")


class LocalCache(PartitionStore):
    """A `KeptRows`. Files that are damaged or incomplete are removed: all that they have is in the changelog.

    Args:
        path: A folder that no other process uses.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    is_only = False
    vouched: bytes | None
    """The table of the point at which the files were opened; None if they begin empty."""

    def _open(self, path: Path) -> None:
        self._spare: set[int] = set()
        self._undo_bytes = 0
        self._behind: deque[tuple[int, bytes, bytes]] = deque()
        """Ranges of ended rows, each with the change that ended them."""
        self._change = 0
        """Number of the next change that can be undone."""
        self._lapsed = 0
        """Points before this change are not vouched for: what is behind them cannot be undone."""
        self._begun: set[int] = set()
        """Partitions that began since the last point: until the next one, a start drops them."""
        try:
            is_known = (path / IDENTITY).exists() or not has_files(path / ROWS)
            if is_sound := is_known and not (path / DAMAGED).exists():
                super()._open(path)
                is_sound = not self.damages and (self.is_new or self.vouched is not None)
        except (OSError, StateError, ValueError, LookupError, struct.error):
            is_sound = False
        if not is_sound:
            self._clear(path)
            super()._open(path)

    def _clear(self, path: Path) -> None:
        if hasattr(self, "_database"):
            self._database.close()
        self.damages.clear()
        for each in path.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != LOCK_FILE:
                files.remove(each)

    def _prepare(self, database: RowDatabase) -> None:
        """Undo what is behind the last point."""
        raw = database.get(Kind.VOUCHED)
        if raw is None:
            self.vouched = None
            return
        behind, self.vouched = table_in(raw)
        undone = list(database.under(Kind.UNDO))
        for key, change in reversed(undone):
            (number,) = _NUMBER.unpack(key[1:])
            batch = WriteBatch(raw_mode=True)
            if number >= behind:
                undo(batch, change)
            batch.delete(key)
            database.write(batch)
            self._change = max(self._change, number + 1)
        self._change = max(self._change, behind)
        self._purge(database)

    def _purge(self, database: RowDatabase) -> None:
        """Remove the rows of partitions that were dropped."""
        numbers = [-1, *(int.from_bytes(key[1:], "big") for key, _ in database.under(Kind.PARTITION)), 1 << 32]
        batch = WriteBatch(raw_mode=True)
        for before, number in pairwise(numbers):
            for kind in (Kind.ROW, Kind.NAME, Kind.COUNT) if number > before + 1 else ():
                batch.delete_range(prefix(kind, before + 1), end_of(kind, number - 1))
        database.write(batch)

    # Points

    def _send(self, partition: HeldPartition, change: Write, ended_bytes: int) -> None:
        raw = b"" if partition.number in self._begun else undoing(change)
        if raw:
            change.batch.put(Kind.UNDO + _NUMBER.pack(self._change), raw)
        super()._send(partition, change, ended_bytes)
        self._undo_bytes += len(raw)
        self._behind += [(self._change, *each) for each in change.ranges]
        self._change += 1
        if self._undo_bytes > UNDO_BYTES_MAX:
            self._lapse()

    def _lapse(self) -> None:
        """Wait for no point any more: what undoes changes would fill the disk."""
        batch = WriteBatch(raw_mode=True)
        batch.delete(Kind.VOUCHED)
        self._forget_undo(batch, self._change)
        self._database.write(batch)
        self._undo_bytes, self._lapsed = 0, self._change

    def _forget_undo(self, batch: WriteBatch, behind: int) -> None:
        """Let changes before this one be as they are."""
        batch.delete_range(Kind.UNDO, Kind.UNDO + _NUMBER.pack(behind))
        while self._behind and self._behind[0][0] < behind:
            batch.delete_range(*self._behind.popleft()[1:])

    def _remove_range(self, change: Write, first: bytes, end: bytes) -> None:
        change.ranges.append((first, end))

    def point(self) -> Point:
        """The present state of all partitions."""
        self._begun.clear()
        return Point(self._database.changes, self._change)

    def vouch(self, point: Point, table: bytes) -> None:
        """Let a later process find the state at a point that is durable, with a table.

        Raises:
            StateError: The disk cannot be written.
        """
        if point.change < self._lapsed:
            return
        batch = WriteBatch(raw_mode=True)
        batch.put(Kind.VOUCHED, seal(_KIND, _VERSION, _POINT.pack(point.change) + table))
        self._forget_undo(batch, point.change)
        self._database.write(batch)
        self._undo_bytes = 0

    # Partitions

    def retain(self, numbers: Collection[int]) -> None:
        """Drop all partitions but these, which are *spare* until they are used."""
        self._spare = set(numbers)
        for number in self._partitions.keys() - self._spare:
            self.drop(number)

    def use(self, number: int) -> None:
        """A spare partition is owned from now on."""
        self._spare.discard(number)

    def begin_partition(self, name: bytes) -> int:
        """The number of a new partition."""
        self._begun.add(self._free)
        return self.number(b"%s\0%d" % (name, self._free))

    def drop(self, number: int) -> None:
        self._spare.discard(number)
        super().drop(number)

    def _counted(self) -> Iterable[HeldPartition]:
        return (each for number, each in self._partitions.items() if number not in self._spare)

    def remove(self, number: int, position: int, epoch: int) -> bool:
        """End the message that was adopted with this epoch, and not taken; return whether there was one.

        Raises:
            StateError: The disk cannot be read or written.
        """
        partition = self._partitions[number]
        with self._database.errors("read"):
            found = [pair for pair in self._found(partition, position) if pair[0].endswith(epoch.to_bytes(8, "big"))]
        return position >= partition.cursor and self._end(partition, found)

    @property
    def unsynced(self) -> int | None:
        """Nothing waits for this disk: the broker has it."""
        return None

    @property
    def loss(self) -> str:
        """Why the files can no longer be used; empty if they can."""
        for damage in self.damages:
            return f"the local copy of delayed messages is damaged, and is restored at the next start: {damage.path}"
        if not self._database.in_place:
            return "the local copy of delayed messages was moved or removed, and is restored at the next start"
        return ""

    def close(self) -> None:
        """Free the folder. Files that can no longer be used are not used again."""
        is_lost = bool(self.loss or self._database.broken)
        self._database.close()
        if is_lost:
            with suppress(OSError):
                files.remove(self._folder.path / IDENTITY)
        self._folder.close()


def table_in(raw: bytes) -> tuple[int, bytes]:
    """The first change behind the point that was vouched for, and the table.

    Raises:
        ValueError: They are something else.
    """
    stored = Stored(unseal(_KIND, _VERSION, raw))
    (behind,) = stored.unpack(_POINT)
    return behind, stored.take(stored.left)


def undoing(change: Write) -> bytes:
    """What undoes a change."""
    pieces = list[bytes]()
    for key in change.added:
        pieces += [_UNDO.pack(len(key), False, 0), key]  # noqa: FBT003
    for key, value in change.removed:
        pieces += [_UNDO.pack(len(key), True, len(value)), key, value]  # noqa: FBT003
    return b"".join(pieces)


def undo(batch: WriteBatch, raw: bytes) -> None:
    """Have a batch undo a change.

    Raises:
        ValueError: It is something else.
    """
    stored = Stored(raw)
    while stored.left:
        key_bytes, was_there, value_bytes = stored.unpack(_UNDO)
        key, value = stored.take(key_bytes), stored.take(value_bytes)
        if was_there:
            batch.put(key, value)
        else:
            batch.delete(key)
