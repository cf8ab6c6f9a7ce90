"""Delayed messages in a real PostgreSQL, of a real Kafka and RocketMQ: they move with their partition."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.scenarios.delayed import HEADER, delayed_kills
from tests.scenarios.delayed_members import takeovers, zombies
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.parked import parked_outage
from tests.scenarios.rocketmq_delayed import heirs, kills, moves
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.postgresql import Database, PostgresqlServer
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Node


def _due(value: bytes, due_ms: int) -> Outgoing:
    return Outgoing(0, value, None, [("tag", b"a"), (HEADER, b"%d" % due_ms)])


def _sent(value: bytes, after_ms: int) -> Outgoing:
    return _due(value, time.time_ns() // 1_000_000 + after_ms)


@pytest.mark.parametrize(
    "forgets", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["folder kept", "folder deleted"]
)
def test_kills_lose_and_repeat_nothing(kafka: Broker, postgresql: Database, tmp_path: Path, forgets: bool) -> None:
    """Killed 4 times while messages fall due, each arrives once, and none early, whatever becomes of the folder."""
    delay = postgresql.delay_section()
    found = delayed_kills(kafka, tmp_path, 24_000, 4, spread_s=20, store="postgresql", forgets=forgets, delay=delay)
    assert found.exact


def test_an_outage_of_one_group_holds_nothing_up(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """Its batches are parked in the database; after kills without the folder, each message has arrived once."""
    delay = postgresql.delay_section()
    assert parked_outage(kafka, tmp_path, 12_000, 2, store="postgresql", forgets=True, delay=delay).exact


@pytest.mark.proof
def test_members_take_over_what_others_held(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """Of two members with folders of their own, one is killed while messages fall due: each arrives once."""
    assert takeovers(kafka, tmp_path, 12_000, 2, delay=postgresql.delay_section()).exact


@pytest.mark.proof
def test_who_stands_still_appends_nothing_afterwards(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """A member that stood still for longer than its session, under requests of an operator, harms nothing."""
    assert zombies(kafka, tmp_path, 6_000, 1, delay=postgresql.delay_section()).exact


def test_a_database_that_is_down_is_waited_for(kafka: Broker, tmp_path: Path) -> None:
    """Meanwhile nothing is committed, and the health says why; afterwards each message arrives once."""
    (topic,) = new_topics(kafka, 1, 1)
    with PostgresqlServer() as server, Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay=server.delay_section(server.url))
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(b"before", 4_000)])
            wait_until(lambda: daemon.status()["delayed"] == 1, 30, "it is held", detail=daemon.log_tail)
            server.stop()
            produce(kafka.bootstrap, topic, [_sent(b"during %d" % number, 500) for number in range(300)])
            text = "does not take delayed messages"
            wait_until(lambda: text in str(daemon.status()["problems"]), 30, "it is told", detail=daemon.log_tail)
            assert receiver.rows() == []
            server.start()
            wait_until(lambda: len(receiver.rows()) == 301, 60, "all arrive", detail=daemon.log_tail)
            wait_until(lambda: not daemon.status()["problems"], 30, "no problem is left", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert len({row[-1] for row in receiver.rows()}) == 301


def test_tables_that_were_dropped_are_made_again(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """What they held is lost, and told; the daemon goes on without a restart."""
    (topic,) = new_topics(kafka, 1, 1)
    delay = postgresql.delay_section()
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay=delay)
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(b"lost", 3_600_000)])
            wait_until(lambda: daemon.status()["delayed"] == 1, 30, "it is held", detail=daemon.log_tail)
            url = delay["postgresql"]["url"]
            with Database(url, postgresql.password).connect() as db:
                db.execute("DROP TABLE sidecar_delay_store, sidecar_delay_partition, sidecar_delay_record")
            produce(kafka.bootstrap, topic, [_sent(b"held", 500)])
            wait_until(lambda: len(receiver.rows()) == 1, 60, "the new one is delivered", detail=daemon.log_tail)
            assert daemon.events("delay.changelog_lost")
            assert daemon.events("partition.reloaded")
            finish(kafka, daemon, 60)


def test_what_is_held_is_shown_without_a_daemon(kafka: Broker, postgresql: Database, tmp_path: Path) -> None:
    """After a kill, and without the state folder, the commands show what the next daemon would hold."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay=postgresql.delay_section())
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            due_ms = time.time_ns() // 1_000_000 + 3_600_000
            produce(kafka.bootstrap, topic, [_due(b"%d" % number, due_ms) for number in range(3)])
            wait_until(lambda: daemon.status()["delayed"] == 3, 30, "they are held", detail=daemon.log_tail)

            def run(command: str, *arguments: str) -> Result:
                return CliRunner().invoke(main, ["delay", command, "-c", str(daemon.config_path), *arguments])

            listed = run("list").stdout
            assert run("cancel", f"{topic}:0:1", "--due", str(due_ms)).exit_code == 0
            daemon.kill9()
            left = [line for line in listed.splitlines() if f"{topic}:0:1" not in line]
            done = run("list")
            assert "reading PostgreSQL at" in done.stderr
            assert done.stdout.splitlines() == left
            assert orjson.loads(run("count", "--json").stdout)["held"] == 2


@pytest.mark.proof
def test_kills_of_a_member_of_rocketmq(rocketmq: Node, postgresql: Database, tmp_path: Path) -> None:
    """Killed 3 times while messages of RocketMQ fall due, each arrives once, and none early."""
    assert kills(rocketmq, tmp_path, 8_000, 3, spread_s=10, delay=postgresql.delay_section()).exact


@pytest.mark.proof
@pytest.mark.parametrize("is_killed", [False, True], ids=["in order", "killed"])
def test_held_messages_move_with_their_queue(
    rocketmq: Node, postgresql: Database, tmp_path: Path, is_killed: bool
) -> None:
    """What each member held is delivered by whoever has the queue, once."""
    assert moves(rocketmq, tmp_path, 800, is_killed=is_killed, delay=postgresql.delay_section()).exact


@pytest.mark.proof
@pytest.mark.parametrize("stands_still", [False, True], ids=["killed", "stands still"])
def test_another_member_of_rocketmq_goes_on(
    rocketmq: Node, postgresql: Database, tmp_path: Path, stands_still: bool
) -> None:
    """One member is killed, and its folder deleted, or stands still: the other delivers what it held, once."""
    times = 1 if stands_still else 2  # a broker keeps a member that stands still for two minutes
    assert heirs(rocketmq, tmp_path, 4_000, times, postgresql.delay_section(), stands_still=stands_still).exact
