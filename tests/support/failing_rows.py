"""RocksDB with errors of the system: each call of some kinds fails for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sidecar.delay.partitions import PartitionStore

FULL = "IO error: No space left on device: While appending to file: rows/000004.log: No space left on device"
BROKEN = "IO error: Input/output error: While fdatasync: rows/000004.log: Input/output error"
DAMAGED = "Corruption: block checksum mismatch: stored = 1, computed = 2, type = 4  in rows/000009.sst offset 1 size 2"


class _Failing:
    def __init__(self, rows: Any, calls: tuple[str, ...], error: str) -> None:
        self._rows, self._calls, self._error = rows, calls, error

    def __getattr__(self, name: str) -> Any:
        return self._fail if name in self._calls else getattr(self._rows, name)

    def _fail(self, *_: object) -> None:
        raise Exception(self._error)  # as the library does


@contextmanager
def failing(store: PartitionStore, *calls: str, error: str = FULL) -> Iterator[None]:
    """Let calls of the library fail."""
    database = store._database
    rows: Any = database._rows
    database._rows = _Failing(rows, calls, error)  # type: ignore[assignment]
    try:
        yield
    finally:
        database._rows = rows
