"""`sidecar delay list`, `show`, `cancel` and `release` with a running daemon and a real Kafka."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.core.messages.instants import instant_text
from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver

HOUR_MS = 3_600_000
STORES = pytest.mark.parametrize("store", ["changelog", pytest.param("local", marks=pytest.mark.proof)])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _sent(value: bytes, due_ms: int, partition: int = 0) -> Outgoing:
    return Outgoing(partition, value, b"key", [("tag", b"a"), (HEADER, b"%d" % due_ms)])


def _run(daemon: Daemon, command: str, *arguments: str) -> Result:
    """The command, with the configuration of this daemon."""
    return CliRunner().invoke(main, ["delay", command, "-c", str(daemon.config_path), *arguments])


def _listed(daemon: Daemon, *arguments: str) -> list[dict[str, Any]]:
    result = _run(daemon, "list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)["messages"]
    return found


def _await_held(daemon: Daemon, count: int) -> None:
    daemon.wait_ready()
    wait_until(lambda: daemon.status()["delayed"] == count, 30, f"{count} are held", detail=daemon.log_tail)


@STORES
def test_a_cancelled_message_never_comes_and_a_released_one_comes_once(
    kafka: Broker, tmp_path: Path, store: str
) -> None:
    """A kill right after the answer changes nothing about it."""
    (topic,) = new_topics(kafka, 1, 1)
    due_ms = _now_ms() + 12 * HOUR_MS
    due = instant_text(due_ms)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            produce(kafka.bootstrap, topic, [_sent(b"%d" % number, due_ms) for number in range(4)])
            _await_held(daemon, 4)
            unsure = _run(daemon, "cancel", f"{topic}:0:1", "--due", str(due_ms // HOUR_MS * HOUR_MS))
            assert (unsure.exit_code, f"is held, but due at {due}" in unsure.output) == (66, True)
            cancelled = _run(daemon, "cancel", f"{topic}:0:1", "--due", due)
            assert (cancelled.exit_code, cancelled.output) == (0, f"{topic}:0:1 is cancelled, it was due at {due}\n")
            _await_held(daemon, 3)
            assert daemon.status()["cancelled"] == 1
            released = _run(daemon, "release", f"{topic}:0:2", "--due", due)
            assert (released.exit_code, released.output) == (0, f"{topic}:0:2 is released, it was due at {due}\n")
            daemon.kill9()
            daemon.start()
            _await_held(daemon, 2)
            again = _run(daemon, "cancel", f"{topic}:0:1", "--due", due)
            assert (again.exit_code, "is not held" in again.output) == (66, True)
            for offset in (0, 3):
                assert _run(daemon, "release", f"{topic}:0:{offset}", "--due", due).exit_code == 0
            wait_until(lambda: len(receiver.rows()) >= 3, 30, "all others have come", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert sorted(row[2] or 0 for row in receiver.rows()) == [0, 2, 3]


@STORES
def test_messages_are_listed_in_order_and_one_is_shown_whole(kafka: Broker, tmp_path: Path, store: str) -> None:
    """By time, topic and partition, as many as wanted; `show` has key, headers and value."""
    (topic,) = new_topics(kafka, 1, 2)
    first_ms = _now_ms() // HOUR_MS * HOUR_MS + 5 * HOUR_MS
    dues = [first_ms + 2 * HOUR_MS, first_ms, first_ms + HOUR_MS, first_ms + 1]
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            produce(kafka.bootstrap, topic, [_sent(b"%d" % i, due, i % 2) for i, due in enumerate(dues)])
            _await_held(daemon, 4)
            found = [(row["due"], row["partition"], row["offset"]) for row in _listed(daemon)]
            places = [(1, 0), (1, 1), (0, 1), (0, 0)]
            assert found == [(instant_text(due), *place) for due, place in zip(sorted(dues), places, strict=True)]
            assert _listed(daemon)[0]["topic"] == topic
            by_time = _listed(daemon, "--from", str(first_ms + 1), "--until", str(first_ms + HOUR_MS + 1))
            assert [(row["partition"], row["offset"]) for row in by_time] == [(1, 1), (0, 1)]
            assert [row["offset"] for row in _listed(daemon, "--partition", "1", "--limit", "1")] == [0]
            assert _listed(daemon, "--topic", "other") == []
            assert len(_listed(daemon, "--group", "a", "--limit", "3")) == 3
            assert _listed(daemon, "--group", "b") == _listed(daemon, "--tag", "b") == []
            assert len(_listed(daemon, "--tag", "a", "--partition", "1")) == 2
            count = json.loads(_run(daemon, "count", "--json", "--tag", "a", "--until", str(first_ms + 2)).output)
            assert (count["held"], count["read"], sum(count["due"].values())) == (2, 2, 2)
            assert _run(daemon, "count", "--tag", "a", "--until", str(first_ms + 2)).output.split()[-2:] == ["all", "2"]
            text = _run(daemon, "list", "--limit", "1").output
            assert f"{topic}:1:0" in text
            assert f"--from {instant_text(first_ms)}" in text
            shown = _run(daemon, "show", f"{topic}:1:1", "--due", str(first_ms + HOUR_MS - 1))
            message = json.loads(shown.output)
        assert receiver.rows() == []
    assert (message["due"], message["key"], message["value"]) == (instant_text(first_ms + 1), "key", "3")
    assert message["headers"] == [["tag", "a"], [HEADER, str(first_ms + 1)]]


def test_another_member_is_named(kafka: Broker, tmp_path: Path) -> None:
    """A daemon that does not own the partition names the one that does; with none running, that is said."""
    (topic,) = new_topics(kafka, 1, 2)
    due_ms = _now_ms() + HOUR_MS
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        first, second = (Daemon(tmp_path, config, name=name) for name in ("first", "second"))
        with ended_after([first, second]):
            first.start()
            produce(kafka.bootstrap, topic, [_sent(b"x", due_ms, partition) for partition in range(2)])
            _await_held(first, 2)
            second.start()
            _await_held(second, 1)
            _await_held(first, 1)
            (mine,), (other,) = _listed(first), _listed(second)
            asked = _run(first, "cancel", f"{topic}:{other['partition']}:0", "--due", other["due"])
            assert asked.exit_code == 69
            assert f"this daemon does not own {topic}:{other['partition']}; " in asked.output
            assert " on 127.0.0.1 does" in asked.output
            assert _run(second, "cancel", f"{topic}:{other['partition']}:0", "--due", other["due"]).exit_code == 0
            first.stop()
            stopped = _run(first, "cancel", f"{topic}:{mine['partition']}:0", "--due", mine["due"])
            assert (stopped.exit_code, "no running sidecar found" in stopped.output) == (69, True)


def test_without_the_section_it_is_said(kafka: Broker, tmp_path: Path) -> None:
    """Exit 78: nothing is held."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver, Daemon(tmp_path, configuration(kafka, [topic], receiver.url, "*")) as daemon:
        daemon.wait_ready()
        asked = _run(daemon, "list")
    assert (asked.exit_code, "no section delay" in asked.output) == (78, True)


