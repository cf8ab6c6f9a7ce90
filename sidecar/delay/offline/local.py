"""Reads the folder of a `PartitionStore` that no process has open. Writes nothing: its log is repeated in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sidecar import files
from sidecar.delay.disk.blocks import Held
from sidecar.delay.disk.filename import is_unused, logs_of, refuse_unknown
from sidecar.delay.disk.hour import FileDamage
from sidecar.delay.disk.listing import HourView, ListedRow
from sidecar.delay.disk.snapshot import Snapshot
from sidecar.delay.disk.wal import CHECKPOINT
from sidecar.delay.interface import StorePlace
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.partitions import lane_of, read_snapshot
from sidecar.delay.readers import PartitionReader
from sidecar.delay.replay import Replay
from sidecar.errors import NoStateError, StateError, UnavailableError
from sidecar.state.folder import holder_of


class _Version(NamedTuple):
    """Differs between any two openings of a store: each begins a log and writes a checkpoint."""

    logs: Mapping[int, Path]
    checkpoint: tuple[int, int] | None
    """Inode and size."""


class _UnchangedLanes(PartitionReaders):
    """Keeps what a log has in memory."""

    def make_room(self) -> None:
        """Append nothing to the files: a log and what follows it have a bounded size."""

    def _remove(self, strange: Iterable[Path]) -> None:
        """Leave the files that do not count: the next process removes them."""


class OfflineStore:
    """A `ReadStore` of what a `PartitionStore` would hold if it were opened now. `check` must follow the last call.

    No lock is held, so that a daemon can start meanwhile.

    Raises:
        NoStateError: There is no such folder.
        UnavailableError: A process uses the folder.
        StateError: The folder cannot be read, or another version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damages: list[FileDamage] = []
        with self._errors():
            if not path.is_dir():
                raise NoStateError(
                    f"there is no store of delayed messages in {path}",
                    hint="check state.dir and delay.store, and that this is the host of the daemon",
                )
            self._refuse_in_use()
            self._version = _version_of(path)
            self._read()

    def _read(self) -> None:
        path, raw = self._path, files.read_from(self._path / CHECKPOINT)
        refuse_unknown(path)
        is_new = raw is None and is_unused(path)
        snapshot = Snapshot(0, 0, 0, [], {}, {}) if is_new else read_snapshot(path / CHECKPOINT, raw or b"")
        self._id = snapshot.id
        self._names = {partition.name: number for number, partition in enumerate(snapshot.partitions)}
        lanes = [lane_of(partition) for partition in snapshot.partitions]
        self._lanes = _UnchangedLanes(path, snapshot.hours, snapshot.mark, snapshot.left, lanes, self.damages)
        newer = [log for number, log in self._version.logs.items() if number >= snapshot.log]
        self._log_bytes = sum(log.stat().st_size for log in newer)
        Replay(self._lanes, self._register, self.damages).run([(log, None) for log in newer])

    def _register(self, name: bytes) -> None:
        self._names[name] = len(self._names)
        self._lanes.lanes.append(PartitionReader())

    def check(self) -> None:
        """Verify that all that was read is from one moment.

        Raises:
            UnavailableError: A process has used the folder meanwhile.
        """
        with self._errors():
            self._refuse_in_use()
            if _version_of(self._path) != self._version:
                raise _changed(self._path)

    def _refuse_in_use(self) -> None:
        if holder := holder_of(self._path):
            raise UnavailableError(
                f"{self._path} is in use by {holder}, which does not answer",
                hint="look at `sidecar status`; a daemon with admin.listen: off answers no questions",
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise _changed(self._path) from error
        except PermissionError as error:
            raise StateError(
                f"state folder: cannot read {error.filename or self._path}: {error.strerror}",
                hint="run this command as the user of the daemon",
            ) from error
        except OSError as error:
            raise StateError(f"state folder: cannot read {self._path}: {error.strerror or error}") from error

    def names(self) -> Mapping[bytes, int]:
        """The numbers of all partitions."""
        return self._names

    def disk_bytes(self) -> int:
        return self._lanes.nbytes + self._log_bytes

    def place(self, number: int) -> StorePlace:
        return StorePlace(self._id, f"{self._id:x}.{number}")

    def state(self, number: int) -> bytes | None:
        return self._lanes.lanes[number].state

    def hours(self) -> Mapping[int, int]:
        """Number of messages that are not ended, by the hour in which they are due."""
        return self._lanes.left.totals()

    def next(self, number: int) -> int | None:
        return self._lanes.next(number)

    def find(self, number: int, position: int) -> Held | None:
        """One message; None if it is gone.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._errors():
            return self._lanes.find(number, position)

    def parked(self, number: int) -> Sequence[Held]:
        with self._errors():
            return self._lanes.parked(number)

    def listed(self, number: int, first: int, end: int, limit: int, origin: int | None) -> Sequence[ListedRow]:
        """Messages in [first, end), in order; those of an origin, if one is given.

        Raises:
            StateError: A file cannot be read.
        """
        with self._errors():
            return self._lanes.listed(number, first, end, limit, origin)

    def views(self, lowest: Mapping[int, int], end: int) -> Sequence[HourView]:
        with self._errors():
            return self._lanes.views(lowest, end)


def _changed(path: Path) -> UnavailableError:
    return UnavailableError(f"a daemon has used {path} meanwhile", hint="run the command again")


def _version_of(path: Path) -> _Version:
    try:
        found = (path / CHECKPOINT).stat()
    except FileNotFoundError:
        return _Version(logs_of(path), None)
    return _Version(logs_of(path), (found.st_ino, found.st_size))
