"""What tests of a `PartitionStore` do with one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TypeVar

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.database import ROWS
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import HOUR_MS, Held
from sidecar.state.folder import LOCK_FILE

START_MS = 500_000 * HOUR_MS
START_HOUR = START_MS // HOUR_MS
TAGS = bytes(range(1, 13))
"""The entry of some tags."""
END = START_MS + 100 * HOUR_MS << SEQUENCE_BITS
KILLED = "killed-"
Store = TypeVar("Store", bound=PartitionStore)


def rows(*dues: int, first: int = 0, value: bytes = b"") -> list[Held]:
    """Rows that are due so long after the start, with origins in rising order."""
    return [
        Held((START_MS + due) << SEQUENCE_BITS, first + i, 0, None, TAGS, None, b"", value)
        for i, due in enumerate(dues)
    ]


def origins(store: PartitionStore, number: int, until: int = END, limit: int = 1_000) -> list[int]:
    """The origins of what a partition takes."""
    return [message.origin for message in store.take_due(number, until, limit, 1 << 30)]


def killed(store: PartitionStore) -> Path:
    """A folder as it is after the end of a process that had no time to end."""
    path = store._folder.path
    base = path.parent.parent if path.parent.name.startswith(KILLED) else path.parent
    copy = Path(tempfile.mkdtemp(prefix=KILLED, dir=base)) / "store"
    store._database._rows.cancel_all_background(wait=True)  # or files go while they are copied
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(LOCK_FILE))
    store._database.close()
    store._folder.close()
    return copy


def log_sizes(store: PartitionStore) -> dict[str, int]:
    """The sizes of the logs."""
    return {log.name: log.stat().st_size for log in (store._folder.path / ROWS).glob("*.log")}


def power_cut(store: PartitionStore, durable: Mapping[str, int], random: Random) -> Path:
    """A folder as it is after the machine died: of what was not durable there is some, or something in its place.

    Args:
        durable: The sizes of logs that are durable.
    """
    folder = killed(store)
    for log in (folder / ROWS).glob("*.log"):
        raw = log.read_bytes()
        kept = random.randint(min(durable.get(log.name, 0), len(raw)), len(raw))
        rest = len(raw) - kept
        tail = random.choice((b"", bytes(rest), random.randbytes(rest)))
        log.write_bytes(raw[:kept] + tail)
        if kept < len(raw):
            break
    return folder


def reopened(store: Store) -> Store:
    """The store of a next process, after the end of this one."""
    return type(store)(killed(store))


def log_of(path: Path) -> Path:
    """The log that is written."""
    return max((path / ROWS).glob("*.log"))


def flushed(store: PartitionStore) -> Path | None:
    """Have all rows in files, and return the newest of these, if there is one."""
    store._database._rows.flush()
    return max((store._folder.path / ROWS).glob("*.sst"), default=None)


def round_of(store: PartitionStore) -> None:
    """A job from its begin to its end."""
    job = store.writes.begin_sync()
    if job is not None:
        job.run()
        store.writes.ended_sync(job, None)