@pytest.mark.parametrize("arguments", [("orders:0", "--due", "0"), ("orders:0:1", "--due", "soon"), ("orders:0:1",)])
def test_what_cannot_be_read_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Exit 64 with what is wrong, before a file is read."""
    asked = CliRunner().invoke(main, ["delay", "show", "-c", str(tmp_path / "none.yaml"), *arguments])
    assert asked.exit_code == 64


def test_a_tag_is_refused_if_messages_have_none(tmp_path: Path) -> None:
    """Exit 64 with what is missing, before anything is asked."""
    path = tmp_path / "sidecar.json"
    source = {"kafka": {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "topics": ["t"]}}
    sections = {"sink": {"console": {}}, "state": {"dir": str(tmp_path / "state")}, "delay": {}}
    path.write_text(json.dumps({"source": source, **sections}))
    for command in ("list", "count"):
        asked = CliRunner().invoke(main, ["delay", command, "-c", str(path), "--tag", "a"])
        assert (asked.exit_code, "tags.from" in asked.output) == (64, True)


def test_a_group_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """Exit 64 with the groups that the configuration has, before anything is asked."""
    path = tmp_path / "sidecar.json"
    source = {"kafka": {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "topics": ["t"]}}
    tags = {"from": {"header": "tag"}, "subscribe": "a || b || c", "groups": {"most": "a || b"}}
    sections = {"sink": {"console": {}}, "state": {"dir": str(tmp_path / "state")}, "delay": {}}
    path.write_text(json.dumps({"source": source, "tags": tags, **sections}))
    asked = CliRunner().invoke(main, ["delay", "list", "-c", str(path), "--group", "a"])
    assert (asked.exit_code, "tags has the groups c, most" in asked.output) == (64, True)
