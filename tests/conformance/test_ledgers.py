"""What every ledger does, checked on the one in memory, on SQLite and on a real PostgreSQL; nothing of their inside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sidecar import postgresql as connections
from sidecar.config.ledger import LedgerSettings as Settings
from sidecar.core.claims import DUPLICATE, HELD, ClaimEnd, ClaimState, Want, place_of
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError
from sidecar.ledger.interface import MISSED_MAX, Ledger, LedgerError
from sidecar.ledger.postgresql import PostgresqlLedger
from sidecar.ledger.sqlite import SqliteLedger
from sidecar.owner import Owner
from tests.support.memory_ledger import MemoryLedger
from tests.support.postgresql import Database
from tests.support.process import wait_until

HERE, THERE = place_of(TopicPartition("orders", 0)), place_of(TopicPartition("orders", 1))
LONG_MS, SHORT_MS = 600_000, 1
DAY_MS = 86_400_000
LONG_NAME = "Bestellungen für München; 注文 " * 8


class World:
    """One ledger, as many processes see it."""

    def __init__(self, open_: Callable[[], Ledger]) -> None:
        self._open = open_
        self._all: list[Ledger] = []
        self.ledger = self.another()

    def another(self) -> Ledger:
        self._all.append(self._open())
        return self._all[-1]

    def close(self) -> None:
        for ledger in self._all:
            ledger.close()


LEDGERS = ["memory", "sqlite", "postgresql"]


def test_every_ledger_of_the_settings_is_here() -> None:
    """Each ledger that a file may name is in this suite."""
    assert {"memory", *Settings.model_fields} == set(LEDGERS)


@pytest.fixture(params=LEDGERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Each ledger."""
    if request.param == "memory":
        memory = MemoryLedger(lambda: time.time() * 1000)
        made = World(lambda: memory)
    elif request.param == "sqlite":
        made = World(lambda: SqliteLedger(tmp_path, lambda damage: pytest.fail(str(damage))))
    else:
        database = request.getfixturevalue("postgresql")
        url = database.schema()
        made = World(lambda: PostgresqlLedger(url, "orders", database.password))
    yield made
    made.close()


def key(number: int) -> bytes:
    """A business key."""
    return number.to_bytes(16, "big")


def want(*numbers: int, place: int = HERE, first: int = 0, token: int = 0, was: int | None = None) -> Want:
    """Rows with these keys at consecutive offsets."""
    return Want(place, range(first, first + len(numbers)), b"".join(map(key, numbers)), token, was)


def mark(state: ClaimState, *numbers: int, place: int = HERE, first: int = 0) -> ClaimEnd:
    """The end of such rows."""
    return ClaimEnd(place, state, range(first, first + len(numbers)), b"".join(map(key, numbers)))


def test_the_first_who_claims_a_key_has_it(world: World) -> None:
    """A claim stands for who made it and for nobody else, in this process and in another."""
    assert world.ledger.claim([want(1, 2)], LONG_MS) == [[0, 0]]
    assert world.another().claim([want(2, 3, place=THERE)], LONG_MS) == [[HELD, 0]]
    assert world.another().claim([want(1, 2)], LONG_MS) == [[0, 0]]


def test_what_was_delivered_is_a_duplicate_ever_after(world: World) -> None:
    """After SUCCESS a twin is a duplicate, whatever is said later; its owner still has it."""
    world.ledger.claim([want(1)], SHORT_MS)
    world.ledger.settle([mark(ClaimState.SUCCESS, 1)])
    world.ledger.settle([mark(ClaimState.ERROR, 1)])
    time.sleep(0.01)
    assert world.ledger.claim([want(1)], SHORT_MS) == [[0]]
    assert world.another().claim([want(1, place=THERE)], LONG_MS) == [[DUPLICATE]]


def test_after_an_error_the_twin_may_have_it(world: World) -> None:
    """A key that ended with an error is free, and its first owner waits for the second then."""
    world.ledger.claim([want(1)], LONG_MS)
    world.ledger.settle([mark(ClaimState.ERROR, 1)])
    assert world.ledger.claim([want(1, place=THERE)], LONG_MS) == [[0]]
    assert world.ledger.claim([want(1)], LONG_MS) == [[HELD]]


