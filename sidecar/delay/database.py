"""The sorted map of a store, in RocksDB: opened, read, written, made durable. Does not interpret its content.

A write is atomic. It is in a log at once, which outlives the process, and durable after a job: what a power cut takes
is a suffix of all writes. What is removed frees its space when RocksDB merges its files. It has threads of its own for
that; a block that it finds damaged there, or in reading, ends all writes: the next start copies what can be read.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from sidecar import files
from sidecar.delay.interface import FileDamage
from sidecar.delay.rows import STORE_BYTES, Kind, Pair
from sidecar.delay.wal import broken_off, has_write_behind, spoil
from sidecar.errors import StateError
from sidecar.state.folder import StateFolder, errors

ROWS = "rows"
"""The folder of the database in that of its store."""
DAMAGED = f"{ROWS}/damaged"
"""Exists if a block was found damaged; goes with the database."""
WRITTEN_BYTES, READ_BYTES = 16 << 20, 8 << 20
"""Memory of what is written and not in files yet, of which there may be two; and of what was read."""
_BLOCK_BYTES = 16 << 10
ENDED_BYTES_MAX = 64 << 20
"""Bytes of ended messages at which a file is begun, so that their space is freed though nothing else is written."""
_PROBE_BYTES = 1 << 20
"""What must fit on the disk before the database is opened again."""
_ERRORS = {os.strerror(number): number for number in errno.errorcode}
_GONE = re.compile(r"(/\S+\.sst): No such file")
"""A file in an error that RocksDB also calls damage."""
_NAMED = re.compile(r"(/\S+): [^:]+$")
"""The file in an error of the system."""
BASE = struct.Struct("<q")
"""What is added to RocksDB's own number of a change: a copy of the database begins to count at 0."""
_CORRUPTION = re.compile(r"Corruption|bad block|checksum mismatch")


class DamageError(Exception):
    """A file is damaged."""


class GapError(DamageError):
    """Writes are missing between others: the list of files is an older one."""


class ForeignFileError(DamageError):
    """A file of another store is among the files."""

    def __init__(self, path: Path) -> None:
        logs = [log.name for log in path.glob("*.log") if log.stat().st_size]
        super().__init__(f"a file of another store is among its files: {' or '.join([*logs, 'an .sst'])} in {path}")


def options(*, skips_damage: bool = False) -> Options:
    """How the database is opened.

    Args:
        skips_damage: Whether its log is read behind damage, too; else up to there.
    """
    found, table = Options(raw_mode=True), BlockBasedOptions()
    found.create_if_missing(True)  # noqa: FBT003
    found.set_compression_type(DBCompressionType.none())
    found.set_write_buffer_size(WRITTEN_BYTES)
    found.set_max_write_buffer_number(2)
    mode = DBRecoveryMode.skip_any_corrupted_record if skips_damage else DBRecoveryMode.point_in_time
    found.set_wal_recovery_mode(mode())
    found.set_keep_log_file_num(1)
    found.set_max_log_file_size(1 << 20)
    found.set_stats_dump_period_sec(0)
    table.set_block_cache(Cache(READ_BYTES))
    table.set_block_size(_BLOCK_BYTES)
    found.set_block_based_table_factory(table)
    return found


def has_files(path: Path) -> bool:
    """Whether a folder has files of a database."""
    return any(each.suffix in {".sst", ".log"} or each.name == "CURRENT" for each in path.glob("*"))


def opened(path: Path, identity: int | None, *, is_only: bool) -> tuple[Rdict, bool]:
    """The database of a folder, and whether its log is damaged before its end: what is beside that was not read.

    A log that only lost its end is as after a power cut.

    Args:
        identity: The store's; None if it is not known.
        is_only: Whether nothing else has what it has.

    Raises:
        DamageError: RocksDB would begin a new database, or mix it with that of another store.
    """
    if not (path / "CURRENT").exists() and has_files(path):
        raise DamageError(f"{path / 'CURRENT'} is missing")
    logs = [log for log in path.glob("*.log") if log.stat().st_size]
    if not logs:
        return Rdict(str(path), options()), False
    whole = Rdict(str(path), options(), access_type=AccessType.read_only())
    try:
        counts = list(pairs(whole.iter(), Kind.COUNT))
        refuse_foreign(path, counts, identity)
        if is_only:
            _refuse_gaps(whole, counts)
        last = whole.latest_sequence_number()
    finally:
        whole.close()
    contents = {log: log.read_bytes() for log in logs}
    is_damaged = any(has_write_behind(content, last) for content in contents.values())
    for log, content in contents.items() if is_damaged else ():
        spoil(log, broken_off(content, last))
    return Rdict(str(path), options(skips_damage=is_damaged)), is_damaged


