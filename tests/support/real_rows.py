"""The stores of RocksDB in the place of the simulator's in memory: slower by far, and with the same fates."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from rocksdict import Checkpoint

from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.database import ROWS, SyncJob
from sidecar.delay.partition import Write
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import Held, Kind, Leave, number_in, position_in, unpacked
from sidecar.delay.stored import IDENTITY
from sidecar.errors import StateError
from tests.support.partition_store import killed, log_sizes, power_cut

COPIES_MAX, COPIED_EVERY = 4, 10
_FOLDERS = count()
_ALL = tempfile.TemporaryDirectory(prefix="rows-")
"""Is removed with the process."""


def _base() -> Path:
    return Path(tempfile.mkdtemp(dir=_ALL.name))


class _Rows(PartitionStore):
    """What the simulator asks of a store beside its interface."""

    refuses = False
    used_bytes = 0

    def __init__(self, number: int, path: Path | None = None) -> None:
        self._host = number
        self._base = _base()
        self.taken: set[int] = set()
        self._begin(path or self._base / f"{next(_FOLDERS)}")

    def __del__(self) -> None:
        self._database.close()
        shutil.rmtree(self._base, ignore_errors=True)

    def _begin(self, path: Path) -> None:
        super().__init__(path)
        self.id = self._host
        assert not self.damages, self.damages
        self._durable_sizes = log_sizes(self)
        self._writing_sizes: dict[str, int] | None = None
        self._durable_rows = self._writing_rows = self._all()

    def _all(self) -> list[Held]:
        watermarks = {number: each.watermark for number, each in self._partitions.items()}
        rows = self._database.under(Kind.ROW)
        return [unpacked(*row) for row in rows if position_in(row[0]) >= watermarks.get(number_in(row[0]), 1 << 64)]

    def _lost(self, chance: Callable[[], float]) -> Path:
        """The folder as a crash leaves it: what was durable, what was written, or what was there."""
        survivors = [self._durable_sizes, *([self._writing_sizes] if self._writing_sizes else ()), None]
        sizes = survivors[int(chance() * len(survivors))]
        path = killed(self) if sizes is None else power_cut(self, sizes, Random(int(chance() * 1e9)))
        return path.rename(self._base / f"{next(_FOLDERS)}")

    def crash(self, chance: Callable[[], float]) -> None:
        """The process is gone."""
        self._begin(self._lost(chance))

    def numbers(self) -> Iterable[int]:
        """The partitions."""
        return list(self._partitions)

    def durable(self) -> list[Held]:
        """All messages and parked parts that would survive."""
        return self._durable_rows

    def live(self) -> set[int]:
        """Origins of all messages that it has now."""
        return {held.origin for held in self._all()}

    def disk_bytes(self) -> int:
        return self.used_bytes

    def _check(self) -> None:
        if self.refuses:
            raise StateError("the disk is full")

    def put(self, number: int, rows: Iterable[Held]) -> list[int]:
        self._check()
        return super().put(number, rows)

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        self._check()
        super().adopt(number, rows)

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> list[Held]:
        found = super().take_due(number, until, limit, nbytes, leave)
        self.taken.update(held.origin for held in found)
        return found

    @property
    def writes(self) -> Any:
        return _Writes(self)


class _Writes:
    """The durability of these, which knows what would survive."""

    def __init__(self, store: _Rows) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store._database, name)

    def begin_sync(self) -> SyncJob | None:
        store = self._store
        if self.synced != self.changes:
            store._check()
        job = store._database.begin_sync()
        if job is not None:
            store._writing_sizes, store._writing_rows = log_sizes(store), store._all()
        return job

    def ended_sync(self, job: SyncJob, error: OSError | None) -> None:
        store = self._store
        if error is not None:  # the simulator's processes go on, which no daemon does
            store._database._job = store._writing_sizes = None
            return
        store._database.ended_sync(job, None)
        if store._writing_sizes is not None:
            store._durable_sizes, store._durable_rows = store._writing_sizes, store._writing_rows
        store._writing_sizes = None

    def sync(self) -> None:
        store = self._store
        store._database.sync()
        store._durable_sizes, store._durable_rows, store._writing_sizes = log_sizes(store), store._all(), None


class RealStore(_Rows):
    """A `ModelStore`."""

    def __init__(self, number: int = 1) -> None:
        super().__init__(number)


class RealCache(_Rows, LocalCache):
    """A `ModelCache`."""

    def __init__(self, number: int = 1, path: Path | None = None, copies: Sequence[Path] = ()) -> None:
        self._copies = list(copies)
        self._entered = 0
        super().__init__(number, path)

    def restarted(self, chance: Callable[[], float], *, is_old: bool = False) -> RealCache:
        """The next process has what was durable, and perhaps what was written; or a copy, or nothing.

        Args:
            is_old: Whether it has a copy if there is one.
        """
        path, fate = self._lost(chance), chance()
        base = _base()
        if fate < 0.1 and not is_old:
            path = base / "new"
        elif (is_old or fate < 0.25) and self._copies:
            path = self._copies[int(chance() * len(self._copies))]
        if path.exists():
            path = Path(shutil.copytree(path, base / "copy"))
        return RealCache(self._host, path, self._copies)

    def put(self, number: int, rows: Iterable[Held]) -> list[int]:
        return PartitionStore.put(self, number, rows)

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        if number not in self._owned:
            self._check()
        PartitionStore.adopt(self, number, rows)

    def enter(self, number: int, changes: Sequence[Write], place: bytes | None) -> None:
        self._check()
        super().enter(number, changes, place)
        self._entered += 1
        if place is not None and self._entered % COPIED_EVERY == 0 and len(self._copies) < COPIES_MAX:
            copy = _base() / "copy"
            copy.mkdir()
            shutil.copy(self._folder.path / IDENTITY, copy)
            Checkpoint(self._database._rows).create_checkpoint(str(copy / ROWS))
            self._copies.append(copy)

    def close(self) -> None:
        LocalCache.close(self)
