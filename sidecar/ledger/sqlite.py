"""The embedded ledger: a SQLite file beside the state, for one process. A damaged file is set aside."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sidecar.core.claims import ClaimEnd, ClaimState, Exchanged, LedgerEntry, Want, decide, keys_in
from sidecar.errors import ConfigError, StateError
from sidecar.ledger.interface import LedgerError
from sidecar.owner import Owner, read
from sidecar.state.folder import Presence
from sidecar.state.interface import Damage

LEDGER_FILE = "ledger.db"
SIDE_FILES = ("-wal", "-shm")
KEYS_ASKED = 500
"""Limit of keys in one statement."""
CACHE_KIB = 16_384
BUSY_TIMEOUT_MS = 5_000
_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

# Rows are in the order of their first claim, adjacent as they are settled together; only the index is random.
SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
  id INTEGER PRIMARY KEY, key BLOB NOT NULL, place INTEGER NOT NULL, position INTEGER NOT NULL, token INTEGER NOT NULL,
  state INTEGER NOT NULL, since_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS keys_by_key ON keys (key);
CREATE TABLE IF NOT EXISTS owner (mark BLOB NOT NULL) STRICT;
"""
FIND = (
    f"SELECT key, place, position, token, state, until_ms <= ? FROM keys WHERE key IN ({', '.join('?' * KEYS_ASKED)})"
)
CLAIM = f"""
INSERT INTO keys (key, place, position, token, state, since_ms, until_ms)
VALUES (?, ?, ?, ?, {ClaimState.PROCESSING:d}, ?, ?)
ON CONFLICT (key) DO UPDATE SET
  place = excluded.place, position = excluded.position, token = excluded.token, until_ms = excluded.until_ms,
  state = CASE state WHEN {ClaimState.SUCCESS:d} THEN state ELSE excluded.state END
"""
SETTLE = f"UPDATE keys SET state = ? WHERE key = ? AND place = ? AND position = ? AND state <> {ClaimState.SUCCESS:d}"
PRUNE = f"""
DELETE FROM keys WHERE id IN (
  SELECT id FROM keys WHERE NOT (state = {ClaimState.PROCESSING:d} AND until_ms > ?) ORDER BY id LIMIT ?)
AND (id <= (SELECT max(id) FROM keys) - ? OR since_ms <= ?)
"""


class SqliteLedger:
    """A `Ledger` in a separate file: WAL, `synchronous=FULL`.

    Args:
        folder: A folder that only this process uses.
        on_damage: Called after a damaged file was set aside.
        now_ms: Its clock; by default the machine's.
        owner: The group with its cluster, once that is known: deliveries on another cluster count only there.
    """

    name = "sqlite"

    def __init__(
        self,
        folder: Path,
        on_damage: Callable[[Damage], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        owner: Callable[[], Owner] | None = None,
    ) -> None:
        self._owner = owner
        self._path = folder / LEDGER_FILE
        self._on_damage = on_damage
        self._now_ms = now_ms
        self._connection: sqlite3.Connection | None = None
        self._presence = Presence([])

    def claim(self, wants: Sequence[Want], timeout_ms: int) -> list[list[int]]:
        with self._transaction() as db:
            now_ms = self._now_ms()
            entries = _find(db, [key for want in wants for key in keys_in(want.keys)], now_ms)
            verdicts, writes = decide(wants, entries)
            db.executemany(CLAIM, [(*row, now_ms, now_ms + timeout_ms) for row in writes])
        return verdicts

    def settle(self, marks: Sequence[ClaimEnd]) -> None:
        with self._transaction() as db:
            for mark in marks:
                rows = zip(keys_in(mark.keys), mark.offsets, strict=True)
                db.executemany(SETTLE, [(mark.state, key, mark.place, offset) for key, offset in rows])

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> Exchanged:  # noqa: ARG002
        """Returns nothing: there is no other member."""
        return Exchanged({}, [])

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        with self._transaction() as db:
            now_ms = self._now_ms()
            return db.execute(PRUNE, (now_ms, step, keys_max, now_ms - keep_ms)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._connection = self._connection or self._open()
            self._presence.check()
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
            self._presence.check()
        except StateError as error:  # the file stays open: it may be put back
            raise LedgerError(str(error), hint=error.hint) from error
        except (sqlite3.Error, OSError) as error:
            self.close()
            if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE_CODES:
                self._set_aside(str(error))
            raise LedgerError(f"{self._path}: {error}", hint="check space and rights of the state folder") from error

    def _open(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.executescript(SCHEMA)
            self._refuse_foreign(db)
            self._presence = Presence([Path(f"{self._path}{suffix}") for suffix in (*SIDE_FILES, "")])
        except (sqlite3.Error, OSError, ConfigError):
            db.close()
            raise
        return db

    def _refuse_foreign(self, db: sqlite3.Connection) -> None:
        """Refuse a file of another cluster; a file without a mark is marked for this one."""
        me = self._owner() if self._owner else None
        if me is None or not me.cluster:
            return
        row = db.execute("SELECT mark FROM owner").fetchone()
        if row is None:
            db.execute("INSERT INTO owner VALUES (?)", [me.marked()])
        else:
            cure = "set state.dir so that each cluster has its own"
            me.refuse(read(row[0]), f"the ledger {self._path}", cure, "remove the file: its keys are then forgotten")

    def _set_aside(self, reason: str) -> None:
        """Set the file aside and forget its settled keys; waiting for a person would stop all messages instead."""
        target = self._path.with_name(f"{LEDGER_FILE}.damaged-{time.time_ns() // 1_000_000}")
        with suppress(OSError):
            for old in self._path.parent.glob(f"{LEDGER_FILE}.damaged-*"):
                old.unlink()
            for suffix in (*SIDE_FILES, ""):
                with suppress(FileNotFoundError):
                    Path(f"{self._path}{suffix}").rename(f"{target}{suffix}")
            self._on_damage(Damage("ledger", str(self._path), reason, f"set aside as {target.name}, a new one begun"))

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _find(db: sqlite3.Connection, keys: Sequence[bytes], now_ms: int) -> dict[bytes, LedgerEntry]:
    entries = {}
    for start in range(0, len(keys), KEYS_ASKED):
        some = keys[start : start + KEYS_ASKED]
        padded = (now_ms, *some, *[None] * (KEYS_ASKED - len(some)))
        for key, place, position, token, state, expired in db.execute(FIND, padded):
            entries[key] = LedgerEntry(place, position, token, ClaimState(state), bool(expired))
    return entries