def _refuse_gaps(rows: Rdict, counts: Iterable[Pair]) -> None:
    """Refuse a database that lacks writes between others: RocksDB would remove the files that it does not know.

    Raises:
        GapError: It does.
    """
    known = {key[1:5] for key, _ in pairs(rows.iter(), Kind.PARTITION)}
    last = dict[bytes, int]()
    for key, _ in counts:
        number, count = key[1:5], int.from_bytes(key[5:], "big")
        if number not in known or last.get(number, count - 1) != count - 1:
            raise GapError(f"{rows.path()} lacks writes")
        last[number] = count


def refuse_foreign(path: Path, counts: Iterable[Pair], identity: int | None) -> None:
    """Refuse counts of another store.

    Raises:
        ForeignFileError: There are some.
    """
    found = {raw[:STORE_BYTES] for _, raw in counts}
    if found and len(found | ({identity.to_bytes(STORE_BYTES, "big")} if identity is not None else set())) > 1:
        raise ForeignFileError(path)


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of RocksDB, which have one class, as what they are.

    Raises:
        DamageError: A file is damaged.
        OSError: The system refused a call.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, StateError, DamageError):
        raise
    except Exception as error:
        text = str(error)
        if gone := _GONE.search(text):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), gone[1]) from error
        if _CORRUPTION.search(text):
            raise DamageError(text) from error
        number, named = _ERRORS.get(text.rpartition(": ")[2].partition(" (os error")[0]), _NAMED.search(text)
        if number is None:
            raise OSError(text) from error
        raise OSError(number, os.strerror(number), named and named[1]) from error


class SyncJob:
    """Makes all changes so far durable.

    Args:
        changes: Their number.
        last: The number of the last one, see `RowDatabase.last`.
    """

    def __init__(self, rows: Rdict, changes: int, last: int) -> None:
        self._rows, self.changes, self.last = rows, changes, last

    def run(self) -> None:
        """Make them durable, on any thread: others run meanwhile.

        Raises:
            OSError: It failed.
        """
        try:
            with translated():
                self._rows.flush_wal(True)  # noqa: FBT003
        except DamageError as error:
            raise OSError(str(error)) from error


