"""What the ledger takes of a message: one transaction for a batch, beside three statements for each message.

For SQLite and a real PostgreSQL on loopback, 200,000 keys already there. A batch takes two transactions: it is
claimed, and settled after its delivery. The other way is the one that is usually described: look the key up, write
PROCESSING, and after the delivery write SUCCESS, each durable by itself. Time is that of the caller, who waits for the
database.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import xxhash

from sidecar.core.claims import ClaimEnd, ClaimState, Want
from sidecar.ledger.interface import Ledger
from sidecar.ledger.postgresql import PostgresqlLedger
from sidecar.ledger.sqlite import SqliteLedger
from tests.support.postgresql import PostgresqlServer

FILLED = 200_000
CLAIM_MS = 600_000
Execute = Callable[[str, tuple[Any, ...]], object]

TABLE = "CREATE TABLE plain (key {blob} PRIMARY KEY, state INTEGER NOT NULL, until_ms BIGINT NOT NULL)"
THREE = (
    "SELECT state, until_ms FROM plain WHERE key = {0}",
    "INSERT INTO plain VALUES ({0}, 1, 0) ON CONFLICT (key) DO UPDATE SET state = 1",
    "UPDATE plain SET state = 2 WHERE key = {0}",
)


def keys() -> Iterator[bytes]:
    """Random keys, all different."""
    return (xxhash.xxh3_128_digest(b"%d" % number) for number in itertools.count())


def batches(ledger: Ledger, fresh: Iterator[bytes], size: int, count: int) -> float:
    """Seconds a message, for so many batches."""
    blobs = [b"".join(itertools.islice(fresh, size)) for _ in range(count)]
    begun = time.perf_counter()
    for number, blob in enumerate(blobs):
        offsets = range(number * size, (number + 1) * size)
        ledger.claim([Want(1, offsets, blob, 0)], CLAIM_MS)
        ledger.settle([ClaimEnd(1, ClaimState.SUCCESS, offsets, blob)])
    return (time.perf_counter() - begun) / (size * count)


def three(execute: Execute, mark: str, fresh: Iterator[bytes], count: int) -> float:
    """Seconds a message, for so many messages."""
    some = list(itertools.islice(fresh, count))
    statements = [text.format(mark) for text in THREE]
    begun = time.perf_counter()
    for key in some:
        for statement in statements:
            execute(statement, (key,))
    return (time.perf_counter() - begun) / count


def fill(many: Callable[[str, list[tuple[bytes]]], object], mark: str, fresh: Iterator[bytes]) -> None:
    """Put the keys into the plain table that are in the ledger too."""
    many(f"INSERT INTO plain VALUES ({mark}, 2, 0)", [(key,) for key in itertools.islice(fresh, FILLED)])


def measure(name: str, ledger: Ledger, one_by_one: float, sizes: list[int], rounds: int) -> None:
    """Print what each size of batches takes."""
    fresh = keys()
    batches(ledger, fresh, 5_000, FILLED // 5_000)
    for size in sizes:
        each = min(batches(ledger, fresh, size, max(1, 20_000 // size)) for _ in range(rounds))
        print(
            f"{name:<11} batches of {size:>5,}: {each * 1e6:7.1f} us a message;"
            f" three statements each: {one_by_one * 1e6:8.1f} us; ratio {one_by_one / each:6.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 5_000])
    parser.add_argument("--messages", type=int, default=2_000, help="one by one")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = sqlite3.connect(Path(folder) / "plain.db", isolation_level=None)
        plain.execute("PRAGMA journal_mode=WAL")
        plain.execute("PRAGMA synchronous=FULL")
        plain.execute(TABLE.format(blob="BLOB"))
        plain.execute("BEGIN")
        fill(plain.executemany, "?", fresh := keys())
        plain.execute("COMMIT")
        slow = min(three(plain.execute, "?", fresh, args.messages) for _ in range(args.rounds))
        measure("sqlite", SqliteLedger(Path(folder), print), slow, args.sizes, args.rounds)
    with PostgresqlServer() as server:
        with psycopg.connect(server.url, password=server.password, autocommit=True) as db:
            db.execute(TABLE.format(blob="bytea"))
            with db.transaction(), db.cursor() as cursor:
                fill(cursor.executemany, "%s", fresh := keys())

            def execute(statement: str, values: tuple[Any, ...]) -> object:
                return db.execute(statement, values)

            slow = min(three(execute, "%s", fresh, args.messages) for _ in range(args.rounds))
        measure("postgresql", PostgresqlLedger(server.url, "bench", server.password), slow, args.sizes, args.rounds)


if __name__ == "__main__":
    main()
