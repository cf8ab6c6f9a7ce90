"""What delayed messages cost with `store: postgresql`: to put, to remove and to restore.

The store of a daemon, without a source, puts messages of 200 random bytes, 500 at a time, hands them out and removes
them, 500 at a time, each commit with its state; a host without local files restores what is held. Beside it, in turns,
psycopg does the same with the same rows in a table of the same form and nothing else: it writes them by `COPY`, and by
`INSERT … unnest`, deletes them, and reads them in order. Rates are of the wall: the server, on loopback, takes most of
the time. The CPU is that of this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from psycopg import Connection

from benchmarks.delay import BATCH, SPAN_MS, batches, line
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.postgresql.appender import PostgresqlChangelog
from sidecar.delay.changelog.postgresql.restorer import PostgresqlRestorer
from sidecar.delay.changelog.postgresql.tables import Tables
from sidecar.delay.changelog.records import RecordLineage, message_entry
from sidecar.delay.changelog.store import ChangelogStore
from sidecar.delay.changelog.takeover import FencedTakeover, Start
from sidecar.delay.interface import Job
from sidecar.delay.rows import Held
from tests.support.postgresql import Database, PostgresqlServer

TP, NAME, LINEAGE = TopicPartition("t", 0), b"t0", RecordLineage(1, 2)
AT_ONCE = 5_000
"""Rows in a transaction of psycopg's; the daemon has as many at most."""
READ_AT_ONCE = 1_000
ALL = 1 << 62
ON_THE_WAY = 100
"""Batches that are put before the acknowledgement of the first is awaited; the store takes 32 MiB."""
BARE = """
CREATE TABLE bare (place bigint, key bytea, value bytea NOT NULL, seq bigint NOT NULL, PRIMARY KEY (place, key));
CREATE INDEX ON bare (place, seq)
"""
INSERT = "INSERT INTO bare SELECT 1, * FROM unnest(%b::bytea[], %b::bytea[], %b::bigint[])"
Row = tuple[bytes, bytes, int]


class Rates(NamedTuple):
    """Messages a second, and microseconds of CPU for each."""

    per_second: float
    cpu_us: float


class Timer:
    """Measures what happens from its beginning on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, messages: int) -> Rates:
        """Of so many messages until now."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Rates(messages / wall, cpu / messages * 1e6)


class Process:
    """The store of a process that owns one partition.

    Args:
        database: With a schema of its own.
        url: Of that schema.
        folder: For the local files; it is empty.
    """

    def __init__(self, database: Database, url: str, folder: Path) -> None:
        tables = Tables(url, database.password, "bench")
        self.restorer = PostgresqlRestorer(tables)
        self.changelog = PostgresqlChangelog(tables, self.restorer.claim_of)
        self.store = ChangelogStore(LocalCache(folder), self.changelog)
        self._writer = ThreadPoolExecutor(1)
        self._writing: tuple[Job, Future[None]] | None = None
        self.number = self._take_over()

    def _take_over(self) -> int:
        number, _ = self.store.begin_partition(NAME)

        def adopt(rows: list[Held], is_anew: bool) -> None:  # noqa: ARG001
            self.store.adopt(number, rows)
            self.tend()

        taken_over = FencedTakeover(self.restorer, TP, Start(Stores(0, (), 0), LINEAGE, 0, 0, 0), adopt).run()
        self.store.own(NAME, number, TP, LINEAGE, taken_over)
        self._commit(0)
        self.store.writes.sync()
        return number

    def _commit(self, watermark: int) -> None:
        number = self.store.number(NAME)
        self.store.keep(number, b"", watermark, watermark)
        self.store.committed(number, watermark)

    def tend(self) -> None:
        """Do what the main loop and the writer's thread do."""
        self.store.writes.poll()
        if self._writing is not None and self._writing[1].done():
            self._writing[1].result()
            self.store.writes.ended_sync(self._writing[0], None)
            self._writing = None
        if self._writing is None and (job := self.store.writes.begin_sync()) is not None:
            self._writing = job, self._writer.submit(job.run)

    def put(self, messages: int) -> Rates:
        """Put messages; the rate until all are acknowledged."""
        some, timer, origin = list(batches(messages, SPAN_MS)), Timer(), 0
        for dues, values in some:
            rows = zip(dues, range(origin, origin + len(dues)), values, strict=True)
            self.store.put(
                self.number,
                [Held(due << SEQUENCE_BITS, at, 0, None, NO_TAGS, None, b"", value) for due, at, value in rows],
            )
            origin += len(dues)
            while self.store.writes.changes - self.store.writes.synced > ON_THE_WAY:
                self.changelog.serve(0.1)
            self.tend()
        self.store.writes.sync()
        return timer.rates(messages)

    def remove(self, messages: int) -> Rates:
        """Hand all out, and end them; the rate until all removals are acknowledged."""
        timer, got = Timer(), 0
        while held := self.store.take_due(self.number, ALL, BATCH, 1 << 20):
            got += len(held)
            self._commit(held[-1].position + 1)
            self.tend()
        self.store.writes.sync()
        assert got == messages
        return timer.rates(messages)

    def close(self) -> None:
        """Disconnect."""
        self._writer.shutdown()
        self.changelog.close()
        self.restorer.close()


