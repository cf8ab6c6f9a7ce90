"""What producers send twice, under new ids and wherever they like, told by a business key that sidecars share."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.conftest import MakeTopic
from tests.integration.test_exactly_once import await_settled, configuration
from tests.support.audit import Finding, StrikingReceiver, Tally, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.postgresql import Database, PostgresqlServer
from tests.support.process import Daemon, http_get, wait_until
from tests.support.receiver import Fault, Receiver, Request, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.rocketmq_flow import PATIENCE_S, rest
from tests.support.scene import await_rest

PARTITIONS = 8
MEMBERS = 4
TWICE = 0.05
CLAIM_TIMEOUT = "60s"
"""Longer than a member is away, on a busy machine too."""


def ledger(database: Database, url: str) -> dict[str, Any]:
    """The section of a ledger that sidecars share, by the order in the value."""
    password = {"password": database.password} if database.password else {}
    shared = {"url": url, "claim_timeout": CLAIM_TIMEOUT, **password}
    return {"by": {"json": "$.order"}, "ledger": {"postgresql": shared}}


def value(order: int, copy: int, **more: str) -> bytes:
    """A message: its copies have one order and nothing else in common."""
    fields = "".join(f', "{name}": "{text}"' for name, text in more.items())
    return b'{"order": %d, "copy": %d%s}' % (order, copy, fields.encode())


class Orders:
    """Messages of which some are sent twice, somewhere else and somewhat later.

    Args:
        count: How many different ones.
        seed: Of which and where.
    """

    def __init__(self, count: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        self.count = count
        places = [(float(order), order, 0) for order in range(count)]
        again = [order for order in range(count) if chance.random() < TWICE]
        places += [(order + chance.expovariate(1 / 200), order, 1) for order in again]
        self.messages = [(chance.randrange(PARTITIONS), value(order, copy)) for _, order, copy in sorted(places)]
        self.twice = len(again)
        self._order = {value_hash(value(order, copy)): order for _, order, copy in places}

    def arrived(self, receiver: Receiver) -> Counter[int]:
        """How often each of them was stored, whichever copy."""
        return Counter(self._order[row[3]] for row in receiver.rows())

    def tally(self, receiver: Receiver) -> Tally:
        """Which of them did not come, or more than once."""
        return tally_counts(self.arrived(receiver), Counter(range(self.count)))


@contextmanager
def group_of(folder: Path, count: int, make: Callable[[str], Mapping[str, Any]]) -> Iterator[list[Daemon]]:
    """So many members, started; their names are in their requests."""
    members = []
    for name in (f"member-{number}-{unique('of')}" for number in range(count)):
        config = dict(make(name))
        config["sink"] = {"http": {**config["sink"]["http"], "headers": {"X-Member": name}}}
        members.append(Daemon(folder, config, name=name))
    try:
        for member in members:
            member.start()
        yield members
    finally:
        for member in members:
            if member.running:
                member.kill9()


class KillingReceiver(StrikingReceiver):
    """Kills who sent a request, before anything of it is stored or right after."""

    def __init__(self) -> None:
        super().__init__()
        self.members: list[Daemon] = []
        self.killed: list[Daemon] = []
        self.how: Literal["", "hang", "lost"] = ""

    def __enter__(self) -> KillingReceiver:
        return self

    def fault_for(self, request: Request) -> Any:
        """The sender is gone: nothing is stored (`hang`), or all is and nobody hears of it (`lost`)."""
        how, self.how = self.how, ""
        if how:
            (sender,) = [one for one in self.members if one.log_path.stem == request.headers["x-member"]]
            self.faults.insert(0, Fault(how, times=1))
            sender.kill9()
            self.killed.append(sender)
        return super().fault_for(request)


def twins(broker: Broker, folder: Path, database: Database, messages: int, kills: int) -> Finding:
    """5 % of the messages are sent twice; members of a group that share a ledger are killed between claim and answer.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        database: Of the ledger.
        messages: How many different ones.
        kills: How many, by turns before the rows are stored and after it.

    Raises:
        AssertionError: Something was lost or delivered twice, or the books do not balance.
    """
    begun, orders = time.monotonic(), Orders(messages)
    topic = broker.create_topic(unique("orders"), PARTITIONS)
    with KillingReceiver() as receiver:
        receiver.fail("slow", delay_ms=10)
        config = configuration(
            broker, [topic], receiver.url, "*", dedup=ledger(database, database.schema()),
            batch={"max_messages": max(100, messages // 200), "linger": "20ms"},
            sink={"http": {"url": receiver.url, "timeout": "2s"}},
        )  # fmt: skip
        with group_of(folder, MEMBERS, lambda name: config) as members:
            receiver.members = members
            for member in members:
                member.wait_ready()
            produce(
                broker.bootstrap, topic, (Outgoing(partition, value, None, []) for partition, value in orders.messages)
            )
            _kill_some(receiver, kills, messages)
            await_settled(broker, members, 60 + messages / 1_000)
            for member in members:
                member.stop()
        found = orders.tally(receiver)
    assert (receiver.stats["hang"], receiver.stats["lost"]) == ((kills + 1) // 2, kills // 2)
    notes = f"{orders.twice:,} sent twice, somewhere among the next thousand"
    name = f"5 % sent twice, {MEMBERS} sidecars, one ledger, `kill -9` between claim and answer"
    return Finding(name, kills, messages, found, time.monotonic() - begun, notes)


def _kill_some(receiver: KillingReceiver, kills: int, messages: int) -> None:
    """By turns before the rows of a request are stored and after it, at equal distances."""
    for number in range(kills):
        _kill_one(receiver, (number + 1) * messages // (kills + 2), "lost" if number % 2 else "hang")


def _kill_one(receiver: KillingReceiver, rows: int, how: Literal["hang", "lost"]) -> None:
    before = len(receiver.killed)
    wait_until(lambda: receiver.stats["rows"] >= rows, PATIENCE_S, f"{rows} rows at the receiver")
    receiver.how = how
    wait_until(lambda: len(receiver.killed) > before, PATIENCE_S, "a request comes, and its sender is killed")
    receiver.killed[-1].start()


def handed_twins(
    node: Node, source: Mapping[str, Any], folder: Path, database: Database, messages: int, kills: int
) -> Finding:
    """The same with clients that hand messages over one by one: what a killed member held comes to any other.

    Args:
        node: Takes the messages.
        source: The source section without topic and group.
        folder: For the daemons' files.
        database: Of the ledger.
        messages: How many different ones.
        kills: How many, by turns before the rows are stored and after it.

    Raises:
        AssertionError: Something was lost or delivered twice, or the books do not balance.
    """
    begun, orders = time.monotonic(), Orders(messages)
    topic, group = node.create_topic(unique("topic"), PARTITIONS), node.create_group(unique("group"))
    shared = ledger(database, database.schema())["ledger"]["postgresql"]
    with KillingReceiver() as receiver:
        receiver.fail("slow", delay_ms=10)
        config = {
            "source": {"rocketmq": {**source, "group": group, "topics": [topic]}},
            "dedup": {"by": {"header": "order"}, "ledger": {"postgresql": {**shared, "claim_timeout": "10m"}}},
            "batch": {"max_messages": max(20, messages // 200), "linger": "20ms"},
            "sink": {"http": {"url": receiver.url, "timeout": "2s"}},
        }
        with group_of(folder, 2, lambda name: config) as members:
            receiver.members = members
            for member in members:
                member.wait_ready(60)
            sent = threading.Thread(target=_send_handed, args=(node, topic, orders))
            sent.start()
            _kill_some(receiver, kills, messages)
            sent.join()
            wait_until(
                lambda: len(orders.arrived(receiver)) == orders.count, PATIENCE_S + messages / 500, "all has arrived",
                detail=lambda: (len(orders.arrived(receiver)), [member.status() for member in members]),
            )  # fmt: skip
            for member in members:
                rest(member)
                member.stop()
        found = orders.tally(receiver)
    assert (receiver.stats["hang"], receiver.stats["lost"]) == ((kills + 1) // 2, kills // 2)
    notes = f"{orders.twice:,} sent twice, somewhere among the next thousand"
    over = f"2 sidecars over `client: {source['client']}`"
    name = f"5 % sent twice, {over}, one ledger, `kill -9` between claim and answer"
    return Finding(name, kills, messages, found, time.monotonic() - begun, notes)


def _send_handed(node: Node, topic: str, orders: Orders) -> None:
    for at in range(0, len(orders.messages), 1_000):
        some = orders.messages[at : at + 1_000]
        messages = [Message(body, "paid", properties={"order": body.split(b",")[0].decode()}) for _, body in some]
        node.send(topic, messages, queues=PARTITIONS)


def test_of_what_is_sent_twice_one_is_delivered(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """Over four sidecars and their ledger, two of them killed, of each key one copy arrives, and none is lost."""
    found = twins(kafka, tmp_path, postgresql, 10_000, 2)
    assert found.exact
    assert found.times == 2


@pytest.mark.parametrize("end", ["delivered", "refused"])
def test_two_sidecars_race_for_one_key(
    kafka: Broker, postgresql: Database, make_topic: MakeTopic, tmp_path: Path, end: str
) -> None:
    """While one copy is at the receiver the other waits; it is dropped when that is delivered, and goes out if not."""
    topic = make_topic(2)
    go = threading.Event()
    with StrikingReceiver() as receiver:
        receiver.strike = partial(_wait_for, go)
        receiver.fail("refuse", status=400, marker="bad")
        config = configuration(
            kafka, [topic], receiver.url, "*", dedup=ledger(postgresql, postgresql.schema()),
            sink={"http": {"url": receiver.url, "timeout": "20s"}},  # one that is tried again meanwhile passes
        )  # fmt: skip
        with group_of(tmp_path, 2, lambda name: config) as members:
            wait_until(lambda: all(len(owned(member)) == 1 for member in members), 60, "each has a partition")
            mood = {"mood": "bad"} if end == "refused" else {}
            copies = [value(1, 0, **mood), value(1, 1)]
            produce(kafka.bootstrap, topic, [Outgoing(0, copies[0], None, [])])
            wait_until(lambda: receiver.strike is None, 20, "the first is sent")
            produce(kafka.bootstrap, topic, [Outgoing(1, copies[1], None, [])])
            wait_until(lambda: any(map(waits, members)), 20, "the second waits")
            assert not receiver.rows()
            go.set()
            await_settled(kafka, members, 30)
            books = Counter[str]()
            for member in members:
                status = member.status()
                books.update({name: status[name] for name in ("delivered", "duplicate", "dead_lettered")})
        (row,) = receiver.rows()
    delivered, other = (copies[1], "dead_lettered") if end == "refused" else (copies[0], "duplicate")
    assert (row[3], books) == (value_hash(delivered), Counter({"delivered": 1, other: 1}))


def _wait_for(event: threading.Event) -> None:
    event.wait(15)


def owned(member: Daemon) -> set[int]:
    """The partitions that it has."""
    code, _ = http_get(f"{member.admin_url}/readyz")
    return (
        {one["partition"] for one in member.status()["partitions"] if one["lag"] is not None} if code == 200 else set()
    )


def waits(member: Daemon) -> bool:
    """Whether a message of it waits for its twin."""
    return "sidecar_twins_waiting 1.0" in member.metrics()


def test_while_the_ledger_is_away_nothing_is_sent(kafka: Broker, make_topic: MakeTopic, tmp_path: Path) -> None:
    """When the database goes, messages wait, and the daemon says so; when it is back they go out, each key once."""
    topic, orders = make_topic(PARTITIONS), Orders(1_000)
    half = len(orders.messages) // 2
    with PostgresqlServer() as database, Receiver() as receiver:
        dedup = ledger(database, database.schema())
        config = configuration(kafka, [topic], receiver.url, "*", dedup=dedup)
        config["sink"] = {"http": {"url": receiver.url, "timeout": "2s"}}
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            send(kafka, topic, orders.messages[:half])
            await_settled(kafka, [daemon], 30)
            before = receiver.stats["rows"]
            database.stop()
            send(kafka, topic, orders.messages[half:])
            wait_until(lambda: daemon.events("ledger.failed"), 20, "it is noticed", detail=daemon.log_tail)
            wait_until(lambda: http_get(f"{daemon.admin_url}/readyz")[0] == 503, 10, "it is told")
            assert any("the ledger is unavailable" in problem for problem in daemon.status()["problems"])
            assert receiver.stats["rows"] == before
            database.start()
            await_settled(kafka, [daemon], 30)
            daemon.wait_ready()
            assert daemon.events("ledger.recovered")
        assert orders.tally(receiver).exact


def send(broker: Broker, topic: str, messages: Sequence[tuple[int, bytes]]) -> None:
    """Produce to the partitions that they name."""
    produce(broker.bootstrap, topic, [Outgoing(partition, value, None, []) for partition, value in messages])


def test_the_embedded_ledger_outlives_a_kill(kafka: Broker, make_topic: MakeTopic, tmp_path: Path) -> None:
    """With SQLite one sidecar tells twins over all partitions, those of an earlier life too."""
    topic, orders = make_topic(PARTITIONS), Orders(1_000)
    half = len(orders.messages) // 2
    with KillingReceiver() as receiver:
        dedup = {"by": {"json": "$.order"}, "ledger": {"sqlite": {}}}
        config = configuration(kafka, [topic], receiver.url, "*", dedup=dedup, batch={"max_messages": 50})
        with group_of(tmp_path, 1, lambda name: config) as members:
            receiver.members = members
            members[0].wait_ready()
            receiver.how = "hang"  # before anything comes: all of it may be delivered by the time we look
            send(kafka, topic, orders.messages[:half])
            wait_until(lambda: receiver.killed, 60, "a request comes, and its sender is killed")
            members[0].start()
            _kill_one(receiver, 0, "lost")
            send(kafka, topic, orders.messages[half:])
            await_settled(kafka, members, 30)
        assert orders.tally(receiver).exact


def test_rocketmq_has_the_ledger_too(rocketmq: Node, postgresql: Database, group: str, tmp_path: Path) -> None:
    """Two sidecars on RocketMQ, told by a property: of each key one copy arrives, whatever queue it is in."""
    topic, orders = rocketmq.create_topic(unique("topic"), PARTITIONS), Orders(2_000)
    dedup = {**ledger(postgresql, postgresql.schema()), "by": {"header": "order"}}
    with Receiver() as receiver:
        config = {
            "source": {"rocketmq": {"name_servers": rocketmq.name_server, "group": group, "topics": [topic]}},
            "dedup": dedup,
            "batch": {"max_messages": 50, "linger": "20ms"},
            "sink": {"http": {"url": receiver.url, "timeout": "2s"}},
        }
        with group_of(tmp_path, 2, lambda name: config) as members:
            for member in members:
                member.wait_ready(60)
            messages = [
                Message(body, tag="paid", properties={"order": body.split(b",")[0].decode()})
                for _, body in orders.messages
            ]
            rocketmq.send(topic, messages, queues=PARTITIONS)
            wait_until(
                lambda: len(orders.arrived(receiver)) == orders.count,
                60,
                "each has arrived",
                detail=members[0].log_tail,
            )
            statuses = [await_rest(member, 60) for member in members]
        assert orders.tally(receiver).exact
    assert sum(status["duplicate"] for status in statuses) == orders.twice
