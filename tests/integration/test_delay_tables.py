"""The tables of delayed messages in a real PostgreSQL, with nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.postgresql.appender import PostgresqlChangelog
from sidecar.delay.changelog.postgresql.build import UnclaimedTables
from sidecar.delay.changelog.postgresql.restorer import READ, PostgresqlRestorer
from sidecar.delay.changelog.postgresql.tables import Tables
from sidecar.delay.changelog.reach import REACH_KEY
from sidecar.delay.changelog.records import claim
from sidecar.errors import UnavailableError
from tests.support.kafka import unique
from tests.support.postgresql import Database, PostgresqlServer
from tests.support.process import wait_until

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 0, "broker-b")
END = 1 << 62


@dataclass
class Process:
    """What one process does with the tables."""

    url: str
    password: str
    ends: list[tuple[str, int]] = field(default_factory=list)
    """What was appended, and the offset that it got."""

    def __post_init__(self) -> None:
        self.restorer = PostgresqlRestorer(Tables(self.url, self.password, "group"))
        self.changelog = PostgresqlChangelog(Tables(self.url, self.password, "group"), self.restorer.claim_of)

    def claim(self, tp: TopicPartition = TP) -> int:
        """Claim a partition; return its epoch."""
        self.restorer.open(tp)
        return self.restorer.append(tp, [claim()]) + 1

    def append(self, *entries: ChangelogEntry, name: str = "", tp: TopicPartition = TP) -> None:
        """Append; the end is noted under a name."""
        self.changelog.append(tp, entries, lambda offset: self.ends.append((name, offset)))

    def serve(self, count: int) -> None:
        """Wait until so many calls have ended."""
        until_s = time.monotonic() + 20
        while len(self.ends) < count and time.monotonic() < until_s:
            self.changelog.serve(0.1)
        assert len(self.ends) == count

    def read(self, tp: TopicPartition = TP, begin: int = 0, end: int = END) -> list[ChangelogRecord]:
        """All records."""
        return [record for records in self.restorer.read(tp, end, begin) for record in records]

    def close(self) -> None:
        self.changelog.close()
        self.restorer.close()


@pytest.fixture
def start(postgresql: Database) -> Iterator[Callable[[], Process]]:
    """Starts processes that share tables of their own."""
    url, processes = postgresql.schema(), []

    def begin() -> Process:
        processes.append(Process(url, postgresql.password))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()


def test_a_later_value_replaces_an_earlier_one(start: Callable[[], Process]) -> None:
    """A key has one row, at the place of its last value, and none after a record without a value."""
    process = start()
    first = process.claim()
    process.append(ChangelogEntry(b"a", b"1"), ChangelogEntry(b"b", b"2"), ChangelogEntry(b"a", b"3"))
    process.append(ChangelogEntry(b"c", b"4"), ChangelogEntry(b"b", None))
    process.append(ChangelogEntry(b"b", b"5"), ChangelogEntry(b"c", None))
    process.serve(3)
    assert process.read() == [ChangelogRecord(first + 2, b"a", b"3"), ChangelogRecord(first + 5, b"b", b"5")]


def test_ends_come_in_order_with_their_offsets(start: Callable[[], Process]) -> None:
    """Each call ends once, in order, with the offset of its last entry; a claim takes the offset before its epoch."""
    process = start()
    first = process.claim()
    for number in range(500):
        process.append(
            ChangelogEntry(b"%d" % number, b"x" * 100), ChangelogEntry(b"%d'" % number, b""), name=str(number)
        )
    process.serve(500)
    assert process.ends == [(str(number), first + 2 * number + 1) for number in range(500)]
    assert process.claim() == first + 1_001
    assert [record.offset for record in process.read()] == list(range(first, first + 1_000))


def test_nothing_is_appended_after_a_later_claim(start: Callable[[], Process]) -> None:
    """An earlier owner is refused, and told; what it appended before the claim stays."""
    zombie, owner = start(), start()
    zombie.claim()
    zombie.append(ChangelogEntry(b"a", b"1"))
    zombie.serve(1)
    owner.claim()
    zombie.append(ChangelogEntry(b"a", None), ChangelogEntry(b"b", b"2"))
    zombie.serve(2)
    assert zombie.ends[-1][1] == LOST
    assert [record.key for record in owner.read()] == [b"a"]


def test_what_waited_under_an_earlier_claim_is_refused(start: Callable[[], Process]) -> None:
    """A process that takes a partition over again appends nothing that its earlier ownership left in the queue."""
    process = start()
    process.claim()
    process.changelog._changed.acquire()  # the thread stands still
    try:
        process.append(ChangelogEntry(b"a", b"1"))
        process.claim()
    finally:
        process.changelog._changed.release()
    process.append(ChangelogEntry(b"b", b"2"))
    process.serve(2)
    assert process.ends[0][1] == LOST
    assert [record.key for record in process.read()] == [b"b"]


def test_partitions_do_not_meet(start: Callable[[], Process]) -> None:
    """Queues with the same number at two brokers have claims, records and stores of their own."""
    process = start()
    process.claim()
    process.claim(OTHER)
    assert process.restorer.open(TP) != process.restorer.open(OTHER)
    process.append(ChangelogEntry(b"a", b"1"))
    process.append(ChangelogEntry(b"a", b"2"), tp=OTHER)
    process.serve(2)
    start().claim(OTHER)
    process.append(ChangelogEntry(b"b", b"3"))
    process.serve(3)
    assert process.ends[-1][1] != LOST
    assert [record.value for record in process.read()] == [b"1", b"3"]
    assert [record.value for record in process.read(OTHER)] == [b"2"]


def test_records_are_read_in_a_range(start: Callable[[], Process]) -> None:
    """A read begins and ends at offsets; large values are read a few at a time."""
    process = start()
    first = process.claim()
    process.append(*(ChangelogEntry(b"%d" % number, bytes(3 << 20)) for number in range(6)))
    process.append(*(ChangelogEntry(b"s%d" % number, b"") for number in range(3_000)))
    process.serve(2)
    assert [record.offset for record in process.read(TP, first + 2, first + 5)] == [first + 2, first + 3, first + 4]
    batches = [len(records) for records in process.restorer.read(TP, END)]
    assert sum(batches) == 3_006
    assert max(batches) <= 1_000


def test_a_value_is_found_by_its_key(start: Callable[[], Process]) -> None:
    """A key is found without reading the rest."""
    process = start()
    process.claim()
    assert process.restorer.find(TP, REACH_KEY) is None
    process.append(ChangelogEntry(REACH_KEY, b"\0far"))
    process.serve(1)
    assert process.restorer.find(TP, REACH_KEY) == b"\0far"


def test_a_partition_is_read_without_a_claim(start: Callable[[], Process], postgresql: Database) -> None:
    """Who only looks sees what is appended meanwhile, too, and the owner stays the owner."""
    process = start()
    process.claim()
    process.append(ChangelogEntry(b"a", b"1"))
    process.serve(1)
    with closing(UnclaimedTables(Tables(process.url, postgresql.password, "group"), 0)) as looking:
        (unclaimed,) = looking.find_all(lambda tp: tp == TP).values()
        process.append(ChangelogEntry(b"b", b"2"))
        process.serve(2)
        assert [record.key for records in looking.read(TP, unclaimed.end) for record in records] == [b"a", b"b"]
    assert process.ends[-1][1] != LOST


def test_a_server_that_comes_back_gets_what_waited() -> None:
    """While the server is down nothing ends, and the reason is told; later all is there once, in order."""
    with PostgresqlServer() as server:
        process = Process(server.url, server.password)
        with closing(process):
            first = process.claim()
            process.append(ChangelogEntry(b"a", b"1"), name="before")
            process.serve(1)
            server.stop()
            process.append(ChangelogEntry(b"b", b"2"), name="b")
            process.append(ChangelogEntry(b"c", b"3"), name="c")
            wait_until(lambda: "does not take delayed messages" in process.changelog.waiting, 20, "the reason is told")
            with pytest.raises(UnavailableError, match=r"PostgreSQL at 127\.0\.0\.1"):
                process.claim()
            server.start()
            process.serve(3)
            assert process.changelog.waiting == ""
            assert [name for name, _ in process.ends] == ["before", "b", "c"]
            values = [(record.offset - first, record.key, record.value) for record in process.read()]
            assert values == [(0, b"a", b"1"), (1, b"b", b"2"), (2, b"c", b"3")]


def test_dropped_tables_are_made_again(start: Callable[[], Process], postgresql: Database) -> None:
    """An owner whose tables are gone is told so, and a new claim has another store."""
    process = start()
    process.claim()
    store = process.restorer.open(TP)
    with process.restorer._tables.lent() as db:
        db.execute("DROP TABLE sidecar_delay_store, sidecar_delay_partition, sidecar_delay_record")
    process.append(ChangelogEntry(b"a", b"1"))
    process.serve(1)
    assert process.ends[0][1] == LOST
    process.claim()
    assert process.restorer.open(TP) != store


def test_a_read_follows_the_index(start: Callable[[], Process]) -> None:
    """Nothing is sorted: each batch would cost as much as all that is left."""
    process = start()
    process.claim()
    process.append(*(ChangelogEntry(b"%d" % number, b"") for number in range(3_000)))
    process.serve(1)
    with process.restorer._tables.lent() as db:
        plan = str(db.execute(f"EXPLAIN {READ}", (1, 0, END, 1_000)).fetchall())
    assert "Index Scan using sidecar_delay_record_by_seq" in plan
    assert "Sort" not in plan


def test_the_rights_on_the_tables_are_enough(start: Callable[[], Process], postgresql: Database) -> None:
    """A user who may not make tables is told so, and works with those that somebody else has made."""
    other, url = unique("user").replace("-", "_"), start().url
    schema = url.rsplit("%3D", 1)[1]
    limited = re.sub(r"//[^@/]*@", f"//{other}@", url)
    with postgresql.connect() as db:
        db.execute(f"CREATE ROLE {other} LOGIN PASSWORD 'limited'")
        db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {other}")
        with closing(Process(limited, "limited")) as process:
            with pytest.raises(UnavailableError, match="permission denied for schema"):
                process.claim()
            with closing(Process(url, postgresql.password)) as owner:
                owner.claim()
            db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {other}")
            process.claim()
            process.append(ChangelogEntry(b"a", b"1"), ChangelogEntry(b"b", b"2"))
            process.append(ChangelogEntry(b"a", None), ChangelogEntry(b"b", b"3"))
            process.serve(2)
            assert [record.value for record in process.read()] == [b"3"]
