"""Delayed messages of a real RocketMQ: each arrives once when it is due, with all that RocketMQ tells of it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER
from sidecar.sinks.formats import envelope_row
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store
from tests.scenarios.rocketmq_delayed import DUE, delayed_configuration, kills, moves
from tests.scenarios.rocketmq_messages import PATIENCE_S
from tests.support.kafka import unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, Node
from tests.support.rocketmq_reader import Reader
from tests.support.scene import await_rest


@pytest.fixture
def topic(rocketmq: Node) -> str:
    """A topic of one queue."""
    return rocketmq.create_topic(unique("topic"), 1)


@pytest.fixture(params=["local", pytest.param("postgresql", marks=pytest.mark.proof)])
def delay(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The section `delay` of each store."""
    if request.param == "local":
        return {}
    database: Database = request.getfixturevalue("postgresql")
    place = {"url": database.schema()} | ({"password": database.password} if database.password else {})
    return {"store": "postgresql", "postgresql": place}


def _due(after_ms: int) -> dict[str, str]:
    return {DUE: str(time.time_ns() // 1_000_000 + after_ms)}


def _rows(node: Node, topics: list[str], count: int) -> list[dict[str, Any]]:
    """What an envelope has of each message, by a reader that holds nothing."""
    columns, rows = RocketMqColumns(), []
    with Reader(node, unique("group"), topics) as reader:
        reader.read(count)
        for tp, messages in reader.messages.items():
            tags = [(value,) if isinstance(value, bytes) else () for value in columns.header(messages, "TAGS")]
            read = (columns.offsets, columns.timestamps, columns.keys)
            rest = (columns.headers, columns.values, columns.details)
            fields: list[Any] = [*(each(messages) for each in read), tags, *(each(messages) for each in rest)]
            rows += [orjson.loads(envelope_row(tp, *each)) for each in zip(*fields, strict=True)]
    return rows


def _arrived(receiver: Receiver) -> list[dict[str, Any]]:
    return [orjson.loads(line) for body in receiver.bodies for line in body.splitlines()]


def test_a_message_cancels_those_with_its_name(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """Names are properties: of two that are held one is cancelled, and the other arrives."""
    with Receiver() as receiver:
        with Daemon(tmp_path, delayed_configuration(rocketmq, topic, group, receiver.url)) as daemon:
            daemon.wait_ready()
            # On a busy machine some seconds pass until the queue is read.
            sent = [
                Message(b"first", tag="paid", properties={**_due(15_000), NAME_HEADER: "x"}),
                Message(b"second", tag="paid", properties={**_due(15_000), NAME_HEADER: "y"}),
                Message(b"cancels", tag="paid", properties={CANCEL_HEADER: "x"}),
            ]
            rocketmq.send(topic, sent, queues=1)
            wait_until(lambda: daemon.status()["delivered"] == 1, PATIENCE_S, "it arrives", detail=daemon.log_tail)
            status = await_rest(daemon, PATIENCE_S)
            daemon.stop()
        assert [row["value"] for row in _arrived(receiver)] == ["second"]
    assert (status["cancelled"], status["filtered"], status["delayed"]) == (1, 1, 0)


def test_a_held_message_arrives_with_all_that_rocketmq_tells(
    rocketmq: Node, topic: str, group: str, tmp_path: Path
) -> None:
    """Place, ids, keys, tag, properties, time and body are those of a message that was not held."""
    binary = b"\x00binary \xff" + bytes(1 << 20)
    with Receiver() as receiver:
        with Daemon(tmp_path, delayed_configuration(rocketmq, topic, group, receiver.url)) as daemon:
            daemon.wait_ready()
            # On a busy machine some seconds pass until the queue is read.
            sent = [
                Message(binary, tag="paid", keys="k1 k2", properties={"colour": "rot", "DELAY": "0", **_due(15_000)}),
                Message(b"plain", tag="paid", keys="k1 k2", properties={"colour": "rot"}),
                Message(b"alone", tag="created", properties=_due(15_000)),
                Message(b"unwanted", tag="draft", properties=_due(5_000)),
                Message(b"packed" * 100, tag="created", compress="zlib", properties=_due(15_000)),
            ]
            rocketmq.send(topic, sent, queues=1)
            wait_until(lambda: daemon.status()["delivered"] == 4, PATIENCE_S, "they arrive", detail=daemon.log_tail)
            status = await_rest(daemon, PATIENCE_S)
            daemon.stop()
        found = _arrived(receiver)
        parts = [part["part"] for part in receiver.parts()]
    expected = [row for row in _rows(rocketmq, [topic], 5) if row["tag"] != "draft"]
    by_offset = sorted(found, key=lambda row: row["offset"])
    assert by_offset == sorted(expected, key=lambda row: row["offset"])
    assert (status["delivered"], status["delayed"]) == (4, 0)
    assert sum("+delayed:broker-a:0:" in part for part in parts) == len(parts) - 1


@pytest.mark.parametrize("by", [pytest.param("position", marks=pytest.mark.proof), "offset_msg_id"])
def test_a_message_that_was_handed_back_is_held_too(
    rocketmq: Node, topic: str, group: str, tmp_path: Path, by: str
) -> None:
    """It comes from the retry topic, with its count; by the place of its origin it is a duplicate of what is held."""
    rocketmq.create_group(group)
    back = f"%RETRY%{group}"
    with Receiver() as receiver:
        config = delayed_configuration(rocketmq, topic, group, receiver.url, dedup={"by": by})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            rocketmq.send(topic, [Message(b"again", tag="paid", properties=_due(10_000))], queues=1)
            wait_until(lambda: daemon.status()["delayed"] == 1, PATIENCE_S, "it is held", detail=daemon.log_tail)
            with Reader(rocketmq, unique("group"), [topic]) as reader:
                reader.read(1)
                ((stored,),) = reader.messages.values()
            rocketmq.send_back(group, topic, stored.position, level=1)
            rows = 2 if by == "position" else 1
            wait_until(lambda: len(receiver.rows()) == rows, PATIENCE_S, "it arrives", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["delivered"] == rows, PATIENCE_S, "it is settled")
            status = await_rest(daemon, PATIENCE_S, {(back, 0): 1})
            daemon.stop()
        found = [row for row in _arrived(receiver) if row["topic"] == back]
    assert (status["delivered"], status["duplicate"]) == (rows, 2 - rows)
    (first,) = _rows(rocketmq, [topic], 1)
    wanted = {name: first[name] for name in ("message_id", "tag", "keys", "value")} | {"reconsume_times": 1}
    assert [row | wanted for row in found] == found
    assert len(found) == rows - 1


POISON = b"\x00poison \xff"


@pytest.mark.parametrize(
    "place", ["dlq", "delay_level", *(pytest.param(one, marks=pytest.mark.proof) for one in ("state", "gone"))]
)
def test_a_held_message_that_is_refused_is_a_dead_letter(
    rocketmq: Node, topic: str, group: str, tmp_path: Path, place: str
) -> None:
    """Whole, wherever dead letters go; if the broker has another message in its place, it is in the state folder."""
    chosen: Any = {"state": "state", "delay_level": {"rocketmq": {"delay_level": 1}}}.get(place, {"rocketmq": "dlq"})
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, times=2 if place == "delay_level" else None)
        config = delayed_configuration(rocketmq, topic, group, receiver.url, dead_letters=chosen)
        config["sink"]["http"]["format"] = "ndjson"
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            poison = Message(POISON, tag="paid", keys="k1", properties={"kind": "POISON", **_due(10_000)})
            rocketmq.send(topic, [poison], queues=1)
            wait_until(lambda: daemon.status()["delayed"] == 1, PATIENCE_S, "it is held", detail=daemon.log_tail)
            (row,) = _rows(rocketmq, [topic], 1)
            if place == "gone":
                rocketmq.delete_topic(topic)
                rocketmq.create_topic(topic, 1)
                rocketmq.send(topic, [Message(b"another", tag="draft")], queues=1)
            dead = 2 if place == "delay_level" else 1
            wait_until(
                lambda: daemon.status()["dead_lettered"] == dead, PATIENCE_S, "it is refused", detail=daemon.log_tail
            )
            if place == "delay_level":
                wait_until(lambda: receiver.rows(), PATIENCE_S, "it comes again", detail=daemon.log_tail)
            daemon.stop()
        letters = _letters(daemon)
    if place in ("state", "gone"):
        ((letter, envelope),) = letters
        assert (letter.topic, letter.broker, letter.partition, letter.offset) == (topic, "broker-a", 0, 0)
        assert envelope == row | {"tag": None}
    else:
        assert letters == []
    if place == "dlq":
        with Reader(rocketmq, unique("group"), [f"%DLQ%{group}"]) as reader:
            assert reader.read(1) == [POISON]


def _letters(daemon: Daemon) -> list[tuple[StoredLetter, Any]]:
    with closing(Store(daemon.state_dir)) as store:
        return [(letter, orjson.loads(letter.envelope or b"{}")) for letter in store.letters.load(10)]


def test_a_recreated_topic_keeps_what_is_held(
    rocketmq: Node, topic: str, group: str, tmp_path: Path, delay: dict[str, Any]
) -> None:
    """Messages of the old topic come when they are due, and so do those at the same offsets of the new one."""
    with Receiver() as receiver:
        config = delayed_configuration(rocketmq, topic, group, receiver.url, delay=delay)
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            old = [Message(b"old %d" % number, tag="paid", properties=_due(9_000)) for number in range(3)]
            rocketmq.send(topic, old, queues=1)
            wait_until(lambda: daemon.status()["delayed"] == 3, PATIENCE_S, "they are held", detail=daemon.log_tail)
            daemon.stop()
            rocketmq.delete_topic(topic)
            rocketmq.create_topic(topic, 1)
            new = [Message(b"new %d" % number, tag="paid", properties=_due(9_000)) for number in range(2)]
            rocketmq.send(topic, new, queues=1)
            daemon.start()
            wait_until(lambda: len(receiver.rows()) == 5, PATIENCE_S, "all arrive", detail=daemon.log_tail)
            await_rest(daemon, PATIENCE_S)
            daemon.stop()
            assert daemon.events("topic.recreated")
    assert sorted(row["value"] for row in _arrived(receiver)) == ["new 0", "new 1", "old 0", "old 1", "old 2"]


def test_a_reset_delivers_again_and_holds_nothing_twice(
    rocketmq: Node, topic: str, group: str, tmp_path: Path, delay: dict[str, Any]
) -> None:
    """Held messages from the offset on are dropped, since they come again; those below it stay."""
    with Receiver() as receiver:
        with Daemon(tmp_path, delayed_configuration(rocketmq, topic, group, receiver.url, delay=delay)) as daemon:
            daemon.wait_ready()
            sent = [Message(b"%d" % number, tag="paid", properties=_due(9_000)) for number in range(4)]
            rocketmq.send(topic, sent, queues=1)
            wait_until(lambda: daemon.status()["delayed"] == 4, PATIENCE_S, "they are held", detail=daemon.log_tail)
            await_rest(daemon, PATIENCE_S, {(topic, 0): 4})
            rocketmq.reset(group, topic, 0, 2)
            wait_until(lambda: daemon.events("partition.reset"), PATIENCE_S, "it is taken", detail=daemon.log_tail)
            wait_until(lambda: len(receiver.rows()) >= 4, PATIENCE_S, "all arrive", detail=daemon.log_tail)
            await_rest(daemon, PATIENCE_S)
            daemon.stop()
        assert sorted(row[2] or 0 for row in receiver.rows()) == [0, 1, 2, 3]


@pytest.mark.proof
def test_kills_while_messages_fall_due_lose_and_repeat_nothing(rocketmq: Node, tmp_path: Path) -> None:
    """Killed 3 times while messages fall due, each arrives once, and none early."""
    assert kills(rocketmq, tmp_path, 8_000, 3, spread_s=10).exact


@pytest.mark.proof
@pytest.mark.parametrize("is_killed", [False, True], ids=["in order", "killed"])
def test_queues_that_move_to_another_member_and_back(rocketmq: Node, tmp_path: Path, is_killed: bool) -> None:
    """What each member held comes once, from its own disk, when it has the queue again."""
    assert moves(rocketmq, tmp_path, 800, is_killed=is_killed).exact


def test_a_held_message_is_shown_cancelled_and_released(rocketmq: Node, topic: str, group: str, tmp_path: Path) -> None:
    """By its place with the broker's name, also after a kill and without a daemon; it is shown as it would arrive."""
    due = _due(3_600_000)[DUE]
    with Receiver() as receiver:
        with Daemon(tmp_path, delayed_configuration(rocketmq, topic, group, receiver.url)) as daemon:
            daemon.wait_ready()
            for number in range(2):  # one by one: the broker may store those of one call in any order
                message = Message(b"%d" % number, tag="paid", keys="k1", properties={DUE: due})
                rocketmq.send(topic, [message], queues=1)
            wait_until(lambda: daemon.status()["delayed"] == 2, PATIENCE_S, "both are held", detail=daemon.log_tail)

            def run(command: str, *arguments: str) -> Result:
                return CliRunner().invoke(main, ["delay", command, "-c", str(daemon.config_path), *arguments])

            assert f"{topic}:broker-a:0:1" in run("list").output
            shown = orjson.loads(run("show", f"{topic}:broker-a:0:1", "--due", due).output)
            assert run("cancel", f"{topic}:broker-a:0:0", "--due", due).exit_code == 0
            listed = run("list", "--group", "paid").stdout
            daemon.kill9()
            assert run("list", "--group", "paid").stdout == listed
            assert orjson.loads(run("show", f"{topic}:broker-a:0:1", "--due", due).stdout) == shown
            daemon.start()
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 1, PATIENCE_S, "one is held", detail=daemon.log_tail)
            assert run("release", f"{topic}:broker-a:0:1", "--due", due).exit_code == 0
            wait_until(lambda: receiver.rows(), PATIENCE_S, "it arrives", detail=daemon.log_tail)
            await_rest(daemon, PATIENCE_S)
            daemon.stop()
        (row,) = _arrived(receiver)
    assert row["value"] == "1"
    assert {name: row[name] for name in row if name != "tag"} == {name: shown[name] for name in shown if name != "due"}
