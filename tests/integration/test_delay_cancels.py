"""Messages of a real Kafka that cancel held ones by their name."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.core.messages.instants import instant_text
from tests.scenarios.delay_cancels import cancelling, named
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, produce
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver

HOUR_MS = 3_600_000
STORES = pytest.mark.parametrize("store", ["changelog", pytest.param("local", marks=pytest.mark.proof)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        first = [named(b"0", due_ms, b"x"), named(b"1", due_ms, b"y"), cancelling(b"x"), cancelling(b"none")]
        produce(kafka.bootstrap, topic, [*first, named(b"4", due_ms, b"x")])
        with Daemon(tmp_path, config) as daemon:
            _await(daemon, delayed=2, cancelled=1, filtered=2)
            daemon.kill9()
            produce(kafka.bootstrap, topic, [cancelling(b"y", b"")])
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
