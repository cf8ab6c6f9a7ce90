"""Appends to the tables on a thread of its own, as long as the owner's epoch is the last one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection

from sidecar import threads
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry
from sidecar.delay.changelog.postgresql.restorer import EpochClaim
from sidecar.delay.changelog.postgresql.tables import Tables
from sidecar.postgresql import text_of

WAITING_S = 5.0
RETRY_S = 1.0
CLOSING_S = 2.0
"""Longest time that `close` waits for the last appends."""
ENTRIES_MAX, BYTES_MAX = 5_000, 8 << 20
"""Limits of a transaction, unless one call exceeds them."""
# Locks the row of the partition, as a claim does, until the transaction ends.
CHECK = """
UPDATE sidecar_delay_partition SET next = next + %s WHERE place = %s AND epoch = %s RETURNING next
"""
REMOVE = "DELETE FROM sidecar_delay_record WHERE place = %s AND key = ANY(%b::bytea[])"
WRITE = """
INSERT INTO sidecar_delay_record (place, key, value, seq)
SELECT %s, row.key, row.value, row.seq FROM unnest(%b::bytea[], %b::bytea[], %b::bigint[]) AS row (key, value, seq)
ON CONFLICT (place, key) DO UPDATE SET value = excluded.value, seq = excluded.seq
"""
Done = Callable[[int], None]


class _Call(NamedTuple):
    """An `append` that has not ended."""

    claim: EpochClaim
    entries: Sequence[ChangelogEntry]
    done: Done | None


class PostgresqlChangelog:
    """A `Changelog`. Entries that gather during a transaction go into the next one.

    Args:
        claim_of: The claim of a partition that is owned.
        clock: Monotonic, in seconds.
    """

    broken = ""
    """Always empty: failed appends are tried again."""

    def __init__(
        self,
        tables: Tables,
        claim_of: Callable[[TopicPartition], EpochClaim],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._claim_of = claim_of
        self._clock = clock
        self._db: Connection[Any] | None = None
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._calls: deque[_Call] = deque()
        self._ended: list[tuple[Done, int]] = []
        self._reason = ""
        self._moved_s = 0.0
        """Since when nothing was acknowledged, if something waits."""
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> str:
        with self._changed:
            if not self._calls or not (self._reason or self._clock() - self._moved_s > WAITING_S):
                return ""
            return f"{self._tables.where} does not take delayed messages: {self._reason or 'no answer'}"

    def append(self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Done | None = None) -> None:
        with self._changed:
            if self._is_closed:
                return
            if not self._calls:
                self._moved_s = self._clock()
            self._calls.append(_Call(self._claim_of(tp), entries, done))
            if self._thread is None:
                self._thread = threads.start(self._run, "delay-append")
            self._changed.notify_all()

    def serve(self, timeout_s: float = 0.0) -> None:
        with self._changed:
            if timeout_s and not self._ended:
                self._changed.wait_for(lambda: self._ended or not self._calls, timeout_s)
            ended, self._ended = self._ended, []
        for done, offset in ended:
            done(offset)

    def close(self) -> None:
        """Disconnect; the last entries get up to `CLOSING_S` to be appended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    def _run(self) -> None:
        while calls := self._next():
            try:
                offsets = self._write(calls)
            except psycopg.Error as error:
                self._fail(text_of(error))
                continue
            with self._changed:
                for call, offset in zip(calls, offsets, strict=True):
                    self._calls.popleft()
                    if call.done is not None:
                        self._ended.append((call.done, offset))
                self._reason, self._moved_s = "", self._clock()
                self._changed.notify_all()
        self._disconnect()

    def _next(self) -> list[_Call]:
        """The calls of the next transaction, which stay in the queue; none once all is closed."""
        calls: list[_Call] = []
        count = nbytes = 0
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_closed)
            if self._is_closed and self._reason:
                return []
            for call in self._calls:
                count += len(call.entries)
                nbytes += sum(len(key) + len(value or b"") for key, value in call.entries)
                if calls and (count > ENTRIES_MAX or nbytes > BYTES_MAX):
                    break
                calls.append(call)
        return calls

    def _fail(self, reason: str) -> None:
        self._disconnect()
        with self._changed:
            self._reason = reason
            self._changed.wait_for(lambda: self._is_closed, RETRY_S)

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    def _write(self, calls: Sequence[_Call]) -> list[int]:
        """Append in one transaction; return the offset of the last entry of each call, or `LOST`."""
        db = self._db = self._db or self._tables.connect()
        by_claim: dict[EpochClaim, list[_Call]] = {}
        for call in calls:
            by_claim.setdefault(call.claim, []).append(call)
        offsets: dict[int, int] = {}
        with db.transaction():
            for claim in sorted(by_claim):
                offsets |= _write_all(db, claim, by_claim[claim])
        return [offsets[id(call)] for call in calls]


def _write_all(db: Connection[Any], claim: EpochClaim, calls: Sequence[_Call]) -> dict[int, int]:
    """Append what one owner appends to one partition."""
    count = sum(len(call.entries) for call in calls)
    row = db.execute(CHECK, (count, claim.place, claim.epoch)).fetchone()
    if row is None:
        return {id(call): LOST for call in calls}
    offset = row[0] - count
    last: dict[bytes, tuple[bytes | None, int]] = {}
    offsets: dict[int, int] = {}
    for call in calls:
        for key, value in call.entries:
            last[key] = value, offset
            offset += 1
        offsets[id(call)] = offset - 1
    removed = [key for key, (value, _) in last.items() if value is None]
    if removed:
        db.execute(REMOVE, (claim.place, removed))
    written = [(key, value, seq) for key, (value, seq) in last.items() if value is not None]
    if written:
        db.execute(WRITE, (claim.place, *(list(column) for column in zip(*written, strict=True))))
    return offsets
