"""Appends batches to a Delta table, many at a time, each once. Uses no Spark and no HTTP.

Why it is exact: a part's name is its identity. It survives restarts and takeovers, and the same part may come from
another process, later, and out of order with others. So the names are in the table: each commit has, in its own
metadata, the names of all parts that it adds. Rows and names become visible by one file of the log, or not at all.

Before a commit the names of all earlier commits are known, and a commit is made only as the very next version of the
table (`max_commit_retries=0`): if another process committed meanwhile it fails, the names of those commits are read,
and their parts are left out. So of two processes with the same part, even if one is a zombie, only one adds it; and
after kill -9, or after an error although the commit did land, the names show it.

Delta's own transaction identifiers (an application, and a version that only rises) are not sufficient. One for each
partition and group would work only as long as parts come in offset order; a part that was overtaken would be taken for
known, and lost. One for each part would stay in every checkpoint of the table. Names are forgotten after `NAMES_MAX`
parts, or `COMMITS_MAX` commits of others: then a part that comes again is appended again, never left out.
"""

from __future__ import annotations

import base64
import queue
import random
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from sidecar import files, threads
from sidecar.config.sinks import DeltaSink as DeltaSettings
from sidecar.config.table.layout import COLUMNS, TableLayout, layout_of
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, Verdict
from sidecar.errors import ConfigError
from sidecar.sinks.base import Context
from sidecar.sinks.table.by_deltalake import CONFIGURATION, steps
from sidecar.sinks.table.commits import check_newest, folder_of, sync_commit, sync_commits
from sidecar.sinks.table.features import refuse_features
from sidecar.sinks.table.int96 import tell_int96
from sidecar.sinks.table.layout import columns_of, makes_small_files, partitions_of, refuse_lost
from sidecar.sinks.table.upkeep import Notes, Upkeep, no_counts
from sidecar.zone.columns import record_batches
from sidecar.zone.entry import digest_of
from sidecar.zone.rows import RowFramer
from sidecar.zone.schema import text_of_name
from sidecar.zone.table import DATE, LABELS, arranged, schema_of, table_rows

NAMES_MAX: Final = 65_536
"""Limit of parts known by name: the newest."""
COMMITS_MAX: Final = 4_096
"""Limit of commits that are read for their names, at the start or after commits of others."""
COMMIT_BYTES_MAX: Final = 64 << 20
"""Limit of rows' bytes in a commit; a larger batch is committed alone."""
TRIES_MAX: Final = 20
"""Number of attempts of a commit that others overtake, before it is a retry."""
PAUSES: Final = 9
"""After a commit, no commit is made for this many times its duration: it takes 27 us for each file in the log (140 ms
at 5,000 files), so the longer the log, the fewer and larger the commits."""
PAUSE_MAX_S: Final = 5.0
REASON_CHARS_MAX: Final = 300
NOTES: Final = "table-maintenance.json"
"""Name of the file in the state folder."""
BY_DEFAULT: Final = TableLayout(section="sink.delta")
_KEY: Final = "sidecar"
_DIGEST_BYTES: Final = 16
_TROUBLE: Final = (DeltaError, OSError, ValueError)  # deltalake raises all of these for errors of disk or log

log = structlog.get_logger()


def build(settings: DeltaSettings, context: Context) -> DeltaSink:
    """The sink of these settings.

    Raises:
        ConfigError: The table cannot be opened or created, or has other columns.
    """
    framer = RowFramer(context.columns, context.tags_of, context.groups)
    notes = _Notes(context.state_dir / NOTES)
    return DeltaSink(settings.path, framer, layout_of(settings, "sink.delta"), notes)


class _Notes:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes:
        """The file; empty if there is none."""
        return files.read_from(self._path) or b""

    def write(self, text: bytes) -> None:
        """Replace the file."""
        files.make_folder(self._path.parent)
        files.put(self._path, text)


class _Waiting(NamedTuple):
    batch: Batch
    answer: Future[Answer]


