"""`sidecar dead-letters replay --to topic` with a real Kafka: each is there once for a reader of committed messages."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.letters.produce import LetterProducer
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import Replays
from sidecar.state.store import Store
from tests.scenarios.exactly_once import configuration, new_topics
from tests.support.committed import committed
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.letters import ENDED, Crash, Crasher, configure, letter, run
from tests.support.process import Daemon, spawn, wait_until
from tests.support.receiver import Receiver, value_hash

LETTERS = 20_000
KILLS = 3


def configured(kafka: Broker, folder: Path, topic: str, **sections: Any) -> None:
    """A configuration in that folder that reads the topic."""
    source = {"bootstrap_servers": kafka.bootstrap, "group_id": unique("group"), "topics": [topic]}
    configure(folder, source={"kafka": source}, **sections)


def filled(folder: Path, topic: str, count: int, header: Mapping[str, str] | None = None) -> Store:
    """A state folder with dead letters of partition 0 of the topic, open as in a daemon."""
    store = Store(folder / "state")
    for start in range(0, count, 10_000):
        letters = [letter(i, topic=topic, partition=0) for i in range(start, min(count, start + 10_000))]
        if header:
            letters = [_with_header(each, header) for each in letters]
        store.letters.put(letters)
    return store


def _with_header(each: StoredLetter, header: Mapping[str, str]) -> StoredLetter:
    row = json.loads(each.envelope or b"")
    row["headers"] += [[name, value % each.offset] for name, value in header.items()]
    return replace(each, envelope=json.dumps(row).encode())


def test_what_is_produced_again_is_delivered(kafka: Broker, tmp_path: Path) -> None:
    """The running daemon reads the messages as new ones, with the same key, value and headers."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        with Daemon(tmp_path, configuration(kafka, [topic], receiver.url, "*")) as daemon:
            daemon.wait_ready()
            headers = [("tag", b"a"), ("more", b"\xff"), ("none", None)]
            produce(kafka.bootstrap, topic, [Outgoing(0, b"poison %d" % i, b"\xfe", headers) for i in range(3)])
            wait_until(lambda: daemon.status()["dead_letters_stored"] == 3, 30, "three dead letters")
            receiver.control({"faults": []})
            (tmp_path / "orders.yaml").write_text(daemon.config_path.read_text())
            result = run(tmp_path, "replay", "--to", "topic", "--yes")
            assert result.stdout == "3 dead letters were sent, 0 stay\n", result.output
            wait_until(lambda: daemon.status()["delivered"] == 3, 30, "they are delivered", detail=daemon.log_tail)
            assert sorted(row[3] or "" for row in receiver.rows()) == sorted(
                value_hash(b"poison %d" % i) or "" for i in range(3)
            )
            assert daemon.status()["dead_letters_stored"] == 0
    first, again = committed(kafka, topic)[0], committed(kafka, topic)[-1]
    assert (again.key(), again.headers()) == (first.key(), first.headers())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_write_produces_each_once(kafka: Broker, tmp_path: Path, after: bool) -> None:
    """The transaction or a write to the state file may be the last thing that a process does; duplicates stay."""
    at = 0
    goes_on = True
    while goes_on:
        at += 1
        (topic,) = new_topics(kafka, 1, 1)
        folder = tmp_path / str(at)
        folder.mkdir()
        configured(kafka, folder, topic, batch={"max_messages": 6}, dedup={"by": {"header": "id"}})
        with closing(filled(folder, topic, 10)) as store:
            store.letters.put([_with_header(letter(i, topic=topic, partition=0), {"id": "%d"}) for i in (10, 11)])
            crasher = Crasher(at, after=after)
            with pytest.MonkeyPatch.context() as patch:
                for owner, name in ((Replays, "fix"), (Replays, "end_part"), (LetterProducer, "_produce")):
                    patch.setattr(owner, name, crasher.around(getattr(owner, name)))
                try:
                    assert run(folder, "replay", "--to", "topic", "--yes").exit_code == 0
                    goes_on = False
                except Crash:
                    assert run(folder, "replay", "--to", "topic", "--yes").exit_code in ENDED
            assert [each.offset for each in store.letters.load(100)] == [10, 11], at
        assert [message.value() for message in committed(kafka, topic)] == [b"value %d" % i for i in range(10)], at
    assert at == 7


def test_a_killed_replay_leaves_no_half_of_a_transaction(kafka: Broker, tmp_path: Path) -> None:
    """Of 20,000 letters, each is there once after three kills."""
    (topic,) = new_topics(kafka, 1, 1)
    configured(kafka, tmp_path, topic, batch={"max_messages": 1_000})
    command = [sys.executable, "-m", "sidecar", "dead-letters", "replay", "-c", str(tmp_path / "orders.yaml")]
    command += ["--to", "topic", "--yes", "--rate", "10000"]
    with closing(filled(tmp_path, topic, LETTERS)) as store, (tmp_path / "log").open("wb") as log:
        for kill in range(1, KILLS + 1):
            process = spawn(command, log)
            goal = LETTERS - kill * LETTERS // (KILLS + 1)
            wait_until(partial(_has_at_most, store, goal), 60, "letters are produced")
            process.kill()
            process.wait()
        assert spawn(command, log).wait(60) == 0
        assert store.letters.count() == 0
    values = Counter(message.value() for message in committed(kafka, topic))
    assert (len(values), set(values.values())) == (LETTERS, {1})


def _has_at_most(store: Store, letters: int) -> bool:
    return store.letters.count() <= letters


def test_what_would_be_dropped_as_a_duplicate_stays(kafka: Broker, tmp_path: Path) -> None:
    """It is told before; `--as-new` gives each another id, the same whenever it is produced."""
    (topic,) = new_topics(kafka, 1, 1)
    configured(kafka, tmp_path, topic, dedup={"by": {"header": "id"}})
    with closing(filled(tmp_path, topic, 3, {"id": "order %d"})) as store:
        result = run(tmp_path, "replay", "--to", "topic", "--dry-run")
        assert "3 of them would be dropped as duplicates" in result.stderr
        assert run(tmp_path, "replay", "--to", "topic", "--yes").stdout == "0 dead letters were sent, 3 stay\n"
        assert store.letters.count() == 3
        assert run(tmp_path, "replay", "--to", "topic", "--as-new", "--yes").exit_code == 0
        assert store.letters.count() == 0
    new = [dict(message.headers() or [])["id"] for message in committed(kafka, topic)]
    assert len(set(new)) == 3
    assert [str(each).split("-replay-")[0] for each in new] == [f"b'order {i}" for i in range(3)]


def test_a_broker_that_is_down_ends_the_replay(tmp_path: Path) -> None:
    """It ends with 69, and the letters stay."""
    configure(tmp_path)
    with closing(filled(tmp_path, "orders", 1)) as store:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sidecar.letters.produce.TIMEOUT_S", 2.0)
            assert run(tmp_path, "replay", "--to", "topic", "--yes").exit_code == 69
        assert store.letters.count() == 1
