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
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from sidecar import files
from sidecar.config.sinks import DeltaSink as DeltaSettings
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, Verdict
from sidecar.errors import ConfigError
from sidecar.sinks.base import Context
from sidecar.zone.columns import record_batches
from sidecar.zone.entry import digest_of
from sidecar.zone.rows import RowFramer
from sidecar.zone.schema import text_of_name
from sidecar.zone.table import DATE, TABLE_SCHEMA, table_rows

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
UNSYNCED_MAX: Final = 16
"""Number of the newest commits that are checked after a power loss: one of each process may not have been synced."""
CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 2 days"}
"""Configuration of a table created here. Five commits a second for Delta's own 30 days would be 13 million files."""
REASON_CHARS_MAX: Final = 300
_KEY: Final = "sidecar"
_DIGEST_BYTES: Final = 16
_TROUBLE: Final = (DeltaError, OSError, ValueError)  # deltalake raises all of these for errors of disk or log


def build(settings: DeltaSettings, context: Context) -> DeltaSink:
    """The sink of these settings.

    Raises:
        ConfigError: The table cannot be opened or created, or has other columns.
    """
    return DeltaSink(settings.path, RowFramer(context.columns, context.tags_of, context.groups))


class _Waiting(NamedTuple):
    batch: Batch
    answer: Future[Answer]


class DeltaSink:
    """Acknowledges a batch when the commit that has its rows and names is durable.

    Callers wait while one thread commits all batches that wait at that moment: the more wait, the fewer commits.

    Args:
        path: The table: a path, or a URL that deltalake knows. It is created if it is missing.
        framer: Makes rows of messages.

    Raises:
        ConfigError: The table cannot be opened or created, or has other columns.
    """

    def __init__(self, path: str, framer: RowFramer) -> None:
        self.framer = framer
        self._table = _Table(path)
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
                self._thread = threading.Thread(target=self._run, name="sink-delta", daemon=True)
                self._thread.start()
        return waiting.answer.result()

    def close(self) -> None:
        """Answer waiting batches with a retry, and end once a commit under way has ended."""
        with self._guard:
            if not self._closed.is_set():
                self._closed.set()
                self._work.put(None)
        if self._thread is not None:
            self._thread.join()

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

    def __init__(self, path: str) -> None:
        self._folder = _folder(path)
        self._path = path if self._folder is None else str(self._folder)
        self._names: dict[bytes, None] = {}
        self._version = -1
        self._stale = False
        try:
            self._table = self._open()
            _check_newest(self._path, self._table.version())
            self._learn()
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
            return Answer(Verdict.RETRY, f"others committed to {self._path} first, {TRIES_MAX} times")
        except (SchemaMismatchError, ConfigError) as error:
            self._stale = True
            return Answer(Verdict.HALT, f"the Delta table {self._path} has other columns: {_line(error)}")
        except _TROUBLE as error:
            self._stale = True  # it may still have landed
            return Answer(Verdict.RETRY, f"cannot append to the Delta table {self._path}: {_line(error)}")

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
            write_deltalake(self._table, ordered, mode="append", commit_properties=properties)
        except CommitFailedError:
            self._look_again()
            if self._version < version:
                raise
            return False
        sync_commit(self._path, version)
        if self._table.version() == version:
            self._know(digests)
            self._version = version
        else:
            self._learn()
        return True

    # Commits of others

    def _open(self) -> DeltaTable:
        try:
            table = DeltaTable(self._path)
        except TableNotFoundError:
            if self._folder is not None:
                files.make_folder(self._folder)
            DeltaTable.create(self._path, TABLE_SCHEMA, mode="ignore", partition_by=[DATE], configuration=CONFIGURATION)
            table = DeltaTable(self._path)
        _check_columns(table)
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


def sync_commit(path: str, version: int) -> None:
    """Make a commit survive a power loss, data before the log that names it; deltalake syncs nothing.

    Args:
        path: The table; nothing is done for a URL.
        version: The version of the commit.

    Raises:
        OSError: It failed.
    """
    root = _folder(path)
    if root is not None:
        added = [Path(name) for name, _ in _added(root, version)]
        folders = {root / folder for file in added for folder in file.parents}
        log = _log(root, version)
        for synced in [*(root / file for file in added), *folders, log, log.parent]:
            files.sync(synced)


def _check_newest(path: str, version: int) -> None:
    """Refuse a table whose newest commits a power loss has torn: their names would vouch for rows that are missing."""
    root = _folder(path)
    if root is None:
        return
    for torn in range(max(0, version - UNSYNCED_MAX), version + 1):
        for name, size in _added(root, torn):
            file = root / name
            if file.exists() and file.stat().st_size != size:  # a missing file was compacted and vacuumed
                raise ConfigError(
                    f"the Delta table {path} was torn by a power loss: {name} is incomplete, and version "
                    f"{torn} names it",
                    hint=f"Remove {_log(root, torn).name} and later files from _delta_log: they were not acknowledged",
                )


def _folder(path: str) -> Path | None:
    """The folder of a table on a local file system; None for a URL, whose store is responsible for its files."""
    path = path.removeprefix("file://")
    return None if "://" in path else Path(path)


def _log(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020d}.json"


def _added(root: Path, version: int) -> list[tuple[str, int]]:
    """Files and sizes in bytes that a commit adds; none if it was cleaned up."""
    actions = map(orjson.loads, (files.read_from(_log(root, version)) or b"").splitlines())
    adds = [action["add"] for action in actions if "add" in action]
    return [(unquote(add["path"]), add["size"]) for add in adds]


def _digests_in(commit: Mapping[str, Any]) -> list[bytes]:
    """The digests of the parts that a commit added; none if it is not Sidecar's."""
    text = commit.get(_KEY)
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return []
    return [raw[start : start + _DIGEST_BYTES] for start in range(0, len(raw), _DIGEST_BYTES)]


def _check_columns(table: DeltaTable) -> None:
    there = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    wanted = {field.name: field.type for field in pa.schema(Schema.from_arrow(TABLE_SCHEMA).to_arrow())}
    if there == wanted:
        return
    odd = next((name for name in [*wanted, *there] if there.get(name) != wanted.get(name)), "")
    raise ConfigError(
        f"the table {table.table_uri} has other columns: {odd} is {there.get(odd, 'not there')},"
        f" and would be {wanted.get(odd, 'not there')}",
        hint="Set sink.delta.path to a new folder; the table is created there",
    )


def _line(error: Exception) -> str:
    """The error of deltalake, on one line and without its stack trace."""
    return " ".join(re.split(r"\s+0: ", str(error))[0].split())[:REASON_CHARS_MAX]