class DeltaSink:
    """Acknowledges a batch when the commit that has its rows and names is durable.

    Callers wait while one thread commits all batches that wait at that moment: the more wait, the fewer commits.

    Args:
        path: The table: a path, or a URL that deltalake knows. It is created if it is missing.
        framer: Makes rows of messages.
        layout: How the table is kept.
        notes: Keep the time of maintenance; required if there is any.

    Raises:
        ConfigError: The table cannot be opened or created, has other columns or partitions, or features that deltalake
            lacks.
    """

    def __init__(
        self, path: str, framer: RowFramer, layout: TableLayout = BY_DEFAULT, notes: Notes | None = None
    ) -> None:
        self.framer = framer
        self._table = _Table(path, layout)
        self.maintained = no_counts(layout.maintenance)
        """Maintenance by operation and result."""
        self._upkeep = None
        if layout.maintenance.is_on:
            assert notes is not None, "as documented"
            path = self._table.path
            self._upkeep = Upkeep(path, layout.maintenance, steps(path), notes, self.maintained)
        self._work: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._held: _Waiting | None = None
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        """Started with the first batch."""

    def deliver(self, batch: Batch) -> Answer:
        """Append the parts that the table does not have yet, together with other waiting batches."""
        waiting = _Waiting(batch, Future())
        with self._guard:
            if self._closed.is_set():
                return _CLOSED
            self._work.put(waiting)
            if self._thread is None:
                self._thread = threads.start(self._run, "sink-delta")
                if self._upkeep is not None:
                    threads.start(partial(self._maintain, self._upkeep), "sink-upkeep")
            thread = self._thread
        return threads.result(waiting.answer, thread)

    def close(self) -> None:
        """Answer waiting batches with a retry, and end once a commit under way has ended."""
        with self._guard:
            if not self._closed.is_set():
                self._closed.set()
                self._work.put(None)
        if self._thread is not None:
            self._thread.join()

    def _maintain(self, upkeep: Upkeep) -> None:
        """Commit beside the other thread, like another process; `close` does not wait for an operation under way."""
        while not self._closed.wait(upkeep.wait_s()):
            upkeep.tend()

    def _run(self) -> None:
        while group := self._next():
            begun_s = time.monotonic()
            try:
                answer = _CLOSED if self._closed.is_set() else self._table.append([waiting.batch for waiting in group])
            except Exception as error:  # noqa: BLE001  # whoever waits must be answered, and the thread live on
                answer = Answer(Verdict.RETRY, f"the sink failed: {type(error).__name__}: {_line(error)}")
            for waiting in group:
                waiting.answer.set_result(answer)
            del group, waiting  # the wait for more must not hold them
            self._closed.wait(min(PAUSES * (time.monotonic() - begun_s), PAUSE_MAX_S))

    def _next(self) -> list[_Waiting]:
        """All waiting batches, up to `COMMIT_BYTES_MAX`; none if the sink is closed and nothing waits."""
        first = self._held or self._work.get()
        self._held = None
        group = [first] if first else []
        size = sum(waiting.batch.nbytes for waiting in group)
        while group and not self._work.empty():
            more = self._work.get()
            if more is None:
                self._work.put(None)  # the end mark; it is read again after this group
                break
            size += more.batch.nbytes
            if size > COMMIT_BYTES_MAX:
                self._held = more
                break
            group.append(more)
        return group


_CLOSED: Final = Answer(Verdict.RETRY, "the sink is closed")