def test_an_expired_claim_may_be_taken(world: World) -> None:
    """When its time is over a claim is free, and what its old owner says of it is not heard."""
    world.ledger.claim([want(1)], SHORT_MS)
    twin = want(1, place=THERE)
    wait_until(lambda: world.ledger.claim([twin], LONG_MS) == [[0]], 10, "the claim is over")
    world.ledger.settle([mark(ClaimState.SUCCESS, 1)])
    assert world.ledger.claim([want(1)], LONG_MS) == [[HELD]]


def test_a_claim_made_again_lasts_longer(world: World) -> None:
    """Who has a claim renews it by claiming once more."""
    world.ledger.claim([want(1)], SHORT_MS)
    world.ledger.claim([want(1)], LONG_MS)
    time.sleep(0.01)
    assert world.ledger.claim([want(1, place=THERE)], LONG_MS) == [[HELD]]


def test_what_is_ours_keeps_its_token(world: World) -> None:
    """Rows keep the token they were claimed under; they change it only together with who knows it."""
    world.ledger.claim([want(1, 2, token=5)], LONG_MS)
    assert world.ledger.claim([want(1, 2, 3, token=6)], LONG_MS) == [[5, 5, 6]]
    assert world.ledger.claim([want(1, token=7, was=5), want(2, first=1, token=8, was=4)], LONG_MS) == [[7], [5]]
    world.ledger.settle([mark(ClaimState.SUCCESS, 1)])
    assert world.ledger.claim([want(1, token=9, was=7)], LONG_MS) == [[9]]
    assert world.ledger.claim([want(1, place=THERE)], LONG_MS) == [[DUPLICATE]]


def test_twins_in_one_request(world: World) -> None:
    """Of two rows with one key the first has it, unless the second had it before, even when that is over."""
    assert world.ledger.claim([want(1, 1), want(1, place=THERE)], LONG_MS) == [[0, HELD], [HELD]]
    world.ledger.claim([want(2, first=11)], SHORT_MS)
    time.sleep(0.01)
    assert world.ledger.claim([want(2, 2, first=10)], LONG_MS) == [[HELD, 0]]


def test_in_order_nothing_is_claimed_behind_what_is_held(world: World) -> None:
    """Where order is asked, the rows behind a held one stay free for others; duplicates are told all the same."""
    world.ledger.claim([want(2, 9, place=THERE)], LONG_MS)
    world.ledger.settle([mark(ClaimState.SUCCESS, 9, place=THERE, first=1)])
    ordered = want(1, 2, 3, 9)._replace(ordered=True)
    assert world.ledger.claim([ordered], LONG_MS) == [[0, HELD, HELD, DUPLICATE]]
    assert world.another().claim([want(3, place=THERE, first=7)], LONG_MS) == [[0]]


def test_many_rows_at_once(world: World) -> None:
    """A batch of any size is one claim."""
    rows = range(12_345)
    assert world.ledger.claim([want(*rows)], LONG_MS) == [[0] * len(rows)]
    world.ledger.settle([mark(ClaimState.SUCCESS, *rows)])
    assert world.another().claim([want(*rows, place=THERE)], LONG_MS) == [[DUPLICATE] * len(rows)]


def test_nothing_at_all(world: World) -> None:
    """Nothing to claim and nothing to settle is no mistake."""
    assert world.ledger.claim([want()], LONG_MS) == [[]]
    world.ledger.settle([])
    world.ledger.settle([mark(ClaimState.SUCCESS)])
    assert world.ledger.prune(DAY_MS, 1_000, 100) == 0


def test_the_oldest_go_by_number(world: World) -> None:
    """Beyond the number that is kept the oldest are forgotten, a few at a time, but for claims that run."""
    for number in range(10):
        world.ledger.claim([want(number, first=number)], LONG_MS)
        world.ledger.settle([mark(ClaimState.SUCCESS, number, first=number)] if number else [])
    gone = [world.ledger.prune(DAY_MS, 4, 3) for _ in range(4)]
    assert (sum(gone), max(gone) <= 3) == (5, True)
    assert world.ledger.claim([want(0, 5, 6, place=THERE)], LONG_MS) == [[HELD, 0, DUPLICATE]]


