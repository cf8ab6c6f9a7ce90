"""The ledger that a group's sidecars share: a table in PostgreSQL, rows by arrays. Decides nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import Connection

from sidecar.core.claims import Claimed, ClaimEnd, ClaimState, Exchanged, LedgerEntry, Want, decide, keys_in
from sidecar.ledger.interface import GIVEN_FOR_MS, MISSED_FOR_MS, MISSED_MAX, LedgerError
from sidecar.owner import Owner
from sidecar.postgresql import LOCK, OWNER, OWNER_TABLE, claim_rows, connect, text_of

T = TypeVar("T")

RACES_MAX = 5
"""Number of times that another process may insert a key between the two statements, before the claim is put off."""
ROWS_MAX = 1_000
"""Limit of rows in one statement, so that none takes long for a large batch; the transaction is still one."""
SETTINGS = (
    # Each row is found by its key: this forces the index, whatever the statistics of a table that just grew say.
    "enable_seqscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
)
# One table for each group: a key that one group forgets, by its own `keep` and capacity, another may still need.
LEDGER_TABLE = """
CREATE TABLE {table} (
  id bigint GENERATED ALWAYS AS IDENTITY, key bytea PRIMARY KEY, place bigint NOT NULL, position bigint NOT NULL,
  token bigint NOT NULL, state smallint NOT NULL, since_ms bigint NOT NULL, until_ms bigint NOT NULL)
  WITH (fillfactor = 80);
CREATE INDEX {table}_by_id ON {table} (id);
"""
MISSED_TABLE = """
CREATE TABLE sidecar_missed (
  consumer_group text, identity bytea, asked_ms bigint NOT NULL, message bytea, PRIMARY KEY (consumer_group, identity));
CREATE INDEX sidecar_missed_by_age ON sidecar_missed (asked_ms);
"""
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Locked, so that the rows are unchanged when they are written; in one order, so that two sidecars cannot deadlock.
FIND = f"""
SELECT key, place, position, token, state, until_ms <= {NOW} FROM {{table}}
WHERE key = ANY(%b::bytea[]) ORDER BY key FOR UPDATE
"""
ROWS = "unnest(%b::bytea[], %b::bigint[], %b::bigint[], %b::bigint[]) AS row (key, place, position, token)"
INSERT = f"""
INSERT INTO {{table}} (key, place, position, token, state, since_ms, until_ms)
SELECT row.key, row.place, row.position, row.token, {ClaimState.PROCESSING:d}, {NOW}, {NOW} + %s FROM {ROWS}
ON CONFLICT (key) DO NOTHING
"""
UPDATE = f"""
UPDATE {{table}} AS old SET
  place = row.place, position = row.position, token = row.token, until_ms = {NOW} + %s,
  state = CASE old.state WHEN {ClaimState.SUCCESS:d} THEN old.state ELSE {ClaimState.PROCESSING:d} END
FROM {ROWS} WHERE old.key = row.key
"""
# No condition on the state: nearly all rows are SUCCESS, so the planner would begin with the few that are not.
SETTLE = f"""
UPDATE {{table}} AS old SET state = CASE old.state WHEN {ClaimState.SUCCESS:d} THEN old.state ELSE row.token END
FROM {ROWS} WHERE old.key = row.key AND old.place = row.place AND old.position = row.position
"""
PRUNE = f"""
DELETE FROM {{table}} WHERE key IN (
  SELECT key FROM (
    SELECT * FROM {{table}} WHERE NOT (state = {ClaimState.PROCESSING:d} AND until_ms > {NOW})
    ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) AS oldest
  WHERE id <= (SELECT max(id) FROM {{table}}) - %s OR since_ms <= {NOW} - %s)
"""

FOUND = """
DELETE FROM sidecar_missed WHERE consumer_group = %s AND identity = ANY(%b::bytea[]) AND message IS NOT NULL
RETURNING identity, message
"""
MISS = f"""
INSERT INTO sidecar_missed (consumer_group, identity, asked_ms)
SELECT %s, one, {NOW} FROM unnest(%b::bytea[]) AS one ORDER BY one
ON CONFLICT (consumer_group, identity) DO UPDATE SET asked_ms = excluded.asked_ms
"""
GIVE = """
UPDATE sidecar_missed AS old SET message = given.message
FROM unnest(%b::bytea[], %b::bytea[]) AS given (identity, message)
WHERE old.consumer_group = %s AND old.identity = given.identity
"""
FORGET = f"DELETE FROM sidecar_missed WHERE asked_ms <= {NOW} - {GIVEN_FOR_MS}"
MISSED = f"""
SELECT identity FROM sidecar_missed
WHERE consumer_group = %s AND asked_ms > {NOW} - {MISSED_FOR_MS} AND message IS NULL AND identity <> ALL(%b::bytea[])
LIMIT {MISSED_MAX}
"""


def table_of(group: str) -> str:
    """Name of a consumer group's table; at most 63 bytes with the suffixes of its indexes."""
    digits = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"sidecar_ledger_{re.sub('[^a-z0-9]', '_', group.lower())[:30]}_{digits}"


