"""One SQLite file that is sound or set aside, its transactions and its errors. Knows no meaning of rows."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sidecar.errors import StateError
from sidecar.state import schema
from sidecar.state.folder import Presence, StateFolder, errors, set_aside
from sidecar.state.interface import Damage
from sidecar.state.schema import DamagedStateError, DatabaseRow

DATABASE_FILE = "state.db"
BUSY_TIMEOUT_MS = 5_000
WAL_PAGES = 1_000
WAL_BYTES_KEPT_MAX = 16 << 20
FREE_PAGES_RETURNED_MAX = 4_096
_DAMAGE_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# Only at opening: a schema or format that SQLite cannot read, and a header that calls a writable file read-only.
_OPENING_CODES = _DAMAGE_CODES | {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY}


def checksum(*values: str | int | bytes | None) -> int:
    """CRC-32 over values, their types and their lengths: only a row as it was written matches."""
    crc = 0
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        crc = zlib.crc32(data, zlib.crc32(f"{type(value).__name__}:{len(data)}:".encode(), crc))
    return crc


class Database:
    """A sound SQLite file in a locked folder: WAL, `synchronous=FULL`, schema created.

    Writes go over one connection under a lock, reads for other threads over a second one that never waits for it.

    Raises:
        StateError: It cannot be opened or written, or a newer version of this program created it.
    """

    def __init__(self, folder: StateFolder, on_damage: Callable[[Damage], None], on_new: Callable[[], None]) -> None:
        self._folder = folder
        self._on_damage = on_damage
        self._on_new = on_new
        self._lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._tries_again = False
        """Whether a daemon runs that tries again: at its start, a failure ends it."""
        self.path = folder.path / DATABASE_FILE
        self._open()

    def _open(self) -> None:
        try:
            self._writer = self._connect_sound()
        except DamagedStateError as error:
            self._on_damage(set_aside(self._folder, self.path, str(error)))
            try:
                self._writer = self._connect_sound()
            except DamagedStateError as again:
                raise StateError(
                    f"state folder: a new {self.path} is damaged immediately: {again}", hint="check the disk"
                ) from again
        except sqlite3.Error as error:
            raise self._state_error("open", error) from error
        self._reader = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._reader.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        self._reader.execute("PRAGMA query_only=ON")
        self._reader.execute("SELECT count(*) FROM meta")  # opens the log, which is found by its name
        self._reader.text_factory = text_of
        self._presence = self._present()
        self._is_open = self._tries_again = True

    def _present(self) -> Presence:
        """The files, with the log that SQLite created in `_prepare` and keeps while a connection is open."""
        with errors("find", self.path):
            return Presence([Path(f"{self.path}{suffix}") for suffix in ("", "-wal", "-shm")])

    def _connect_sound(self) -> sqlite3.Connection:
        self._folder.file(DATABASE_FILE)
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.text_factory = text_of
        try:
            _prepare(connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for a message that quotes a garbled schema
            _close_quietly(connection)
            if isinstance(error, sqlite3.Error) and _primary_code(error) not in _OPENING_CODES:
                raise self._state_error("open", error) from error
            raise DamagedStateError(str(error)) from error
        except BaseException:
            _close_quietly(connection)
            raise
        return connection

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable afterwards, under the file's name; it raises `StateError` if it is not.

        Args:
            durable: Whether it is certain to outlive a power loss; otherwise the next durable transaction ensures that.
        """
        with self._lock:
            self._reopen()
            self.check_in_place()
            try:
                self._writer.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._failed("write", error) from error
            except BaseException:
                self._roll_back()
                raise
            self.check_in_place()

    def check_in_place(self) -> None:
        """Raise `StateError` if the file is no longer the one under its name; from any thread."""
        self._presence.check()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[DatabaseRow]:
        """A query on the reading connection, from any thread."""
        try:
            with self._read_lock:
                return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            with self._lock:
                raise self._failed("read", error) from error

    def return_space(self) -> None:
        """Return free pages to the file system, a bounded number at a time; errors are ignored."""
        with self._lock, suppress(sqlite3.Error):
            # Not `execute`: this statement has no columns, so that would step it once and free one page.
            self._writer.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES_RETURNED_MAX})")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _failed(self, action: str, error: sqlite3.Error) -> StateError:
        """The error to raise; a file found damaged while open is set aside first, so that the next attempt succeeds."""
        if _primary_code(error) not in _DAMAGE_CODES:
            return self._state_error(action, error)
        self.check_in_place()  # the file there now may be another process's, and sound
        self._close_connections()
        self._is_open = False
        self._on_damage(set_aside(self._folder, self.path, str(error)))
        self._reopen()
        return StateError(
            f"{self.path} was damaged: {error}", hint="it was set aside and replaced by a new one; try again"
        )

    def _reopen(self) -> None:
        if not self._is_open:
            self._open()
            self._on_new()

    def _state_error(self, action: str, error: sqlite3.Error) -> StateError:
        code = _primary_code(error)
        again = "the daemon tries again" if self._tries_again else "start again"
        hint = f"check the disk and the permissions of the folder; {again}"
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            hint = f"free space on its file system, or check the disk; {again}"
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            hint = f"another program holds it locked, an sqlite3 shell perhaps: close it; {again}"
        return StateError(f"cannot {action} {self.path}: {error}", hint=hint)

    def _close_connections(self) -> None:
        with self._read_lock:
            _close_quietly(self._reader)
        _close_quietly(self._writer)

    def close(self) -> None:
        """SQLite then moves the write-ahead log into the file."""
        with self._lock:
            self._close_connections()


def _prepare(connection: sqlite3.Connection) -> None:
    """Check an existing database, create the schema in an empty one, set up the connection."""
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    version = schema.check(connection)
    if not version:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
        raise StateError("the state file cannot use a write-ahead log", hint="put state.dir on a local file system")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_KEPT_MAX}")
    connection.execute("BEGIN IMMEDIATE")
    # Each opening writes: a full disk, or a header that forbids writing, shows now and not at a batch.
    schema.complete(connection, version)
    connection.execute("COMMIT")


def _primary_code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def text_of(data: bytes) -> str:
    """Text of the file; bytes that are not UTF-8 become surrogate escapes."""
    return data.decode("utf-8", "surrogateescape")


def _close_quietly(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        connection.close()
