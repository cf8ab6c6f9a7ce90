"""The Delta table of `sink.delta`: commits of many batches, each part once. Starts no thread.

Why it is exact: a part's name is its identity. It survives restarts and takeovers, and the same part may come from
another process, later, and out of order with others. So the names are in the table: each commit has, in its own
metadata, the names of all parts that it adds. Rows and names become visible by one file of the log, or not at all.

Before a commit the names of all earlier commits are known, and a commit is made only as the very next version of the
table (`max_commit_retries=0`): if another process committed meanwhile it fails, the names of those commits are read,
and their parts are left out. So of two processes with the same part, even if one is a zombie, only one adds it; and
after kill -9, or after an error although the commit did land, the names show it.

Delta's own transaction identifiers (an application, and a version that only rises) are not sufficient. One for each
partition and group would work only as long as parts come in offset order; a part that was overtaken would be regarded
as known, and lost. One for each part would stay in every checkpoint of the table. Names are forgotten after `NAMES_MAX`
parts, or `COMMITS_MAX` commits of others: then a part that comes again is appended again, never left out.
"""

from __future__ import annotations

import base64
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from sidecar import files
from sidecar.config.table_layout import COLUMNS, TableLayout
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, FailedRow, Verdict
from sidecar.errors import ConfigError
from sidecar.sinks.table.by_deltalake import (
    CONFIGURATION,
    INVALID,
    refuse_features,
    refuse_unknown,
    tell_int96,
    violated,
)
from sidecar.sinks.table.commits import check_newest, folder_of, sync_commit, sync_commits
from sidecar.sinks.table.constraints import Constraint, constraints_of
from sidecar.sinks.table.layout import SmallFiles, columns_of, dropped, partitions_of, refuse_lost
from sidecar.zone.columns import record_batches
from sidecar.zone.entry import digest_of
from sidecar.zone.schema import text_of_name
from sidecar.zone.table import DATE, LABELS, arranged, schema_of, table_rows

_KEY: Final = "sidecar"
"""The parts that a commit adds are in its `commitInfo` under this key:

v          version of the form
whole      the digests of the names of parts that were added whole, as base64
reasons    the reasons why rows of other parts were left out
partly     of these parts, by digest: the offsets that were left out, each with the number of its reason
"""
_VERSION: Final = 1
_DIGEST_BYTES: Final = 16
Refused: TypeAlias = Mapping[int, str]
"""The reasons why rows of a part are not in the table, by offset."""
NAMES_MAX: Final = 65_536
"""Limit of parts known by name: the newest."""
COMMITS_MAX: Final = 4_096
"""Limit of commits that are read for their names, at the start or after commits of others."""
TRIES_MAX: Final = 20
"""Number of attempts of a commit that others overtake, before it is a retry."""
REASON_CHARS_MAX: Final = 300
_TROUBLE: Final = (DeltaError, OSError, ValueError)  # deltalake raises all of these for errors of disk or log

log = structlog.get_logger()