class PostgresqlLedger:
    """A `Ledger` in the group's own table, created if it is missing; connects at first use, and again after a failure.

    Args:
        url: The database, ``postgresql://...``, in libpq's form.
        password: Password of the user; empty for none, or if libpq finds one itself.
        owner: The group with its cluster, once that is known.
    """

    name = "postgresql"

    def __init__(self, url: str, group: str, password: str = "", owner: Callable[[], Owner] | None = None) -> None:
        table = table_of(group)
        self._tables = {table: LEDGER_TABLE.format(table=table), "sidecar_missed": MISSED_TABLE, OWNER: OWNER_TABLE}
        self._owner = owner or (lambda: Owner(group))
        self._find, self._insert, self._update, self._settle, self._prune = (
            template.format(table=table) for template in (FIND, INSERT, UPDATE, SETTLE, PRUNE)
        )
        self._url = url
        self._password = password
        self._connection: Connection[Any] | None = None

    def claim(self, wants: Sequence[Want], timeout_ms: int) -> list[list[int]]:
        keys = sorted({key for want in wants for key in keys_in(want.keys)})
        for _ in range(RACES_MAX):
            with self._transaction() as db:
                rows = (row for some in _chunks(keys) for row in db.execute(self._find, [some], binary=True))
                entries = {row[0]: _entry(row) for row in rows}
                verdicts, writes = decide(wants, entries)
                if self._write(db, sorted(writes), entries.keys(), timeout_ms):
                    return verdicts
                raise psycopg.Rollback
        raise LedgerError("postgresql: other sidecars claim the same keys all the time")

    def _write(self, db: Connection[Any], writes: list[Claimed], known: Any, timeout_ms: int) -> bool:
        """Write the claims; return False if another process has inserted one of the keys since."""
        for some in _chunks([row for row in writes if row.key in known]):
            db.execute(self._update, (timeout_ms, *_columns(some)))
        new = [_columns(some) for some in _chunks([row for row in writes if row.key not in known])]
        return all(db.execute(self._insert, (timeout_ms, *some)).rowcount == len(some[0]) for some in new)

    def settle(self, marks: Sequence[ClaimEnd]) -> None:
        rows = [  # the state takes the token's place: the same columns serve
            Claimed(key, mark.place, offset, mark.state)
            for mark in marks
            for key, offset in zip(keys_in(mark.keys), mark.offsets, strict=True)
        ]
        with self._transaction() as db:
            for some in _chunks(sorted(rows)):
                db.execute(self._settle, _columns(some))

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> Exchanged:
        asked = list(missed)
        with self._transaction() as db:
            db.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK + 1])  # one at a time: each has what the other misses
            messages: dict[bytes, bytes] = dict(db.execute(FOUND, (group, asked), binary=True)) if asked else {}
            if left := [key for key in asked if key not in messages]:
                db.execute(MISS, (group, left))
            if given:
                db.execute(GIVE, (list(given.keys()), list(given.values()), group))
            db.execute(FORGET)
            return Exchanged(messages, [key for (key,) in db.execute(MISSED, (group, asked), binary=True)])

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        with self._transaction() as db:
            return db.execute(self._prune, (step, keys_max, keep_ms)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[Connection[Any]]:
        try:
            db = self._connection = self._connection or self._connect()
            with db.transaction():
                yield db
        except psycopg.Error as error:
            self.close()
            hint = "check the server, dedup.ledger.postgresql.url"
            raise LedgerError(f"postgresql: {text_of(error)}", hint=hint) from error

    def _connect(self) -> Connection[Any]:
        db = connect(self._url, self._password, self._tables, SETTINGS)
        try:
            claim_rows(db, self._owner(), "dedup.ledger.postgresql")
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def _entry(row: tuple[Any, ...]) -> LedgerEntry:
    _, place, position, token, state, expired = row
    return LedgerEntry(place, position, token, ClaimState(state), expired)


def _columns(rows: Sequence[Claimed]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _chunks(rows: list[T]) -> Iterator[list[T]]:
    return (rows[start : start + ROWS_MAX] for start in range(0, len(rows), ROWS_MAX))