def test_the_oldest_go_by_age(world: World) -> None:
    """What was claimed longer ago than is kept is forgotten."""
    world.ledger.claim([want(1)], SHORT_MS)
    world.ledger.settle([mark(ClaimState.SUCCESS, 1)])
    assert world.ledger.prune(DAY_MS, 1_000, 100) == 0
    wait_until(lambda: world.ledger.prune(1, 1_000, 100) == 1, 10, "it is old")
    assert world.ledger.claim([want(1, place=THERE)], LONG_MS) == [[0]]


@pytest.mark.parametrize("world", ["memory", "postgresql"], indirect=True)
def test_what_one_member_misses_another_gives(world: World) -> None:
    """Each hears what others of its group miss, and finds once what they gave; what nobody misses is not kept."""
    here, there = world.ledger, world.another()
    a, b, c = map(key, (1, 2, 3))
    assert here.exchange("g", [a, b], {}) == ({}, [])
    assert sorted(there.exchange("g", [c], {}).missed) == [a, b]
    assert there.exchange("other group", [], {a: b"theirs"}) == ({}, [])
    there.exchange("g", [c], {a: b"\0message", c: b"nobody else's"})
    assert here.exchange("g", [a, b], {}) == ({a: b"\0message"}, [])
    assert here.exchange("g", [a, b], {b: b""}) == ({}, [])
    assert here.exchange("g", [a, b], {}).found == {b: b""}
    assert there.exchange("g", [], {}).missed == [a]


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_two_who_have_what_the_other_misses(world: World) -> None:
    """Both look and give at the same time, again and again: neither is refused, and each finds what it misses."""
    mine, yours = ([key(number) for number in range(first, 200, 2)] for first in (0, 1))

    def look(ledger: Ledger, missed: list[bytes], had: list[bytes]) -> set[bytes]:
        return {one for _ in range(30) for one in ledger.exchange("g", missed, dict.fromkeys(had, b"")).found}

    here = partial(look, world.ledger, mine, yours)
    there = partial(look, world.another(), yours, mine)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(here), pool.submit(there)
        found = one.result() | here(), two.result() | there()
    assert (found[0] | here(), found[1]) == (set(mine), set(yours))


def test_of_many_some_are_looked_for(world: World) -> None:
    """Nothing is missed where nobody else is, and no answer is longer than is said."""
    numbers = [key(number) for number in range(MISSED_MAX + 10)]
    assert world.ledger.exchange("g", numbers, {}) == ({}, [])
    assert len(world.another().exchange("g", [], {}).missed) in (0, MISSED_MAX)


