"""Delayed messages that are not delivered: of topics that are not read any more, or of a store that is not here."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.clock import Clock
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, wait_until, write_config
from tests.support.receiver import Receiver

STORES = pytest.mark.parametrize("store", ["changelog", "local", "postgresql"])
EACH = 7
HOUR_S = 3_600


def section(store: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """`delay` with this store."""
    if store == "postgresql":
        return dict(request.getfixturevalue("postgresql").delay_section())
    return {"store": store}


def hold(broker: Broker, daemon: Daemon, topics: Sequence[str], before: int = 0) -> None:
    """Produce messages of each topic that are due in an hour, and wait until the daemon holds them, too."""
    due = b"%d" % (time.time_ns() // 1_000_000 + HOUR_S * 1_000)
    for topic in topics:
        sent = [Outgoing(i % 2, b"%d" % i, None, [("tag", b"a"), (HEADER, due)]) for i in range(EACH)]
        produce(broker.bootstrap, topic, sent)
    await_held(daemon, before + EACH * len(topics))


def await_held(daemon: Daemon, count: int) -> None:
    """Wait until it holds so many, none of which is left behind."""

    def holds() -> bool:
        status = daemon.status()
        return bool(status["delayed"] == count and not told(daemon))

    wait_until(holds, 40, f"{count} are held", detail=lambda: f"{daemon.status()}\n{daemon.log_tail()}")


def told(daemon: Daemon) -> list[str]:
    """What the daemon says of messages that are left behind."""
    return [text for text in daemon.status()["problems"] if "are held and not delivered" in text]


def await_told(daemon: Daemon, topic: str, why: str) -> None:
    """Wait until the messages of a topic are told with their number."""
    (text,) = wait_until(lambda: told(daemon), 40, "they are told", detail=daemon.log_tail)
    assert text.startswith(f"{EACH} delayed messages of {topic} are held and not delivered")
    assert why in text
    (event,) = daemon.events("delay.left_behind")
    assert (event["topic"], event["count"]) == (topic, EACH)


def restart(daemon: Daemon, topics: Sequence[str]) -> None:
    """Stop the daemon, and start it with these topics."""
    daemon.stop()
    source: dict[str, Any] = {"kafka": {**daemon.config["source"]["kafka"], "topics": list(topics)}}
    write_config(daemon.config_path, {**daemon.config, "source": source})
    daemon.start()
    daemon.wait_ready()


@STORES
def test_messages_of_a_topic_that_is_taken_out_are_told(
    kafka: Broker, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    """Until it is named again: then they are held as before, and delivered."""
    topics = kept, gone = new_topics(kafka, 2, 2)
    with Receiver() as receiver:
        config = configuration(kafka, topics, receiver.url, "*", delay=section(store, request))
        clock = Clock(tmp_path / "clock")
        with Daemon(tmp_path, config, program=clock.program) as daemon:
            daemon.wait_ready()
            hold(kafka, daemon, topics)
            restart(daemon, [kept])
            await_told(daemon, gone, "source.kafka.topics does not name it")
            restart(daemon, topics)
            await_held(daemon, 2 * EACH)
            clock.go_on(HOUR_S)
            wait_until(lambda: len(receiver.rows()) >= 2 * EACH, 90, "all are delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 30)
            assert (len(receiver.rows()), len(set(receiver.rows()))) == (2 * EACH, 2 * EACH)


@STORES
def test_messages_of_a_deleted_topic_are_told(
    kafka: Broker, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    """Until it is created again: then the daemon holds them as before."""
    topics = _, gone = new_topics(kafka, 2, 2)
    with Receiver() as receiver:
        config = configuration(kafka, topics, receiver.url, "*", delay=section(store, request))
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            hold(kafka, daemon, topics)
            kafka.delete_topic(gone)
            await_told(daemon, gone, "does not exist")
            kafka.create_topic(gone, 2)
            await_held(daemon, 2 * EACH)
            daemon.stop()


def start_with(daemon: Daemon, store: Path | None) -> None:
    """Start the daemon with a copy of this store."""
    shutil.rmtree(daemon.state_dir / "delay")
    if store is not None:
        shutil.copytree(store, daemon.state_dir / "delay")
    daemon.start()
    daemon.wait_ready()


def await_missing(daemon: Daemon, why: str) -> None:
    """Wait until messages of two partitions are told as missing."""

    def problems() -> list[str]:
        return [text for text in daemon.status()["problems"] if text.startswith("delayed messages are missing: ")]

    (text,) = wait_until(problems, 40, "they are told", detail=lambda: f"{daemon.status()}\n{daemon.log_tail()}")
    assert why in text
    assert "and those of 1 more partitions" in text


def test_a_store_that_is_not_the_last_one_is_told(kafka: Broker, tmp_path: Path) -> None:
    """An older copy, or another store, as after a move between members; with the last one again, nothing is told."""
    (topic,) = new_topics(kafka, 1, 2)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": "local"})
        with Daemon(tmp_path, config) as daemon:
            older, newest = tmp_path / "older", tmp_path / "newest"
            daemon.wait_ready()
            hold(kafka, daemon, [topic])
            daemon.stop()
            shutil.copytree(daemon.state_dir / "delay", older)
            daemon.start()
            daemon.wait_ready()
            hold(kafka, daemon, [topic], EACH)
            daemon.stop()
            shutil.copytree(daemon.state_dir / "delay", newest)
            start_with(daemon, older)
            await_missing(daemon, "its store lacks the changes that were made last: it holds")
            daemon.stop()
            start_with(daemon, None)
            await_missing(daemon, "are in another store: another member's")
            daemon.stop()
            start_with(daemon, newest)
            await_held(daemon, 2 * EACH)
            told = [event["level"] for event in daemon.events("delay.missing")]
            assert told == ["error"] * 2 + ["warning"] * 2
            daemon.stop()