class RowDatabase:
    """For one thread of one process, but for its jobs.

    Args:
        folder: The folder of the store.
        damages: Gets the damage that is found.
        identity: The store's; None if it is not known.
        is_only: Whether nothing else has what it has.

    Raises:
        OSError: The system refused a call.
        DamageError: The database cannot be opened.
    """

    def __init__(self, folder: StateFolder, damages: list[FileDamage], identity: int | None, *, is_only: bool) -> None:
        self._folder, self._store, self._is_only = folder, identity, is_only
        self.path = folder.path / ROWS
        self.damages = damages
        self.changes = self.synced = 0
        self.broken: OSError | None = None
        """Why nothing more can be made durable."""
        self._is_full = False
        """Whether the disk was full, and nothing was written since: RocksDB goes on by itself, once there is room."""
        self._stopped_at: int | None = None
        """Changes in RocksDB when a write failed for another reason: it takes none before it is opened again."""
        self._job: SyncJob | None = None
        self._ended_bytes = 0
        files.make_folder(self.path)
        self.path.chmod(0o700)  # RocksDB's files are readable for all
        with translated():
            self._rows, is_damaged = opened(self.path, identity, is_only=is_only)
        if is_damaged:
            damages.append(FileDamage(self.path, "its log is damaged: what was written there last may be missing", 0))
        self._identity = self.path.stat().st_ino
        try:
            with translated():
                self._base = BASE.unpack(self._rows.get(Kind.BASE) or bytes(BASE.size))[0]
        except BaseException:
            self._rows.close()
            raise
        self.found = self.durable = self.last
        """The number of the last change when the database was opened, and of the last one that is durable."""

    @property
    def last(self) -> int:
        """The number of the last change; it rises with each, whatever process or copy of the database makes it."""
        number: int = self._base + self._rows.latest_sequence_number()
        return number

    @contextmanager
    def errors(self, verb: str) -> Iterator[None]:
        """Raise errors as `StateError`, with the folder and the cure."""
        with errors(verb, self._folder.path):
            try:
                with translated():
                    yield
            except DamageError as error:
                self._found_damage(error)
                raise StateError(str(self.broken)) from error
            except OSError as error:
                if error is self.broken and error.errno is None:  # the text has the cure
                    raise StateError(str(error)) from error
                if verb == "write":
                    self._refused(error)
                raise

    def _refused(self, error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            self._is_full = True
        elif self._stopped_at is None and self.broken is None:
            self._stopped_at = self._rows.latest_sequence_number()

    def _found_damage(self, error: DamageError) -> None:
        """Note that the next start copies what can be read."""
        with suppress(OSError):
            files.put(self._folder.path / DAMAGED, str(error).encode())
        if self.broken is None:
            self.damages.append(FileDamage(self.path, str(error), 0))
        cure = "what can be read is kept" if self._is_only else "it is restored"
        self.broken = OSError(f"{self.path} is damaged: start again, and {cure} ({error})")

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        found: bytes | None = self._rows.get(key)
        return found

    def under(self, start: bytes, first: bytes = b"", end: bytes | None = None) -> Iterator[Pair]:
        """The pairs whose keys begin with `start`, in [first, end), in order, as they are now."""
        return pairs(self._rows.iter(), start, first, end)

    def cursor(self) -> RdictIter:
        """An iterator of RocksDB over all pairs as they are now, for any thread."""
        return self._rows.iter()

    # Writing

    def write(self, batch: WriteBatch, ended_bytes: int = 0) -> None:
        """Write a change, as a whole or not at all.

        Args:
            ended_bytes: Bytes of rows that it removes.

        Raises:
            StateError: Nothing was written.
        """
        with self.errors("write"):
            self._go_on()
            self._rows.write(batch)
            self._ended_bytes += ended_bytes
            if self._ended_bytes > ENDED_BYTES_MAX:
                self._ended_bytes = 0
                self._rows.flush(False)  # noqa: FBT003
        self.changes += 1

    @property
    def in_place(self) -> bool:
        """Whether the files are where they were opened: if not, what is written is lost."""
        try:
            return self.path.stat().st_ino == self._identity
        except OSError:
            return False

    @property
    def entered(self) -> int:
        """Number of changes that can be read: all."""
        return self.changes

    def poll(self) -> None:
        """Do nothing: `ended_sync` reports durable changes."""

    def begin_sync(self) -> SyncJob | None:
        """A job that makes all changes so far durable; None if they are, or if one is under way."""
        self._check()
        if self._job is not None or self.synced == self.changes:
            return None
        self._job = SyncJob(self._rows, self.changes, self.last)
        return self._job

    def ended_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Count the changes before a job as durable, unless it failed with an error.

        After an error the system may have dropped what it could not write, so a second attempt would prove nothing.
        """
        if job is not self._job:
            return
        self._job = None
        if error is None:
            self.synced, self.durable = max(self.synced, job.changes), max(self.durable, job.last)
        else:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Note that a job failed: unless a write had failed before, a second attempt would prove nothing."""
        if error.errno == errno.ENOSPC:
            self._is_full = True
        elif self._stopped_at is None:
            self.broken = self.broken or error

    def _check(self) -> None:
        """Refuse what cannot succeed.

        Raises:
            StateError: Nothing can be written, at present or any more.
        """
        with self.errors("write"):
            self._go_on()
            if self._is_full:
                self._rows.put(Kind.ROOM, b"")
                self._is_full = False

    def _go_on(self) -> None:
        """Open the database again if a write failed, as soon as the disk takes one; it may be read until then.

        Raises:
            OSError: The disk takes none, or nothing can be made durable any more.
        """
        if self.broken is not None:
            raise self.broken
        if self._stopped_at is None:
            return
        if not self.in_place:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        with tempfile.TemporaryFile(dir=self._folder.path) as probe:
            files.write_at(probe.fileno(), bytes(_PROBE_BYTES), 0)
            os.fsync(probe.fileno())
        with suppress(Exception):  # it repeats the error
            self._rows.close()
        self._rows, is_damaged = opened(self.path, self._store, is_only=self._is_only)
        if is_damaged or self._rows.latest_sequence_number() < self._stopped_at:
            self.broken = OSError(errno.EIO, "writes are missing that the system had taken")
            raise self.broken
        self._stopped_at = None

    def sync(self) -> None:
        """Make all changes durable now."""
        self._check()
        job = self._job = SyncJob(self._rows, self.changes, self.last)
        with self.errors("write"):
            try:
                job.run()
            except OSError as error:
                self._failed(error)
                raise
        self.ended_sync(job, None)

    def close(self) -> None:
        """Close the files, so that the next start has no log to repeat; harmless when repeated."""
        with suppress(Exception):  # what is damaged cannot be closed
            if self.broken is None:
                self._rows.flush()
            self._rows.close()


def keys(cursor: RdictIter, start: bytes, first: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
    """The keys that begin with `start`, in [first, end), in order."""
    cursor.seek(max(start, first))
    while cursor.valid():
        key = cursor.key()
        if not key.startswith(start) or (end is not None and key >= end):
            return
        yield key
        cursor.next()
    cursor.status()


def pairs(cursor: RdictIter, start: bytes, first: bytes = b"", end: bytes | None = None) -> Iterator[Pair]:
    """The pairs of these keys."""
    return ((key, cursor.value()) for key in keys(cursor, start, first, end))


def remove(path: Path) -> None:
    """Remove a folder with all that it has."""
    shutil.rmtree(path, ignore_errors=True)