@pytest.mark.parametrize("world", ["memory", "postgresql"], indirect=True)
def test_two_who_race_for_the_same_keys(world: World) -> None:
    """Of many keys that two processes claim at the same time each goes to one of them."""
    verdicts: dict[int, list[list[int]]] = {}
    numbers = list(range(400))

    def race(place: int, ledger: Ledger) -> None:
        chunks = [numbers[at : at + 20] for at in range(0, len(numbers), 20)]
        verdicts[place] = [ledger.claim([want(*some, place=place, first=some[0])], LONG_MS)[0] for some in chunks]

    threads = [threading.Thread(target=race, args=(place, world.another())) for place in (HERE, THERE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours, theirs = (list(chain.from_iterable(verdicts[place])) for place in (HERE, THERE))
    assert [sorted(pair) for pair in zip(ours, theirs, strict=True)] == [[HELD, 0]] * len(numbers)


def test_running_claims_hold_up_no_pruning(world: World) -> None:
    """However many at the head are kept, what is old behind them is forgotten."""
    world.ledger.claim([want(*range(20))], LONG_MS)
    world.ledger.claim([want(100, place=THERE)], LONG_MS)
    world.ledger.settle([mark(ClaimState.SUCCESS, 100, place=THERE)])
    wait_until(lambda: world.ledger.prune(1, 1_000, 20) == 1, 10, "what is settled is forgotten")
    assert world.ledger.claim([want(*range(20))], LONG_MS) == [[0] * 20]
    assert world.ledger.claim([want(100)], LONG_MS) == [[0]]


@pytest.mark.parametrize(
    ("group", "other"),
    [
        ("orders", "payments"),
        ("orders.eu", "Orders-EU"),
        ("o\"r'd;e%r %s {} \\ --", "注文"),
        (f"{LONG_NAME}1", f"{LONG_NAME}2"),
    ],
)
def test_no_group_forgets_what_another_claimed(postgresql: Database, group: str, other: str) -> None:
    """Of two groups in one database, however they are called, what one forgets the other still knows."""
    database = Database(postgresql.schema(), postgresql.password)
    ours, theirs = (PostgresqlLedger(database.url, name, database.password) for name in (group, other))
    gone = []
    with closing(ours), closing(theirs), database.connect() as db:
        for ledger, numbers in ((ours, range(5)), (theirs, range(5, 10))):
            ledger.claim([want(*numbers)], LONG_MS)
            ledger.settle([mark(ClaimState.SUCCESS, *numbers)])
        gone.append(theirs.prune(DAY_MS, 2, 100))
        time.sleep(0.01)
        gone.append(theirs.prune(1, 1_000, 100))
        assert (gone, ours.claim([want(*range(5), place=THERE)], LONG_MS)) == ([3, 2], [[DUPLICATE] * 5])
        indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = current_schema() GROUP BY tablename"
        assert sorted(db.execute(indexes).fetchall()) == [(1,), *[(2,)] * 3]


def test_a_group_of_the_same_name_on_another_cluster_is_refused(postgresql: Database) -> None:
    """It claims nothing; a process that does not know its cluster is not refused."""
    url = postgresql.schema()
    here, there, unknown = (
        PostgresqlLedger(url, "orders", postgresql.password, partial(Owner, "orders", cluster))
        for cluster in ("c1", "c2", "")
    )
    with closing(here), closing(there), closing(unknown):
        assert unknown.claim([want(1)], LONG_MS) == [[0]]
        assert here.claim([want(2)], LONG_MS) == [[0]]
        with pytest.raises(ConfigError, match="of the cluster c1, not to consumer group 'orders' of the cluster c2"):
            there.claim([want(3)], LONG_MS)
        assert unknown.claim([want(3, place=THERE)], LONG_MS) == [[0]]


def test_tables_that_somebody_else_made(postgresql: Database) -> None:
    """Who may not create tables uses those that are there; for another group, which has none, he is refused."""
    url = postgresql.schema()
    maker, *users = (
        PostgresqlLedger(f"{url}{role}", group, postgresql.password)
        for role, group in (("", "orders"), ("%20-crole%3Dpg_monitor", "orders"), ("%20-crole%3Dpg_monitor", "others"))
    )
    with closing(maker), closing(users[0]), closing(users[1]), Database(url, postgresql.password).connect() as db:
        maker.claim([want(1)], LONG_MS)
        ((schema,),) = db.execute("SELECT current_schema()").fetchall()
        db.execute(f"GRANT USAGE ON SCHEMA {schema} TO pg_monitor")
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO pg_monitor")
        assert users[0].claim([want(1, 2, place=THERE)], LONG_MS) == [[HELD, 0]]
        with pytest.raises(LedgerError, match="permission denied for schema"):
            users[1].claim([want(1)], LONG_MS)


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_who_stands_still_in_a_claim_lets_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stops between two statements, as when its host is lost, holds its keys for some seconds."""
    settings = [one.replace("session_timeout = 10000", "session_timeout = 300") for one in connections.SETTINGS]
    monkeypatch.setattr(connections, "SETTINGS", settings)
    world.ledger.claim([want(1)], SHORT_MS)
    stands, goes_on, write = threading.Event(), threading.Event(), PostgresqlLedger._write

    def stand(*args: Any) -> bool:
        stands.set()
        goes_on.wait(60)
        return write(*args)

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as stopped:
        stopped.setattr(PostgresqlLedger, "_write", stand)
        lost = pool.submit(world.ledger.claim, [want(1)], SHORT_MS)
        assert stands.wait(30)
        stopped.undo()
        assert world.another().claim([want(1)], SHORT_MS) == [[0]]
        goes_on.set()
        with pytest.raises(LedgerError, match="idle-in-transaction"):
            lost.result()
