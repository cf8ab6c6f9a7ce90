"""Messages of a real Kafka that cancel held ones while the daemon is killed."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.delay_cancels import cancelling, named
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, produce
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("store", ["changelog", pytest.param("local", marks=pytest.mark.proof)])
def test_what_is_cancelled_never_comes_though_the_daemon_is_killed(kafka: Broker, tmp_path: Path, store: str) -> None:
    """Of thousands that fall due soon, each is delivered once, unless its name was cancelled in time."""
    (topic,) = new_topics(kafka, 1, 2)
    due_ms, count = _now_ms() + 30_000, 2_000
    numbers = [range(first, first + count // 2, 3) for first in (0, count // 2)]
    wanted = set(range(count)).difference(*numbers)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            held = [named(b"%d" % number, due_ms, b"order %d" % number, number % 2) for number in range(count)]
            produce(kafka.bootstrap, topic, held)
            for of_round in numbers:
                sent = [cancelling(b"order %d" % number, partition=number % 2) for number in of_round]
                daemon.wait_ready()
                produce(kafka.bootstrap, topic, sent)
                some = partial(_has_cancelled, daemon)
                wait_until(some, 20, "some are cancelled", detail=daemon.log_tail)
                daemon.kill9()
                daemon.start()
            daemon.wait_ready()
            left = partial(_holds, daemon, len(wanted))
            wait_until(left, 20, "all that is left is held", detail=daemon.log_tail)
            assert _now_ms() < due_ms, "the machine is too slow for this test"
            wait_until(lambda: len(receiver.rows()) >= len(wanted), 60, "all others come", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        rows = receiver.rows()
        assert sorted(str(row[-1]) for row in rows) == sorted(str(value_hash(b"%d" % number)) for number in wanted)


def _has_cancelled(daemon: Daemon) -> bool:
    return bool(daemon.status()["cancelled"])


def _holds(daemon: Daemon, count: int) -> bool:
    return bool(daemon.status()["delayed"] == count)
