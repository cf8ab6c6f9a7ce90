"""Delta tables by deltalake: OPTIMIZE and VACUUM, and what it lacks or does wrong. Does not decide when they run.

Features: a commit to a table with a feature that deltalake does not write fails each time.

Statistics: deltalake 1.6 writes decimals as doubles or, without a scale, as 64 bits, so that the lowest value of a file
may be above a value in it; and it ignores NaN, and writes null for infinity. A reader that filters by such a column
skips the file.

INT96: Spark writes timestamps so by default, and other programs read it as nanoseconds in 64 bits: the years 1678 to
2261. If deltalake rewrote such files, by compaction or by a merge, other years would be wrong for good, for Spark too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from sidecar.config.table_layout import check_retention
from sidecar.errors import ConfigError
from sidecar.sinks.table.commits import sync_commit, sync_commits
from sidecar.sinks.table.constraints import Constraint
from sidecar.sinks.table.upkeep import has_int96

log = structlog.get_logger()

CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 2 days"}
"""Configuration of a table created here. Five commits/s for Delta's own 30 days would be 13 million files."""

TARGET_BYTES: Final = 32 << 20
"""Size of a compacted file. It takes about five times that in memory: 165 MiB (measured), and 510 MiB with deltalake's
own 100 MiB."""

# Features

WRITTEN: Final = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
        "invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
    }
)  # fmt: skip
"""Writer features that deltalake 1.6 has."""
LISTING: Final = 7
"""The version of the protocol from which on a table lists its features; deltalake knows no later one."""
IDENTITY: Final = 6
"""The version with columns that number rows."""


def lacking(min_writer_version: int, writer_features: list[str] | None) -> list[str]:
    """The features that deltalake lacks to write a table of this protocol."""
    if min_writer_version > LISTING:
        return [f"version {min_writer_version} of the protocol"]
    features = writer_features or (["identityColumns"] if min_writer_version == IDENTITY else [])
    return sorted(set(features) - WRITTEN)


def refuse_features(table: DeltaTable, path: str, otherwise: str) -> None:
    """Refuse a table that deltalake cannot write; `otherwise` is the remedy if the features cannot be removed."""
    protocol = table.protocol()
    if missing := lacking(protocol.min_writer_version, protocol.writer_features):
        raise ConfigError(
            f"the Delta table {path} has {', '.join(missing)}, which deltalake does not write",
            hint=f"Remove it in Spark with ALTER TABLE delta.`{path}` DROP FEATURE {missing[-1]}, if Delta can; or "
            f"{otherwise}",
        )


# Statistics

PROPERTY: Final = "delta.dataSkippingStatsColumns"
"""Delta's property: the columns of which writers make statistics. With it, deltalake makes none of nested fields."""
EXACT_DIGITS: Final = 15
"""Limit of the digits of a decimal that a double represents exactly."""


def exact_statistics(columns: pa.Schema) -> Mapping[str, str]:
    """Properties that make the statistics of a table with these columns correct; none if all of them are."""
    if all(_is_exact(kind) for kind in _leaves(pa.struct(list(columns)))):
        return {}
    names = [field.name for field in columns if not pa.types.is_nested(field.type) and _is_exact(field.type)]
    return {PROPERTY: ",".join(name for name in names if re.fullmatch(r"\w+", name, re.ASCII))}


def keep_exact(table: DeltaTable, path: str, columns: pa.Schema) -> None:
    """Set these properties in a table that lacks them, before rows of these columns come; its version is new then."""
    wanted = exact_statistics(columns)
    if wanted and PROPERTY not in table.metadata().configuration:
        table.alter.set_table_properties(dict(wanted))
        sync_commit(path, table.version())
        log.info("table.statistics_limited", table=path, columns=wanted[PROPERTY])


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if not kind.num_fields:
        yield kind
    for number in range(kind.num_fields):
        yield from _leaves(kind.field(number).type)


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= EXACT_DIGITS)
    return not pa.types.is_floating(kind)


# Timestamps as INT96

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


# Maintenance


def steps(path: str) -> Mapping[str, Callable[[], object]]:
    """The operations on a table, for `Upkeep`."""
    guard = Int96Guard()
    return {"optimize": lambda: optimize(DeltaTable(path), path, guard), "vacuum": lambda: vacuum(DeltaTable(path))}


def optimize(table: DeltaTable, path: str, guard: Int96Guard) -> None:
    """Make large files of small ones; the new ones are durable at the end, before the old ones can be deleted.

    Args:
        table: The table at present; at its new version afterwards.
        guard: Remembers the files that were checked before.
    """
    guard.check(table, TARGET_BYTES)
    keep_exact(table, path, pa.schema(table.schema().to_arrow()))
    before = table.version()
    table.optimize.compact(max_concurrent_tasks=1, target_size=TARGET_BYTES)
    sync_commits(path, before + 1, table.version())


def vacuum(table: DeltaTable) -> None:
    """Delete files that left the table long ago, and files of the same age that no commit names."""
    check_retention(table.metadata().configuration)
    table.vacuum(dry_run=False, full=True)


# Constraints

INVALID: Final = "failed validation check"
"""Part of the error of a write with such rows. The error shows only some of the rows, and no name of a constraint."""
_NUMBER: Final = "sidecar_row"


def violated(rows: pa.Table, constraints: Sequence[Constraint]) -> dict[int, Constraint]:
    """The first constraint that each row violates, by the row's number.

    Args:
        rows: The rows, as they are written. Columns that constraints name are put into a temporary folder.
    """
    conditions = [constraint.condition('"') for constraint in constraints]
    if not conditions:
        return {}
    text = " ".join(conditions).casefold()
    named = [name for name in rows.column_names if name.casefold() in text]
    numbers = pa.array(range(rows.num_rows), pa.int64())
    numbered = pa.table({_NUMBER: numbers, **{name: rows.column(name) for name in named}})
    cases = " ".join(f"WHEN NOT coalesce(({sql}), false) THEN {i}" for i, sql in enumerate(conditions))
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        table = DeltaTable.create(folder, Schema.from_arrow(numbered.schema))
        if rows.num_rows:
            write_deltalake(table, numbered, mode="append")
        query = QueryBuilder().register("t", table)
        found = pa.table(query.execute(f"SELECT {_NUMBER} AS n, CASE {cases} END AS c FROM t").read_all())
    return {row["n"]: constraints[row["c"]] for row in found.to_pylist() if row["c"] is not None}


def refuse_unknown(rows: pa.Table, constraints: Sequence[Constraint], path: str) -> None:
    """Refuse constraints that deltalake cannot evaluate, tried on these columns without rows: they refuse any row."""
    for constraint in constraints:
        try:
            violated(rows, [constraint])
        except (DeltaError, ValueError) as error:
            raise ConfigError(
                f"the Delta table {path} has the constraint {constraint.name}, which deltalake cannot evaluate: "
                f"{' '.join(str(error).split())[:200]}",
                hint=f"Drop it in Spark: ALTER TABLE delta.`{path}` DROP CONSTRAINT {constraint.name.split()[0]}; or "
                "fill another table",
            ) from error
