"""Appending to a changelog in PostgreSQL: what is in a transaction, and what counts. The database is a fake."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry
from sidecar.delay.changelog.postgresql import appender
from sidecar.delay.changelog.postgresql.appender import CHECK, REMOVE, WAITING_S, PostgresqlChangelog
from sidecar.delay.changelog.postgresql.restorer import EpochClaim
from tests.support.process import wait_until

TP, OTHER = TopicPartition("orders", 3), TopicPartition("orders", 4)
PLACES = {TP: EpochClaim(1, 5), OTHER: EpochClaim(2, 5)}
A, B, C = ChangelogEntry(b"a", b"1"), ChangelogEntry(b"b", b"2"), ChangelogEntry(b"c", b"3")


class Database:
    """Tables with two partitions; it stops before each transaction until it is let go."""

    where = "PostgreSQL at db"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.next = {1: 0, 2: 100}
        self.rows: dict[tuple[int, bytes], tuple[bytes, int]] = {}
        self.transactions: list[list[str]] = []
        self.epoch = 5
        self.fails = ""
        self.connections = self.closed = 0

    def connect(self) -> Database:
        """A connection."""
        if self.fails:
            raise psycopg.OperationalError(self.fails)
        self.connections += 1
        return self

    def close(self) -> None:
        """Count."""
        self.closed += 1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self.go.wait(10)
        if self.fails:
            raise psycopg.OperationalError(self.fails)
        self.transactions.append([])
        yield

    def execute(self, sql: str, values: Sequence[Any]) -> Database:
        """One of the statements."""
        place = values[1] if sql == CHECK else values[0]
        self.transactions[-1].append(f"{'check' if sql == CHECK else 'remove' if sql == REMOVE else 'write'} {place}")
        if sql == CHECK:
            self.found = None
            if values[2] == self.epoch:
                self.next[place] += values[0]
                self.found = (self.next[place],)
        elif sql == REMOVE:
            for key in values[1]:
                self.rows.pop((place, key), None)
        else:
            self.rows |= {(place, key): (value, seq) for key, value, seq in zip(*values[1:], strict=True)}
        return self

    def fetchone(self) -> tuple[int] | None:
        """The row of a check."""
        return self.found


class Scene:
    """A changelog and what was acknowledged."""

    def __init__(self) -> None:
        self.database, self.now_s = Database(), 100.0
        self.changelog = PostgresqlChangelog(cast(Any, self.database), PLACES.__getitem__, lambda: self.now_s)
        self.done: list[int] = []

    def append(self, *entries: ChangelogEntry, tp: TopicPartition = TP) -> None:
        """Append these in one call."""
        self.changelog.append(tp, entries, self.done.append)

    def served(self, count: int) -> list[int]:
        """What was acknowledged, once it is so much."""

        def are_there() -> bool:
            self.changelog.serve(0.5)
            return len(self.done) >= count

        wait_until(are_there, 10, f"{count} are acknowledged")
        return self.done


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A database that is there."""
    monkeypatch.setattr(appender, "RETRY_S", 0.005)
    scene = Scene()
    yield scene
    scene.database.go.set()
    scene.changelog.close()
    assert scene.database.closed == scene.database.connections


def test_a_call_ends_at_the_place_of_its_last_entry(scene: Scene) -> None:
    """Places count up by partition; one without a value removes."""
    scene.append(A, B)
    scene.append(C, tp=OTHER)
    assert sorted(scene.served(2)) == [1, 100]
    scene.append(ChangelogEntry(b"a", None), C)
    assert scene.served(3)[-1] == 3
    assert scene.database.rows == {(1, b"b"): (b"2", 1), (1, b"c"): (b"3", 3), (2, b"c"): (b"3", 100)}
    assert scene.database.connections == 1


def test_a_transaction_has_what_gathered_during_the_one_before(scene: Scene) -> None:
    """Of two values of a key the last one is written; partitions are in their order, so no two processes lock up."""
    scene.database.go.clear()
    scene.append(A, tp=OTHER)
    wait_until(lambda: scene.database.connections, 10, "the first one is under way")
    scene.append(B, tp=OTHER)
    scene.append(A, ChangelogEntry(b"a", b"9"))
    scene.append(ChangelogEntry(b"b", b"7"), ChangelogEntry(b"b", None))
    scene.database.go.set()
    assert scene.served(4) == [100, 101, 1, 3]
    assert scene.database.transactions == [
        ["check 2", "write 2"], ["check 1", "remove 1", "write 1", "check 2", "write 2"]
    ]  # fmt: skip
    assert scene.database.rows[1, b"a"] == (b"9", 1)
    assert (1, b"b") not in scene.database.rows


@pytest.mark.parametrize(("bound", "most"), [("ENTRIES_MAX", 2), ("BYTES_MAX", 4)])
def test_a_transaction_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    """By entries and bytes; a call that exceeds them alone is one of its own."""
    monkeypatch.setattr(appender, bound, most)
    scene.database.go.clear()
    for entries in ([A, B, C], [A], [B], [C]):
        scene.append(*entries)
    scene.database.go.set()
    assert scene.served(4) == [2, 3, 4, 5]
    assert scene.database.transactions == [["check 1", "write 1"]] * 3


def test_what_an_owner_appends_who_was_replaced_is_lost(scene: Scene) -> None:
    """Nothing of it is written; other partitions go on."""
    scene.database.epoch = 6
    scene.append(A)
    assert scene.served(1) == [LOST]
    assert scene.database.rows == {}


def test_what_fails_is_tried_again(scene: Scene) -> None:
    """On another connection; the reason is told meanwhile, at once."""
    scene.append(A)
    scene.served(1)
    scene.database.fails = "the server is shutting down"
    scene.append(B)
    wait_until(lambda: scene.changelog.waiting, 10, "it is told")
    assert scene.changelog.waiting == ("PostgreSQL at db does not take delayed messages: the server is shutting down")
    scene.database.fails = ""
    assert scene.served(2) == [0, 1]
    assert scene.changelog.waiting == ""
    assert scene.database.connections == 2


def test_silence_is_told_once_it_lasts(scene: Scene) -> None:
    """Counted from the first entry that waits."""
    scene.now_s += 100
    scene.database.go.clear()
    scene.append(A)
    scene.now_s += WAITING_S
    scene.append(B)
    assert scene.changelog.waiting == ""
    scene.now_s += 0.1
    assert scene.changelog.waiting == "PostgreSQL at db does not take delayed messages: no answer"
    scene.database.go.set()
    scene.served(2)
    scene.now_s += 100
    assert scene.changelog.waiting == ""


def test_what_was_appended_last_is_written_at_the_end(scene: Scene) -> None:
    """Unless the database is away; nothing is appended after it."""
    scene.append(A)
    scene.changelog.close()
    scene.append(B)
    assert list(scene.database.rows) == [(1, b"a")]
    scene.changelog.serve()
    assert scene.done == [0]


def test_an_end_waits_for_no_database_that_is_away(scene: Scene) -> None:
    """The next owner reads what was not written from the source."""
    scene.database.fails = "no route"
    scene.append(A)
    wait_until(lambda: scene.changelog.waiting, 10, "it is told")
    scene.changelog.close()
    assert not cast(Any, scene.changelog._thread).is_alive()
    assert scene.done == []
