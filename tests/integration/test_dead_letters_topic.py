"""`sidecar dead-letters` with `dead_letters.kafka.topic`: what was replayed is known by its origin."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.letters.produce import LetterProducer
from sidecar.state.replays import Replays
from sidecar.state.store import Store
from tests.scenarios.exactly_once import configuration, new_topics
from tests.support.committed import committed
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.letters import ENDED, Crash, Crasher, configure, run
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

LETTERS = 12
POISON = 5
AT_MS = time.time_ns() // 1_000_000
"""Kafka deletes records that are older than a week."""


def store_letters(kafka: Broker, dead: str, topic: str, offsets: Iterable[int]) -> None:
    """Produce dead letters of partition 0 of the topic, as the daemon does."""
    records = []
    for offset in offsets:
        story = {"topic": topic, "partition": 0, "offset": offset, "group": "paid", "reason": "HTTP 400", "status": 400}
        headers = [(f"sidecar-{name}", str(value).encode()) for name, value in {**story, "attempts": 1}.items()]
        records.append(Outgoing(0, b"value %d" % offset, b"k", [("tag", b"paid"), *headers], AT_MS))
    produce(kafka.bootstrap, dead, records)


def configured(kafka: Broker, folder: Path, topic: str, dead: str, url: str, **sections: Any) -> Store:
    """A configuration in that folder, and a state folder that is open as in a daemon."""
    source = {"bootstrap_servers": kafka.bootstrap, "group_id": unique("group"), "topics": [topic]}
    configure(folder, url, source={"kafka": source}, dead_letters={"kafka": {"topic": dead}}, **sections)
    return Store(folder / "state")


def listed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The letters that `list` has."""
    result = run(folder, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_refused_messages_in_a_topic_arrive_once_after_a_replay(kafka: Broker, tmp_path: Path) -> None:
    """The daemon stores them there; after the replay they are left out, though the topic has them still."""
    topic, dead = new_topics(kafka, 2, 1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        config = configuration(kafka, [topic], receiver.url, "*", dead_letters={"kafka": {"topic": dead}})
        with Daemon(tmp_path, config) as daemon:
            (tmp_path / "orders.yaml").write_text(daemon.config_path.read_text())
            daemon.wait_ready()
            values = [b"poison %d" % i for i in range(4)] + [b"good"]
            headers = [("tag", b"a"), ("more", b"\xff")]
            produce(kafka.bootstrap, topic, [Outgoing(0, value, b"\xfe", headers) for value in values])
            wait_until(lambda: daemon.status()["dead_lettered"] == 4, 30, "four dead letters", detail=daemon.log_tail)
            assert sorted((each["topic"], each["offset"], each["group"]) for each in listed(tmp_path)) == [
                (topic, offset, "a") for offset in range(4)
            ]
            first = listed(tmp_path, "--limit", "1")[0]["id"]
            shown = json.loads(run(tmp_path, "show", str(first)).stdout)
            assert shown["message"]["headers"] == [["tag", "a"], ["more", {"base64": "/w=="}]]
            assert run(tmp_path, "purge", "--yes").exit_code == 64
            receiver.control({"faults": []})
            result = run(tmp_path, "replay", "--yes")
            assert result.stdout == "4 dead letters were sent, 0 stay\n", result.output
            assert listed(tmp_path) == []
            again = run(tmp_path, "replay", "--yes")
            assert (again.exit_code, again.stdout) == (66, "0 dead letters were sent, 0 stay\n")
        assert Counter(row[3] for row in receiver.rows()) == Counter(map(value_hash, values))


def test_copies_of_one_origin_go_once(kafka: Broker, tmp_path: Path) -> None:
    """In one replay and in a later one; a record of another program is left out."""
    topic, dead = new_topics(kafka, 2, 1)
    with Receiver() as receiver, closing(configured(kafka, tmp_path, topic, dead, receiver.url)):
        store_letters(kafka, dead, topic, [1, 2, 1])
        produce(kafka.bootstrap, dead, [Outgoing(0, b"foreign", b"k", [("tag", b"paid")])])
        assert [each["offset"] for each in listed(tmp_path)] == [1, 2]
        assert json.loads(run(tmp_path, "replay", "--yes", "--json").stdout)["delivered"] == 2
        store_letters(kafka, dead, topic, [2, 3])
        assert json.loads(run(tmp_path, "replay", "--yes", "--json").stdout)["delivered"] == 1
        assert sorted(row[2] or 0 for row in receiver.rows()) == [1, 2, 3]


def test_the_options_choose_among_records(kafka: Broker, tmp_path: Path) -> None:
    """As among the letters in the state folder; `--after` goes on behind a record."""
    topic, dead = new_topics(kafka, 2, 1)
    with closing(configured(kafka, tmp_path, topic, dead, "http://localhost:1/")):
        store_letters(kafka, dead, topic, range(5))
        ids = [each["id"] for each in listed(tmp_path)]
        assert ids == [0, 10_000, 20_000, 30_000, 40_000]
        assert [each["id"] for each in listed(tmp_path, "--after", "10000", "--limit", "2")] == [20_000, 30_000]
        assert [each["id"] for each in listed(tmp_path, "--id", "30000")] == [30_000]
        assert listed(tmp_path, "--group", "refunded") == listed(tmp_path, "--until", str(AT_MS)) == []


@pytest.mark.parametrize(
    ("status", "after"),
    [
        pytest.param(400, False, id="400-before", marks=pytest.mark.proof),
        pytest.param(207, True, id="207-after"),
        pytest.param(400, True, id="400-after", marks=pytest.mark.proof),
        pytest.param(207, False, id="207-before", marks=pytest.mark.proof),
    ],
)
def test_a_crash_at_any_write_delivers_each_once(kafka: Broker, tmp_path: Path, status: int, after: bool) -> None:
    """What the receiver refuses again is still listed."""
    at = 0
    goes_on = True
    while goes_on:
        at += 1
        topic, dead = new_topics(kafka, 2, 1)
        folder = tmp_path / str(at)
        folder.mkdir()
        with (
            Receiver() as receiver,
            closing(configured(kafka, folder, topic, dead, receiver.url, batch={"max_messages": 8})),
        ):
            store_letters(kafka, dead, topic, range(LETTERS))
            receiver.fail("refuse", status=status, marker=f"value {POISON}")
            goes_on = _crashed(folder, Crasher(at, after=after), ("fix", "halve", "end_origins"))
            if goes_on:
                assert run(folder, "replay", "--yes").exit_code in ENDED
            assert Counter(row[2] for row in receiver.rows()) == Counter(set(range(LETTERS)) - {POISON}), at
            assert [each["offset"] for each in listed(folder)] == [POISON], at
    assert at > 3


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.proof), True], ids=["before", "after"])
def test_a_crash_at_any_write_produces_each_once(kafka: Broker, tmp_path: Path, after: bool) -> None:
    """A reader of committed messages sees each once."""
    at = 0
    goes_on = True
    while goes_on:
        at += 1
        topic, dead = new_topics(kafka, 2, 1)
        folder = tmp_path / str(at)
        folder.mkdir()
        with closing(configured(kafka, folder, topic, dead, "http://localhost:1/", batch={"max_messages": 8})):
            store_letters(kafka, dead, topic, range(LETTERS))
            crasher = Crasher(at, after=after)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LetterProducer, "_produce", crasher.around(LetterProducer._produce))
                goes_on = _crashed(folder, crasher, ("fix", "end_origins"), "--to", "topic")
            if goes_on:
                assert run(folder, "replay", "--to", "topic", "--yes").exit_code in ENDED
            assert listed(folder) == [], at
        assert [each.value() for each in committed(kafka, topic)] == [b"value %d" % i for i in range(LETTERS)], at
    assert at == 7


def _crashed(folder: Path, crasher: Crasher, writes: Iterable[str], *arguments: str) -> bool:
    """Run a replay to its end or to the crash; whether it crashed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in writes:
            patch.setattr(Replays, name, crasher.around(getattr(Replays, name)))
        try:
            assert run(folder, "replay", "--yes", *arguments).exit_code == 0
        except Crash:
            return True
    return False
