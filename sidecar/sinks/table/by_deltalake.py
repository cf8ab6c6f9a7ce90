"""OPTIMIZE and VACUUM of a Delta table by deltalake. Does not decide when they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from sidecar.config.table_layout import check_retention
from sidecar.sinks.table.commits import sync_commits
from sidecar.sinks.table.int96 import Int96Guard
from sidecar.sinks.table.statistics import keep_exact

CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 2 days"}
"""Configuration of a table created here. Five commits/s for Delta's own 30 days would be 13 million files."""

TARGET_BYTES: Final = 32 << 20
"""Size of a compacted file. It takes about five times that in memory: 165 MiB (measured), and 510 MiB with deltalake's
own 100 MiB."""


def steps(path: str) -> Mapping[str, Callable[[], object]]:
    """The operations on a table, for `Upkeep`."""
    guard = Int96Guard()
    return {"optimize": lambda: optimize(DeltaTable(path), path, guard), "vacuum": lambda: vacuum(DeltaTable(path))}


def optimize(table: DeltaTable, path: str, guard: Int96Guard) -> None:
    """Make large files of small ones; the new ones are durable at the end, before the old ones can be deleted.

    Args:
        table: The table at present; at its new version afterwards.
        guard: Remembers the files that were checked before.

    Raises:
        ConfigError: A small file has timestamps as INT96.
        DeltaError: There was a conflict, or the store does not answer.
        OSError: It cannot be written.
    """
    guard.check(table, TARGET_BYTES)
    keep_exact(table, path, pa.schema(table.schema().to_arrow()))
    before = table.version()
    table.optimize.compact(max_concurrent_tasks=1, target_size=TARGET_BYTES)
    sync_commits(path, before + 1, table.version())


def vacuum(table: DeltaTable) -> None:
    """Delete files that left the table long ago, and files of the same age that no commit names.

    Raises:
        DeltaError: The store does not answer.
        OSError: A file cannot be deleted.
        ValueError: The table keeps them for less than a day.
    """
    check_retention(table.metadata().configuration)
    table.vacuum(dry_run=False, full=True)