class _Table:
    """The known state of the table; used by one thread after its creation."""

    def __init__(self, path: str, layout: TableLayout) -> None:
        self._folder = folder_of(path)
        self.path = path if self._folder is None else str(self._folder)
        self._layout = layout
        self._columns: tuple[str, ...]
        """Of the rows that are written."""
        self._adds_columns: bool
        """Whether the table lacks some of them."""
        self._partitioned_by: tuple[str, ...]
        self._told_small = False
        self._synced = -1
        """The newest version that is durable."""
        self._names: dict[bytes, None] = {}
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
                f"cannot open the Delta table {path}: {_line(error)}",
                hint="Set sink.delta.path to a folder that this user may write, or to an undamaged Delta table",
            ) from error

    def append(self, batches: Sequence[Batch]) -> Answer:
        """Append the batches; return one answer for all of them."""
        try:
            for _ in range(TRIES_MAX):
                if self._stale:
                    self._look_again()
                fresh = self._fresh(batches)
                if not fresh or self._commit(fresh):
                    return Answer(Verdict.ACK)
                time.sleep(random.uniform(0.0, 0.02))  # random, so as not to commit in step with others
            return Answer(Verdict.RETRY, f"others committed to {self.path} first, {TRIES_MAX} times")
        except (SchemaMismatchError, ConfigError) as error:
            self._stale = True
            return Answer(Verdict.HALT, f"cannot append to the Delta table {self.path}: {_line(error)}")
        except _TROUBLE as error:
            self._stale = True  # it may still have landed
            return Answer(Verdict.RETRY, f"cannot append to the Delta table {self.path}: {_line(error)}")

    def _tell_small(self, rows: pa.Table) -> None:
        """Report once that partitions make many small files: a commit has one for each."""
        if self._told_small or not {*self._partitioned_by}.intersection(LABELS):
            return
        count = rows.group_by(list(self._partitioned_by)).aggregate([]).num_rows
        if makes_small_files(rows.num_rows, count):
            self._told_small = True
            log.warning("table.small_files", table=self.path, rows=rows.num_rows, files=count)

    def _fresh(self, batches: Iterable[Batch]) -> list[tuple[Batch, dict[bytes, Part]]]:
        """Batches with their parts that are not in the table, by digest of the name, each once."""
        seen: set[bytes] = set()
        fresh = []
        for batch in batches:
            parts = {digest_of(text_of_name(part.group), part.name): part for part in batch.parts if part.count}
            parts = {digest: part for digest, part in parts.items() if digest not in self._names and digest not in seen}
            seen.update(parts)
            if parts:
                fresh.append((batch, parts))
        return fresh

    def _commit(self, fresh: Sequence[tuple[Batch, dict[bytes, Part]]]) -> bool:
        """Commit the next version of the table; return False if another process committed it."""
        rows = table_rows(
            table
            for batch, parts in fresh
            for table in record_batches(parts.values(), writer="", sequence=0, batch_id=batch.key)
        )
        digests = [digest for _, parts in fresh for digest in parts]
        metadata = {_KEY: base64.b64encode(b"".join(digests)).decode()}
        properties = CommitProperties(custom_metadata=metadata, max_commit_retries=0)
        version = self._version + 1
        try:
            # In one chunk: several chunks are written in parallel, and a part's rows would be in any order.
            ordered = rows.sort_by([("group", "ascending"), ("tag", "ascending")]).combine_chunks()
            kept = arranged(ordered, self._columns)
            self._tell_small(kept)
            schema_mode: Literal["merge"] | None = "merge" if self._adds_columns else None
            write_deltalake(
                self._table, kept, mode="append", schema_mode=schema_mode, commit_properties=properties
            )  # fmt: skip
        except CommitFailedError:
            self._look_again()
            if self._version < version:
                raise
            return False
        sync_commits(self.path, self._synced + 1, version - 1)
        sync_commit(self.path, version)
        self._synced = version
        if self._table.version() == version:
            self._know(digests)
            self._version = version
        else:
            self._learn()
        return True

    # Commits of others

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            if self._folder is not None:
                files.make_folder(self._folder, shared=True)
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
                    f"cannot create the Delta table {self.path} with sink.delta.properties: {_line(error)}",
                    hint="deltalake supports only some of Delta's properties; remove those that it does not know",
                ) from error
            table = DeltaTable(self.path)
        refuse_features(table, self.path, "set sink.delta.path to a new folder; the table is created there")
        self._partitioned_by = partitions_of(self._layout, [DATE], table.metadata().partition_columns, self.path)
        self._columns = tuple(column.name for column in columns_of(self._layout, self._partitioned_by, None))
        self._adds_columns = _check_columns(table, self._columns)
        return table

    def _look_again(self) -> None:
        known = self._table.metadata().id
        table = self._open()
        self._stale = False
        if table.metadata().id != known:  # the table was replaced, and the known parts are not in this one
            self._names.clear()
            self._version = -1
        self._table = table
        self._learn()

    def _learn(self) -> None:
        behind = self._table.version() - self._version
        if behind > 0:
            for commit in reversed(self._table.history(min(behind, COMMITS_MAX))):
                self._know(_digests_in(commit))
        self._version = self._table.version()

    def _know(self, digests: Iterable[bytes]) -> None:
        self._names.update(dict.fromkeys(digests))
        while len(self._names) > NAMES_MAX:
            del self._names[next(iter(self._names))]


def _digests_in(commit: Mapping[str, Any]) -> list[bytes]:
    """The digests of the parts that a commit added; none if it is not Sidecar's."""
    text = commit.get(_KEY)
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return []
    return [raw[start : start + _DIGEST_BYTES] for start in range(0, len(raw), _DIGEST_BYTES)]


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


def _line(error: Exception) -> str:
    """The error of deltalake, on one line and without its stack trace."""
    return " ".join(re.split(r"\s+0: ", str(error))[0].split())[:REASON_CHARS_MAX]
