"""`sidecar dead-letters` with a daemon that reads a real Kafka: what was refused arrives later, once; kills."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.state.store import Store
from tests.scenarios.exactly_once import configuration, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.letters import letter
from tests.support.process import Daemon, spawn, wait_until
from tests.support.receiver import Receiver, value_hash

LETTERS = 100_000
KILLS = 5


def _run(daemon: Daemon, command: str, *arguments: str) -> Result:
    """The command, with the configuration of this daemon."""
    return CliRunner().invoke(main, ["dead-letters", command, "-c", str(daemon.config_path), *arguments])


def _sent(value: bytes) -> Outgoing:
    return Outgoing(0, value, b"key", [("tag", b"a"), ("more", b"\xff")])


def _await_letters(daemon: Daemon, count: int) -> None:
    wait_until(
        lambda: daemon.status()["dead_letters_stored"] == count, 60, f"{count} dead letters", detail=daemon.log_tail
    )


@pytest.mark.parametrize("format", ["envelope", "ndjson"])
def test_refused_messages_arrive_once_after_a_replay(
    kafka: Broker,
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    """The receiver gets the rows that it refused, byte for byte, and the running daemon has no dead letter left."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        config = configuration(
            kafka, [topic], receiver.url, "*", sink={"http": {"url": receiver.url, "format": format}}
        )
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            values = [b"%s %d" % (b"poison" if i % 10 == 3 else b"good", i) for i in range(40)]
            produce(kafka.bootstrap, topic, map(_sent, values))
            _await_letters(daemon, 4)
            listed = [json.loads(line) for line in _run(daemon, "list", "--json").stdout.splitlines()]
            assert sorted((each["topic"], each["offset"], each["group"]) for each in listed) == [
                (topic, offset, "a") for offset in (3, 13, 23, 33)
            ]
            refused = {line for body in receiver.bodies for line in body.splitlines() if b"poison" in line}
            receiver.control({"faults": []})
            before = len(receiver.bodies)
            result = _run(daemon, "replay", "--json", "--yes")
            assert (result.exit_code, json.loads(result.stdout)["delivered"]) == (0, 4), result.output
            assert {line for body in receiver.bodies[before:] for line in body.splitlines()} == refused
            assert Counter(row[3] for row in receiver.rows()) == Counter(map(value_hash, values))
            _await_letters(daemon, 0)


@pytest.mark.proof
def test_a_hundred_thousand_arrive_once_through_five_kills(kafka: Broker, tmp_path: Path) -> None:
    """Beside a daemon that delivers meanwhile, a replay is killed five times: none is lost, none arrives twice."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*")
        daemon = Daemon(tmp_path, config)
        with closing(Store(daemon.state_dir)) as store:
            for start in range(0, LETTERS, 10_000):
                store.letters.put([letter(i, partition=i % 4) for i in range(start, start + 10_000)])
        with daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(b"good %d" % i) for i in range(10_000)])
            log_path = tmp_path / "replay.log"
            for kill in range(1, KILLS + 1):
                replay = _start(daemon, log_path)
                goal = kill * LETTERS // (KILLS + 2)
                wait_until(partial(_has, receiver, goal), 120, "letters arrive", detail=log_path.read_text)
                assert replay.poll() is None
                replay.kill()
                replay.wait()
            assert _start(daemon, log_path).wait(180) == 0, log_path.read_text()
            rows: Counter[Any] = Counter(row[:3] for row in receiver.rows() if row[0] == "orders")
            assert len(rows) == LETTERS
            assert set(rows.values()) == {1}
            _await_letters(daemon, 0)
            wait_until(lambda: daemon.status()["delivered"] == 10_000, 60, "the rest is delivered")


def _start(daemon: Daemon, log_path: Path) -> Any:
    command = [sys.executable, "-m", "sidecar", "dead-letters", "replay", "-c", str(daemon.config_path)]
    with log_path.open("ab") as log:
        return spawn([*command, "--yes", "--rate", "20000"], log)


def _has(receiver: Receiver, letters: int) -> bool:
    stored = sum(part["count"] for part in receiver.parts() if part["part"].startswith("orders@"))
    return bool(stored >= letters)
