"""Delayed messages in a changelog: many kills, and a topic that is deleted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.scenarios.delay_requests import delay_requests
from tests.scenarios.delayed import HEADER, delayed_kills
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, missing, tail, wait_until
from tests.support.receiver import Receiver


@pytest.mark.parametrize("forgets", [pytest.param(False, marks=pytest.mark.proof), True])
def test_many_kills_lose_and_repeat_nothing(kafka: Broker, tmp_path: Path, forgets: bool) -> None:
    """Killed 5 times while messages fall due, each arrives once, and none early."""
    found = delayed_kills(kafka, tmp_path, 30_000, 5, spread_s=20, store="changelog", forgets=forgets, seed=2)
    assert found.exact


def test_a_changelog_that_is_deleted_is_told_and_made_again(kafka: Broker, tmp_path: Path) -> None:
    """The daemon ends with the reason; after its next start, later messages are held and delivered."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(b"lost", 3_600_000)])
            wait_until(lambda: daemon.status()["delayed"] == 1, 30, "it is held", detail=daemon.log_tail)
            kafka.delete_topic(name := f"sidecar-delay-{config['source']['kafka']['group_id']}-{topic}")
            daemon.wait(73, 60)
            assert missing(tail(daemon.log_path, lines=6), name, "was deleted", "restart the daemon") == []
            daemon.start()
            wait_until(lambda: daemon.events("delay.changelog_lost"), 30, "it is told", detail=daemon.log_tail)
            produce(kafka.bootstrap, topic, [_sent(b"held", 500)])
            wait_until(lambda: len(receiver.rows()) == 1, 30, "the new one is delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)


def _sent(value: bytes, after_ms: int) -> Outgoing:
    due = b"%d" % (time.time_ns() // 1_000_000 + after_ms)
    return Outgoing(0, value, None, [("tag", b"a"), (HEADER, due)])


@pytest.mark.parametrize(
    ("store", "forgets"),
    [
        pytest.param("local", False, marks=pytest.mark.proof),
        pytest.param("changelog", False, marks=pytest.mark.proof),
        ("changelog", True),
    ],
)
def test_what_an_operator_was_told_stands(kafka: Broker, tmp_path: Path, store: str, forgets: bool) -> None:
    """Killed 2 times during requests: cancelled ones never come, others once, and none early that stayed."""
    assert delay_requests(kafka, tmp_path, 3_000, 2, store=store, forgets=forgets).exact
