"""Each wanted message arrives once and unchanged, with all else quiet: formats, ids, repeats by the broker, poison."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.exactly_once import configuration, dead_lettered, finish, flow, new_topics, poison, split_killed
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon
from tests.support.receiver import Receiver


@pytest.mark.parametrize(
    ("form", "by", "ids"),
    [("envelope", "partition", False), ("ndjson", "group", False), ("envelope", "group", True)],
)
def test_every_wanted_message_arrives_once_and_unchanged(
    kafka: Broker, tmp_path: Path, form: str, by: str, ids: bool
) -> None:
    """Of 50,000 messages of every kind, 5 % handed over twice, each wanted one arrives once, byte for byte."""
    messages = 50_000 if form == "envelope" and not ids else 20_000
    assert flow(kafka, tmp_path, messages, form=form, by=by, ids=ids).exact


def test_json_array_takes_what_is_json_and_gives_up_the_rest(kafka: Broker, tmp_path: Path) -> None:
    """In `json_array` each value that is JSON arrives once as it was, each other one is a dead letter."""
    (topic,) = new_topics(kafka, 1)
    values = [b'{"n":%d}' % i if i % 10 else (b"", b"not json %d" % i)[i // 10 % 2] for i in range(2_000)]
    produce(kafka.bootstrap, topic, [Outgoing(i % 4, value) for i, value in enumerate(values)])
    good = [value for value in values if value.startswith(b"{")]
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*")
        config["sink"]["http"]["format"] = "json_array"
        with Daemon(tmp_path, config) as daemon:
            status = finish(kafka, daemon, 30)
        assert (status["delivered"], status["dead_lettered"]) == (len(good), len(values) - len(good))
        rows = [value for body in receiver.bodies for value in body[1:-1].replace(b"},{", b"}\n{").split(b"\n")]
    assert sorted(rows) == sorted(good)
    assert dead_lettered(daemon) == {(topic, i % 4, i // 4) for i in range(0, len(values), 10)}


def test_one_poison_message_among_5000_is_found(kafka: Broker, tmp_path: Path) -> None:
    """4,999 of 5,000 messages are delivered, the poison one is dead-lettered, with at most 26 extra requests."""
    assert poison(kafka, tmp_path).exact


def test_a_kill_in_mid_split_repeats_nothing(kafka: Broker, tmp_path: Path) -> None:
    """Killed while it halves a refused batch, the daemon stores nothing twice and loses nothing."""
    assert split_killed(kafka, tmp_path, kills=3).exact