def restored(database: Database, url: str, messages: int) -> Rates:
    """Another host takes the partition over."""
    with tempfile.TemporaryDirectory() as folder:
        timer = Timer()
        with closing(Process(database, url, Path(folder))) as heir:
            assert heir.store.rows.held(heir.number) == messages
            return timer.rates(messages)


def ours(database: Database, messages: int) -> dict[str, Rates]:
    """What a daemon's store takes."""
    url = database.schema()
    with tempfile.TemporaryDirectory() as folder, closing(Process(database, url, Path(folder))) as owner:
        put = owner.put(messages)
        removed = owner.remove(messages)
    with tempfile.TemporaryDirectory() as folder, closing(Process(database, url, Path(folder))) as owner:
        owner.put(messages)
    return {"put": put, "remove": removed, "restore": restored(database, url, messages)}


def rows(messages: int) -> list[Row]:
    """The rows that the store writes."""
    found: list[Row] = []
    for dues, values in batches(messages, SPAN_MS):
        for due_ms, value in zip(dues, values, strict=True):
            at = len(found)
            held = Held(due_ms << SEQUENCE_BITS | at % (1 << SEQUENCE_BITS), at, 1, None, NO_TAGS, None, b"", value)
            entry = message_entry(LINEAGE, held)
            found.append((entry.key, entry.value or b"", at))
    return found


def chunks(some: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Those of a transaction each."""
    left = iter(some)
    while chunk := list(islice(left, AT_ONCE)):
        yield chunk


def copied(db: Connection[Any], some: Sequence[Row]) -> Rates:
    """Rows that are written by `COPY`."""
    timer = Timer()
    for chunk in chunks(some):
        with (
            db.cursor() as cursor,
            cursor.copy("COPY bare (key, value, seq, place) FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(["bytea", "bytea", "int8", "int8"])
            for row in chunk:
                copy.write_row((*row, 1))
    return timer.rates(len(some))


def inserted(db: Connection[Any], some: Sequence[Row]) -> Rates:
    """Rows that are written by `INSERT`."""
    timer = Timer()
    for chunk in chunks(some):
        db.execute(INSERT, [list(column) for column in zip(*chunk, strict=True)])
    return timer.rates(len(some))


def deleted(db: Connection[Any], some: Sequence[Row]) -> Rates:
    """Rows that are removed by their keys."""
    timer = Timer()
    for chunk in chunks(sorted(some)):
        db.execute("DELETE FROM bare WHERE place = 1 AND key = ANY(%b::bytea[])", ([key for key, *_ in chunk],))
    return timer.rates(len(some))


def read(db: Connection[Any], some: Sequence[Row]) -> Rates:
    """Rows that are read in order."""
    timer, got = Timer(), 0
    with db.transaction(), db.cursor("all", binary=True) as cursor:
        cursor.execute("SELECT seq, key, value FROM bare WHERE place = 1 ORDER BY seq")
        while found := cursor.fetchmany(READ_AT_ONCE):
            got += len(found)
    assert got == len(some)
    return timer.rates(len(some))


def bare(database: Database, messages: int) -> dict[str, Rates]:
    """What psycopg takes."""
    some = rows(messages)
    with Database(database.schema(), database.password).connect() as db:
        db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        db.execute(BARE)
        found = {"COPY": copied(db, some)}
        db.execute("TRUNCATE bare")
        steps: dict[str, Callable[[Connection[Any], Sequence[Row]], Rates]] = {
            "INSERT": inserted, "SELECT": read, "DELETE": deleted,
        }  # fmt: skip
        return found | {name: step(db, some) for name, step in steps.items()}


PAIRS = {"put": ("COPY", "INSERT"), "remove": ("DELETE",), "restore": ("SELECT",)}
"""By what the store does, what psycopg does of the same."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay_postgresql", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with PostgresqlServer() as database:
        found = [(ours(database, args.messages), bare(database, args.messages)) for _ in range(args.rounds)]
    for name, others in PAIRS.items():
        _print(f"{args.messages:,}, {name}", [mine[name] for mine, _ in found])
        for other in others:
            _print(f"  {other} alone", [theirs[other] for _, theirs in found])
            ratios = sorted(mine[name].per_second / theirs[other].per_second for mine, theirs in found)
            line("  ratio of the store to it", f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def _print(what: str, found: Sequence[Rates]) -> None:
    per_second, cpu_us = (statistics.median(column) for column in zip(*found, strict=True))
    line(what, f"{per_second:>9,.0f} a second, {cpu_us:.1f} us of CPU each")


if __name__ == "__main__":
    main()