class PartsTable:
    """The known state of the table; used by one thread after its creation."""

    def __init__(self, path: str, layout: TableLayout) -> None:
        folder = folder_of(path)
        self.path = path if folder is None else str(folder)
        self._layout = layout
        self._columns: tuple[str, ...]
        """Names of the columns that are written."""
        self._adds_columns: bool
        """Whether the table lacks some of these columns."""
        self._partitioned_by: tuple[str, ...]
        self._small_files = SmallFiles(self.path)
        self._synced = -1
        """The newest version that is durable."""
        self._constraints: list[Constraint]
        self._names: dict[bytes, Refused] = {}
        """Parts that were added, by digest of their names."""
        self._version = -1
        self._stale = False
        try:
            self._table = self._open()
            check_newest(self.path, self._table.version())
            self._learn()
            tell_int96(self.path, self._table)
        except ConfigError:
            raise
        except _TROUBLE as error:
            raise ConfigError(
                f"cannot open the Delta table {path}: {line_of(error)}",
                hint="Set sink.delta.path to a folder that this user may write, or to an undamaged Delta table",
            ) from error

    def append(self, batches: Sequence[Batch]) -> list[Answer]:
        """Append the batches; return an answer for each."""
        try:
            for _ in range(TRIES_MAX):
                if self._stale:
                    self._look_again()
                fresh = self._fresh(batches)
                refused = self._commit(fresh) if fresh else {}
                if refused is not None:
                    return [self._answer(batch, refused) for batch in batches]
                time.sleep(random.uniform(0.0, 0.02))  # random, so as not to commit in step with others
            answer = Answer(Verdict.BUSY, f"others committed to {self.path} first, {TRIES_MAX} times")
        except (SchemaMismatchError, ConfigError) as error:
            self._stale = True
            answer = Answer(Verdict.HALT, f"cannot append to the Delta table {self.path}: {line_of(error)}")
        except _TROUBLE as error:
            self._stale = True  # it may still have landed
            answer = Answer(Verdict.UNANSWERED, f"cannot append to the Delta table {self.path}: {line_of(error)}")
        return [answer] * len(batches)

    def _answer(self, batch: Batch, refused: Mapping[bytes, Refused]) -> Answer:
        """The answer to a batch whose rows are in the table, except those that it refuses."""
        failed: list[FailedRow] = []
        before = 0
        for part in batch.parts:
            digest = _digest(part)
            if why := refused.get(digest) or self._names.get(digest):
                offsets = chain.from_iterable(fragment.offsets for fragment in part.fragments)
                failed += (
                    FailedRow(before + i, retry=False, reason=why[offset])
                    for i, offset in enumerate(offsets)
                    if offset in why
                )
            before += part.count
        if not failed:
            return Answer(Verdict.ACK)
        reason = f"{len(failed)} of {batch.count} rows violate constraints of {self.path}"
        return Answer(Verdict.PARTIAL, reason, failed=tuple(failed))

    def _fresh(self, batches: Iterable[Batch]) -> list[tuple[Batch, dict[bytes, Part]]]:
        """Batches with their parts that are not in the table, by digest of the name, each once."""
        seen: set[bytes] = set()
        fresh = []
        for batch in batches:
            parts = {_digest(part): part for part in batch.parts if part.count}
            parts = {digest: part for digest, part in parts.items() if digest not in self._names and digest not in seen}
            seen.update(parts)
            if parts:
                fresh.append((batch, parts))
        return fresh

    def _commit(self, fresh: Sequence[tuple[Batch, dict[bytes, Part]]]) -> dict[bytes, Refused] | None:
        """Commit the next version; return the refused rows by digest of their parts, or None if another process did."""
        rows = table_rows(
            table
            for batch, parts in fresh
            for table in record_batches(parts.values(), writer="", sequence=0, batch_id=batch.key)
        )
        counts = {digest: part.count for _, parts in fresh for digest, part in parts.items()}
        refused: dict[bytes, Refused] = {}
        added: dict[bytes, Refused] = {digest: {} for digest in counts}
        version = self._version + 1
        order = pc.sort_indices(rows, [("group", "ascending"), ("tag", "ascending")])  # stable
        ordered = rows.take(order)
        kept = arranged(ordered, self._columns)
        try:
            try:
                self._write(kept, added)
            except DeltaError as error:
                if INVALID not in str(error):
                    raise
                wrong = violated(kept, self._constraints)
                if not wrong:
                    raise
                refused = _by_part(wrong, list(counts), _owners(counts.values()).take(order), ordered["offset"])
                added = {digest: refused.get(digest, {}) for digest, count in counts.items()}
                added = {digest: why for digest, why in added.items() if len(why) < counts[digest]}
                if not added:
                    return refused
                self._write(kept.take([i for i in range(kept.num_rows) if i not in wrong]), added)
        except CommitFailedError:
            self._look_again()
            if self._version < version:
                raise
            return None
        sync_commits(self.path, self._synced + 1, version - 1)
        sync_commit(self.path, version)
        self._synced = version
        if self._table.version() == version:
            self._know(added)
            self._version = version
        else:
            self._learn()
        return refused

    def _write(self, rows: pa.Table, parts: Mapping[bytes, Refused]) -> None:
        """Commit rows with the names of their parts, once."""
        if {*self._partitioned_by}.intersection(LABELS) and not self._small_files.reported:
            # A commit adds a file to each partition.
            count = rows.group_by(list(self._partitioned_by)).aggregate([]).num_rows
            self._small_files.look(rows.num_rows, count)
        schema_mode: Literal["merge"] | None = "merge" if self._adds_columns else None
        properties = CommitProperties(custom_metadata=metadata_of(parts), max_commit_retries=0)
        # In one chunk: several chunks are written in parallel, and a part's rows would be in any order.
        write_deltalake(
            self._table, rows.combine_chunks(), mode="append", schema_mode=schema_mode, commit_properties=properties
        )  # fmt: skip

    # Commits of others

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            if (folder := folder_of(self.path)) is not None:
                files.make_folder(folder, shared=True)
            partitioned_by = partitions_of(self._layout, [DATE], None, self.path)
            names = [column.name for column in columns_of(self._layout, partitioned_by, None)]
            try:
                DeltaTable.create(
                    self.path, schema_of(names), mode="ignore", partition_by=list(partitioned_by),
                    configuration={**CONFIGURATION, **self._layout.properties},
                )  # fmt: skip
            except DeltaError as error:
                if not self._layout.properties:
                    raise
                raise ConfigError(
                    f"cannot create the Delta table {self.path} with sink.delta.properties: {line_of(error)}",
                    hint="deltalake supports only some of Delta's properties; remove those that it does not know",
                ) from error
            table = DeltaTable(self.path)
        refuse_features(table, self.path, "set sink.delta.path to a new folder; the table is created there")
        self._partitioned_by = partitions_of(self._layout, [DATE], table.metadata().partition_columns, self.path)
        self._columns = tuple(column.name for column in columns_of(self._layout, self._partitioned_by, None))
        self._adds_columns = _check_columns(table, self._columns)
        if self._adds_columns and (gone := _columns_before(table).intersection(self._columns) - _names_of(table)):
            raise dropped(self.path, gone, "sink.delta.columns")
        self._constraints = constraints_of(table.metadata().configuration, table.schema().fields)
        refuse_unknown(schema_of(self._columns).empty_table(), self._constraints, self.path)
        return table

    def _look_again(self) -> None:
        known = self._table.metadata().id
        table = self._open()
        self._stale = False
        if table.metadata().id != known:  # the table was replaced, and lacks the known parts
            self._names.clear()
            self._version = -1
        self._table = table
        self._learn()

    def _learn(self) -> None:
        behind = self._table.version() - self._version
        if behind > 0:
            for commit in reversed(self._table.history(min(behind, COMMITS_MAX))):
                self._know(parts_in(commit))
        self._version = self._table.version()

    def _know(self, parts: Mapping[bytes, Refused]) -> None:
        self._names.update(parts)
        while len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]


