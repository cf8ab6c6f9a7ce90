"""What tests of a `PartitionStore` do with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import NO_TIMESTAMP
from sidecar.delay.disk.hour import HOUR_MS
from sidecar.delay.interface import Row
from sidecar.delay.partitions import PartitionStore

START_MS = 500_000 * HOUR_MS
START_HOUR = START_MS // HOUR_MS
TAGS = bytes(range(1, 13))
"""The entry of some tags."""
END = START_MS + 100 * HOUR_MS << SEQUENCE_BITS


def rows(*dues: int, first: int = 0, value: bytes = b"") -> list[Row]:
    """Rows that are due so long after the start, with origins in rising order."""
    return [(START_MS + due, first + i, 0, NO_TIMESTAMP, TAGS, None, b"", value) for i, due in enumerate(dues)]


def origins(store: PartitionStore, number: int, until: int = END, limit: int = 1_000) -> list[int]:
    """The origins of what a partition takes."""
    return [message.origin for message in store.take_due(number, until, limit, 1 << 30)]


def killed(store: PartitionStore) -> None:
    """The end of a process that had no time to end."""
    store._journal.close()
    store._folder.close()


def reopened(store: PartitionStore) -> PartitionStore:
    """The store of a next process, after the end of this one."""
    killed(store)
    return PartitionStore(store._folder.path)


def file_of(path: Path, hour: int = START_HOUR) -> Path:
    """The file of an hour; one that does not exist if the hour has none."""
    return next(path.glob(f"{hour}-*.delay"), path / f"{hour}.delay")


def logs(path: Path) -> Sequence[str]:
    """The names of the logs."""
    return sorted(log.name for log in path.glob("*.wal"))


def round_of(store: PartitionStore) -> None:
    """A job from its begin to its end."""
    job = store.begin_sync()
    if job is not None:
        job.run()
        store.ended_sync(job, None)
