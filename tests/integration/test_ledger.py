"""What producers send twice, under new ids and wherever they like, told by a business key that sidecars share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.exactly_once import await_settled, configuration
from tests.scenarios.ledger import PARTITIONS, KillingReceiver, Orders, group_of, kill_one, ledger, twins, value
from tests.support.audit import StrikingReceiver
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce, unique
from tests.support.postgresql import Database, PostgresqlServer
from tests.support.process import Daemon, http_get, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.scene import await_rest


def test_of_what_is_sent_twice_one_is_delivered(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """Over four sidecars and their ledger, two of them killed, of each key one copy arrives, and none is lost."""
    found = twins(kafka, tmp_path, postgresql, 10_000, 2)
    assert found.exact
    assert found.times == 2


@pytest.mark.parametrize("end", [pytest.param("delivered", marks=pytest.mark.proof), "refused"])
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
            kill_one(receiver, 0, "lost")
            send(kafka, topic, orders.messages[half:])
            await_settled(kafka, members, 30)
        assert orders.tally(receiver).exact


def test_rocketmq_has_the_ledger_too(rocketmq: Node, postgresql: Database, group: str, tmp_path: Path) -> None:
    """Two sidecars on RocketMQ, told by a property: of each key one copy arrives, whatever queue it is in."""
    topic, orders = rocketmq.create_topic(unique("topic"), PARTITIONS), Orders(2_000)
    dedup = {**ledger(postgresql, postgresql.schema(), "3m"), "by": {"header": "order"}}
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
