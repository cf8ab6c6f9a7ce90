"""Messages of a real Kafka that cancel held ones by their name."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER
from sidecar.core.messages.instants import instant_text
from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

HOUR_MS = 3_600_000
STORES = pytest.mark.parametrize("store", ["changelog", "local"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _named(value: bytes, due_ms: int, name: bytes, partition: int = 0) -> Outgoing:
    return Outgoing(partition, value, None, [("tag", b"a"), (HEADER, b"%d" % due_ms), (NAME_HEADER, name)])


def _cancelling(*names: bytes, partition: int = 0) -> Outgoing:
    return Outgoing(partition, b"cancels", None, [("tag", b"a"), *((CANCEL_HEADER, name) for name in names)])


def _has(daemon: Daemon, **counts: int) -> bool:
    status = daemon.status()
    return all(status[name] == count for name, count in counts.items())


def _await(daemon: Daemon, **counts: int) -> None:
    daemon.wait_ready()
    wait_until(partial(_has, daemon, **counts), 30, f"the books have {counts}", detail=daemon.log_tail)


@STORES
def test_a_message_cancels_those_before_it_with_its_name(kafka: Broker, tmp_path: Path, store: str) -> None:
    """In the run in which they are read, and after a kill; a later one with the name is delivered."""
    (topic,) = new_topics(kafka, 1, 1)
    due_ms = _now_ms() + 12 * HOUR_MS
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        first = [_named(b"0", due_ms, b"x"), _named(b"1", due_ms, b"y"), _cancelling(b"x"), _cancelling(b"none")]
        produce(kafka.bootstrap, topic, [*first, _named(b"4", due_ms, b"x")])
        with Daemon(tmp_path, config) as daemon:
            _await(daemon, delayed=2, cancelled=1, filtered=2)
            daemon.kill9()
            produce(kafka.bootstrap, topic, [_cancelling(b"y", b"")])
            daemon.start()
            _await(daemon, delayed=1, cancelled=1)
            daemon.kill9()
            daemon.start()
            _await(daemon, delayed=1)
            arguments = ["delay", "release", "-c", str(daemon.config_path), f"{topic}:0:4", "--due"]
            released = CliRunner().invoke(main, [*arguments, instant_text(due_ms)])
            assert released.exit_code == 0, released.output
            wait_until(receiver.rows, 30, "it comes", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert [row[2] for row in receiver.rows()] == [4]


@STORES
def test_what_is_cancelled_never_comes_though_the_daemon_is_killed(kafka: Broker, tmp_path: Path, store: str) -> None:
    """Of thousands that fall due soon, each is delivered once, unless its name was cancelled in time."""
    (topic,) = new_topics(kafka, 1, 2)
    due_ms, count = _now_ms() + 30_000, 4_000
    numbers = [range(first, first + count // 2, 3) for first in (0, count // 2)]
    wanted = set(range(count)).difference(*numbers)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            held = [_named(b"%d" % number, due_ms, b"order %d" % number, number % 2) for number in range(count)]
            produce(kafka.bootstrap, topic, held)
            for of_round in numbers:
                cancelling = [_cancelling(b"order %d" % number, partition=number % 2) for number in of_round]
                daemon.wait_ready()
                produce(kafka.bootstrap, topic, cancelling)
                some = partial(_has_cancelled, daemon)
                wait_until(some, 20, "some are cancelled", detail=daemon.log_tail)
                daemon.kill9()
                daemon.start()
            _await(daemon, delayed=len(wanted))
            assert _now_ms() < due_ms, "the machine is too slow for this test"
            wait_until(lambda: len(receiver.rows()) >= len(wanted), 60, "all others come", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        rows = receiver.rows()
        assert sorted(str(row[-1]) for row in rows) == sorted(str(value_hash(b"%d" % number)) for number in wanted)


def _has_cancelled(daemon: Daemon) -> bool:
    return bool(daemon.status()["cancelled"])
