"""Delayed messages in a changelog when the daemon is restarted on its host: the local files are used again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.local_notes import places_in
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver

MESSAGES, PARTITIONS = 30_000, 2


def kill(daemon: Daemon) -> None:
    """End it at once."""
    daemon.kill9()


def stop(daemon: Daemon) -> None:
    """End it in order."""
    daemon.stop()


def lose(daemon: Daemon) -> None:
    """End it, and lose its copy."""
    daemon.kill9()
    shutil.rmtree(daemon.state_dir / "delay-cache")


def _held(numbers: range, due_ms: int) -> list[Outgoing]:
    headers = [("tag", b"a"), (HEADER, b"%d" % due_ms)]
    return [Outgoing(number % PARTITIONS, b"%d" % number, None, headers) for number in numbers]


def _restored(daemon: Daemon) -> tuple[int, int, list[bool]]:
    """The last start: messages that are held, records that were read, and whether the local files were used."""
    events: list[dict[str, Any]] = daemon.events("delay.restored")[-PARTITIONS:]
    columns = [[event[name] for event in events] for name in ("count", "read", "local")]
    return sum(columns[0]), sum(columns[1]), columns[2]


@pytest.mark.parametrize(
    ("ends", "due_ms", "is_local"),
    [pytest.param([kill, stop, kill], 45_000, True, marks=pytest.mark.proof), ([lose], 20_000, False)],
)
def test_a_restart_reads_the_end_of_the_changelog(
    kafka: Broker, tmp_path: Path, ends: list[Callable[[Daemon], None]], due_ms: int, is_local: bool
) -> None:
    """The rest is in the local files; without them all is read. Nothing is lost, and nothing comes twice."""
    (topic,) = new_topics(kafka, 1, PARTITIONS)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            due_ms += time.time_ns() // 1_000_000
            produce(kafka.bootstrap, topic, _held(range(MESSAGES), due_ms))
            for number, end in enumerate(ends):
                held = MESSAGES + number
                wait_until(partial(_all_noted, daemon, held), 30, "all is noted", detail=daemon.log_tail)
                produce(kafka.bootstrap, topic, _held(range(held, held + 1), due_ms))
                wait_until(partial(_holds, daemon, held + 1), 30, "the last one is held", detail=daemon.log_tail)
                end(daemon)
                daemon.start()
                starts = PARTITIONS * (number + 2)
                wait_until(partial(_has_started, daemon, starts), 60, "it is restored", detail=daemon.log_tail)
                count, read, local = _restored(daemon)
                assert (count, local) == (held + 1, [is_local] * PARTITIONS)
                assert read < 1_000 if is_local else read > MESSAGES
            assert time.time_ns() // 1_000_000 < due_ms, "the machine is too slow for this test"
            total = MESSAGES + len(ends)
            wait_until(lambda: len(receiver.rows()) >= total, 120, "all is delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert (len(set(receiver.rows())), len(receiver.rows())) == (total, total)


def _all_noted(daemon: Daemon, held: int) -> bool:
    """Whether the local files have so many messages, each a record."""
    places = places_in(daemon.state_dir / "delay-cache")
    return _holds(daemon, held) and len(places) == PARTITIONS and sum(place.offset for place in places) > held


def _holds(daemon: Daemon, held: int) -> bool:
    return bool(daemon.status()["delayed"] == held)


def _has_started(daemon: Daemon, partitions: int) -> bool:
    return len(daemon.events("delay.restored")) == partitions
