"""Twins of messages through daemons with a ledger."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.scenarios.exactly_once import await_settled, configuration
from tests.support.audit import Finding, StrikingReceiver, Tally, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Fault, Receiver, Request, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.rocketmq_flow import PATIENCE_S, rest

PARTITIONS = 8


MEMBERS = 4


TWICE = 0.05


CLAIM_TIMEOUT = "60s"
"""Longer than a member is away, on a busy machine too."""


def ledger(database: Database, url: str, claim_timeout: str = CLAIM_TIMEOUT) -> dict[str, Any]:
    """The section of a ledger that sidecars share, by the order in the value."""
    password = {"password": database.password} if database.password else {}
    shared = {"url": url, "claim_timeout": claim_timeout, **password}
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
        poisoned: Whether the first copy of every fourth order that is sent twice is poison.
    """

    def __init__(self, count: int, seed: int = 1, *, poisoned: bool = False) -> None:
        chance = random.Random(seed)
        self.count = count
        places = [(float(order), order, 0) for order in range(count)]
        again = [order for order in range(count) if chance.random() < TWICE]
        places += [(order + chance.expovariate(1 / 200), order, 1) for order in again]
        self.twice = len(again)
        self.poison = set(again[::4]) if poisoned else set[int]()
        self.messages = [(chance.randrange(PARTITIONS), self._value(order, copy)) for _, order, copy in sorted(places)]
        self._order = {value_hash(self._value(order, copy)): order for _, order, copy in places}

    def _value(self, order: int, copy: int) -> bytes:
        return value(order, copy, **({"note": "poison"} if not copy and order in self.poison else {}))

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
    with ended_after(members):
        for member in members:
            member.start()
        yield members


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
        kill_one(receiver, (number + 1) * messages // (kills + 2), "lost" if number % 2 else "hang")


def kill_one(receiver: KillingReceiver, rows: int, how: Literal["hang", "lost"]) -> None:
    """Once so many rows have arrived, kill the daemon that sends the next request."""
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
