"""Files of a Delta table with timestamps as INT96, which deltalake misreads. Rewrites no file.

Spark writes INT96 by default, and other programs read it as nanoseconds in 64 bits: the years 1678 to 2261. If
deltalake rewrote such files, by compaction or by a merge, other years would be wrong for good, for Spark too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from sidecar.errors import ConfigError
from sidecar.sinks.table.upkeep import has_int96

_INT96: Final = "INT96"
_FILE: Final = {"path": pa.string(), "size_bytes": pa.int64(), "modification_time": pa.int64()}


class Int96Guard:
    """Refuses to rewrite files with INT96; each file is checked once."""

    def __init__(self) -> None:
        self._good: set[str] = set()

    def check(self, table: DeltaTable, bytes_max: int | None = None) -> None:
        """Refuse a table that has such a file.

        Args:
            table: The table at the version that is to be rewritten.
            bytes_max: Larger files are not rewritten; None if any may be.

        Raises:
            ConfigError: The table has such a file.
            OSError: A file cannot be read.
        """
        names = {name for name, size, _ in _files(table) if bytes_max is None or size <= bytes_max}
        self._good &= names
        found = _first(table, sorted(names - self._good))
        if found is not None:
            raise ConfigError(
                f"{found} has timestamps as INT96, and deltalake would write those outside of the years 1678 to 2261 "
                "as other years: let Spark rewrite the table, as docs/spark-types.md shows",
                hint="Run what docs/spark-types.md has under INT96; or give Spark the package "
                "io.delta:delta-spark_4.2_2.13, whose Delta reads them as they are",
            )
        self._good = names


def tell_int96(path: str, table: DeltaTable) -> None:
    """Log if the oldest or the newest file of a table has INT96."""
    files = sorted(_files(table), key=lambda file: file[2])
    try:
        found = _first(table, [name for name, _, _ in (*files[:1], *files[-1:])])
    except (OSError, pa.ArrowInvalid):
        return  # a reader that needs the file will report it
    if found is not None:
        has_int96(path, found)


def _files(table: DeltaTable) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of each file."""
    actions = pa.table(table.get_add_actions())
    return zip(*(actions.column(name).cast(kind).to_pylist() for name, kind in _FILE.items()), strict=True)


def _first(table: DeltaTable, names: Iterable[str]) -> str | None:
    """The first of these files that has INT96."""
    files = PyFileSystem(DeltaStorageHandler(table.table_uri))
    for name in names:
        columns = pq.read_metadata(name, filesystem=files).schema
        if any(columns.column(number).physical_type == _INT96 for number in range(len(columns))):
            return name
    return None