def _digest(part: Part) -> bytes:
    return digest_of(text_of_name(part.group), part.name)


def _owners(counts: Iterable[int]) -> pa.Array:
    """The number of the part of each row, part after part."""
    return pa.array([number for number, count in enumerate(counts) for _ in range(count)], pa.int32())


def _by_part(
    wrong: Mapping[int, Constraint], digests: Sequence[bytes], owners: pa.Array, offsets: pa.ChunkedArray
) -> dict[bytes, Refused]:
    """The reasons by digest of the part and offset."""
    found: dict[bytes, dict[int, str]] = {}
    for row, constraint in wrong.items():
        found.setdefault(digests[owners[row].as_py()], {})[offsets[row].as_py()] = constraint.reason
    return dict(found)


def _columns_before(table: DeltaTable) -> set[str]:
    """The columns that the table had when rows were last appended here; empty if its log no longer shows them."""
    version = next((commit["version"] for commit in table.history(COMMITS_MAX) if parts_in(commit)), None)
    try:
        return set() if version is None else _names_of(DeltaTable(table.table_uri, version=version))
    except _TROUBLE:  # its log was cleaned up
        return set()


def _names_of(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}


def _check_columns(table: DeltaTable, names: Sequence[str]) -> bool:
    """Check that rows of these columns can be added; return whether they add columns."""
    there = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    wanted = {field.name: field.type for field in pa.schema(Schema.from_arrow(schema_of(names)).to_arrow())}
    odd = next((name for name in there if name in wanted and there[name] != wanted[name]), None)
    odd = odd or next((name for name in there if name not in COLUMNS), None)
    if odd is not None:
        raise ConfigError(
            f"the table {table.table_uri} has other columns: {odd} is {there[odd]}, and would be "
            f"{wanted.get(odd, 'not there')}",
            hint="Set sink.delta.path to a new folder; the table is created there",
        )
    refuse_lost(list(there), names, "sink.delta.columns")
    return wanted.keys() != there.keys()


def line_of(error: Exception) -> str:
    """The error of deltalake, on one line, without its stack trace, and without rows."""
    return " ".join(re.split(r"\s+0: |Preview of invalid data", str(error))[0].split())[:REASON_CHARS_MAX]


def metadata_of(parts: Mapping[bytes, Refused]) -> dict[str, str]:
    """The metadata of a commit that adds these parts, by digest."""
    some = {digest: refused for digest, refused in parts.items() if refused}
    reasons = list(dict.fromkeys(reason for refused in some.values() for reason in refused.values()))
    fields = {
        "v": _VERSION,
        "whole": base64.b64encode(b"".join(digest for digest in parts if digest not in some)).decode(),
        "reasons": reasons,
        "partly": {
            base64.b64encode(digest).decode(): [[offset, reasons.index(reason)] for offset, reason in refused.items()]
            for digest, refused in some.items()
        },
    }
    return {_KEY: orjson.dumps(fields).decode()}


def parts_in(commit: Mapping[str, Any]) -> dict[bytes, Refused]:
    """The parts that a commit added, by digest; none if it is not Sidecar's.

    Raises:
        ConfigError: A later Sidecar made it.
    """
    try:
        fields = orjson.loads(commit.get(_KEY, ""))
        version = fields["v"]
        if version == _VERSION:
            raw = base64.b64decode(fields["whole"], validate=True)
            some = {
                base64.b64decode(digest): {offset: str(fields["reasons"][number]) for offset, number in refused}
                for digest, refused in fields["partly"].items()
            }
            whole = (raw[start : start + _DIGEST_BYTES] for start in range(0, len(raw), _DIGEST_BYTES))
            return {**{digest: {} for digest in whole}, **some}
    except (ValueError, TypeError, AttributeError, LookupError):
        return {}
    raise ConfigError(
        f"a commit of the Delta table names its parts in version {version}, and this program knows {_VERSION}",
        hint="Use the version of Sidecar that filled the table, or another table",
    )
