"""The rows of a changelog's owned partitions on the local disk. Knows no changelog.

They outlive the process. After a start they are as they were at one *point* in the order of all changes: the last one
that was vouched for. Such a start repeats the logs up to there. So a checkpoint waits until a point is vouched for that
is behind all messages of its files.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sidecar import files
from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.delay.changelog.interface import Point
from sidecar.delay.disk.changes import Kind, PlacedRow, sections
from sidecar.delay.disk.filename import logs_of, path_of
from sidecar.delay.disk.snapshot import Snapshot
from sidecar.delay.disk.wal import CHECKPOINT, records
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.replay import KEEP, REMOVE
from sidecar.errors import StateError
from sidecar.state.folder import LOCK_FILE

LOG_BYTES_MAX = 16 << 20
"""Size at which a log is full, unless messages are being restored: a start repeats it, in 0.1 s."""
NUMBERS_MAX = 1 << 14
"""Partitions, dropped ones included, from which on the files are not used again: each takeover takes a number."""
_VOUCHED = b""
"""The name of a partition without messages. Its state has the table, and the point up to which the logs count."""
_NUMBER = 0
_KIND, _VERSION = "LocalCache", 1
_POINT = struct.Struct("<QQ")
"""Log and its bytes; the table follows."""


class LocalCache(PartitionStore):
    """A `KeptRows`. Files that are damaged or incomplete are removed: all that they have is in the changelog.

    Args:
        path: A folder that no other process uses.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    vouched: bytes | None
    """The table of the point at which the files were opened; None if they begin empty."""
    _is_of_log: bool
    _first: int
    """With a point that was found: whether a log has it, and the first log that counts."""

    def _open(self, path: Path) -> None:
        self._spare: set[int] = set()
        self._found: tuple[Point, bytes] | None = None
        try:
            super()._open(path)
            is_sound = not self.damages and self._is_complete()
        except (OSError, StateError, ValueError, LookupError, struct.error):
            is_sound = False
        if not is_sound:
            self._clear(path)
            super()._open(path)
        self.vouched = self._found[1] if self._found else None
        if not self._names:
            self.number(_VOUCHED)

    def _is_complete(self) -> bool:
        """Whether nothing is missing: a block that is damaged is found when its hour is read."""
        hours, folder = self._lanes.known().items(), self._folder.path
        known = ((path_of(folder, hour, file.salt), file.size) for hour, file in hours if file.size)
        return len(self._names) < NUMBERS_MAX and all(path.stat().st_size >= size for path, size in known)

    def _clear(self, path: Path) -> None:
        if hasattr(self, "_journal"):
            self._journal.close()
        self._found = None
        self.damages.clear()
        for each in path.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != LOCK_FILE:
                files.remove(each)

    def _repeated(self, snapshot: Snapshot, logs: Mapping[int, Path]) -> Iterable[tuple[Path, int | None]]:
        """The logs up to the last point that was vouched for.

        Raises:
            ValueError: There is none behind the checkpoint.
        """
        self._first = snapshot.log
        found = {number: log for number, log in logs.items() if number >= snapshot.log}
        if not snapshot.partitions and not found:
            return []
        states = [each.state for each in snapshot.partitions[_NUMBER : _NUMBER + 1] if each.name == _VOUCHED]
        of_logs = [state for log in found.values() for state in _states(log)]
        self._is_of_log = bool(of_logs)
        point, _ = self._found = _decoded([b"", *states, *of_logs][-1] or b"")
        if point.log < snapshot.log:
            raise ValueError("the last point is before the checkpoint")
        if point.end and point.log not in found:
            raise ValueError("the log is missing")
        counting = {number: log for number, log in found.items() if number <= point.log}
        return [(log, point.end if number == point.log else log.stat().st_size) for number, log in counting.items()]

    def _follow(self, logs: Mapping[int, Path], *, is_changed: bool) -> None:
        """Cut the logs off at the point, and begin a checkpoint, which later jobs complete: a start waits for no file.

        The vouched state is durable in the next log before that, and means the same with the uncut logs.
        """
        if self._found is None or not (is_changed or self._is_of_log):
            super()._follow(logs, is_changed=False)
            return
        point, table = self._found
        self.vouch(point, table)
        self._journal.sync()
        kept = [log for number, log in logs.items() if self._first <= number <= point.log]
        for log in logs.values():
            if log not in kept:
                files.remove(log)
        if point.log in logs:
            files.cut(logs[point.log], point.end)
        self._journal.asks = True
        self._journal.save(kept, sum(log.stat().st_size for log in kept))

    def retain(self, numbers: Collection[int]) -> None:
        self._journal.asks = True
        self._spare = set(numbers)
        for number, lane in enumerate(self._lanes.lanes):
            if number != _NUMBER and number not in self._spare and not lane.is_dropped:
                self.drop(number)

    def use(self, number: int) -> None:
        self._spare.discard(number)

    def begin_partition(self, name: bytes) -> int:
        return self.number(b"%s\0%d" % (name, len(self._names)))

    def drop(self, number: int) -> None:
        self._spare.discard(number)
        super().drop(number)

    def hours(self) -> dict[int, int]:
        """Number of messages that are not ended, by the hour in which they are due; none of spare partitions."""
        return self._lanes.left.totals(self._spare)

    @property
    def asks(self) -> bool:
        return self._journal.asked is not None

    def point(self) -> Point:
        with self._folder.errors("write"):
            self._journal.write()
        self._journal.bytes_max = LOG_BYTES_MAX
        log, end = self._journal.end
        return Point(self.changes, log, end, self.asks)

    def vouch(self, point: Point, table: bytes) -> None:
        self.keep(_NUMBER, _encoded(point, table), 0, 0)

    def allow(self, point: Point) -> None:
        if point.is_behind and self._journal.asked is not None:
            self._journal.asked.is_allowed = True

    @property
    def has_work(self) -> bool:
        return self._journal.has_work

    @property
    def loss(self) -> str:
        for damage in self.damages:
            return f"the local copy of delayed messages is damaged, and is restored at the next start: {damage.path}"
        if not self.in_place():
            return "the local copy of delayed messages was moved or removed, and is restored at the next start"
        return ""

    def adopt(self, number: int, rows: Iterable[PlacedRow]) -> None:
        self._journal.bytes_max = None
        super().adopt(number, rows)

    def remove(self, number: int, position: int, epoch: int) -> bool:
        """End the message that was adopted with this epoch, and not taken; return whether there was one.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._folder.errors("read"):
            is_ended = self._lanes.cancel(number, position, epoch)
        if is_ended:
            self._journal.record.add_section(Kind.REMOVE, REMOVE.pack(number, position, epoch))
            self._journal.progress.note()
        return is_ended

    @property
    def unsynced(self) -> int | None:
        """Nothing waits for this disk: the broker has it."""
        return None

    def close(self) -> None:
        """Free the folder. Files that can no longer be used are not used again."""
        is_lost = bool(self.loss or self._journal.broken)
        self._journal.close()
        if is_lost:
            with suppress(OSError):
                files.remove(self._folder.path / CHECKPOINT)
        self._folder.close()


def vouched_in(path: Path) -> bytes | None:
    """The last table in the logs of a folder that may be in use; None if there is none."""
    states = [state for log in logs_of(path).values() for state in _states(log)]
    return _decoded(states[-1])[1] if states else None


def _states(log: Path) -> Iterator[bytes]:
    """The states that were vouched for in a log; damaged records are skipped."""
    for record in records(log):
        for kind, body in () if isinstance(record, int) else sections(record):
            if kind == Kind.KEEP and KEEP.unpack_from(body)[0] == _NUMBER:
                yield bytes(body[KEEP.size :])


def _encoded(point: Point, table: bytes) -> bytes:
    return seal(_KIND, _VERSION, _POINT.pack(point.log, point.end) + table)


def _decoded(raw: bytes) -> tuple[Point, bytes]:
    """Point and table.

    Raises:
        ValueError: They are something else.
    """
    stored = Stored(unseal(_KIND, _VERSION, raw))
    log, end = stored.unpack(_POINT)
    return Point(0, log, end, is_behind=True), stored.take(stored.left)
