"""`sidecar dead-letters` with RocketMQ: letters in the group's `%DLQ%` topic, and letters that go to a topic again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.core.records import Details, TopicPartition
from sidecar.letters.send import AT_ONCE
from sidecar.sinks.formats import envelope_row
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import Replays
from sidecar.state.store import Store
from tests.scenarios.rocketmq_messages import PATIENCE_S, configuration
from tests.support.kafka import unique
from tests.support.letters import Crash, letter
from tests.support.process import Daemon, wait_until, write_config
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import BROKER, Message, Node
from tests.support.rocketmq_reader import Reader
from tests.support.scene import await_rest

LETTERS = 250
"""More than two parts of those that are sent at once."""


class Bench:
    """A daemon on a topic of one queue, a receiver that refuses what has the mark, and the commands."""

    def __init__(self, node: Node, folder: Path, receiver: Receiver, **change: Any) -> None:
        self.node, self.receiver = node, receiver
        self.group, self.topic = unique("group"), node.create_topic(unique("topic"), 1)
        self.dlq = f"%DLQ%{self.group}"
        receiver.fail("refuse", status=400, marker="POISON")
        change = {"dead_letters": {"rocketmq": "dlq"}, "tags": {"subscribe": "*"}, **change}
        self.daemon = Daemon(folder, configuration(node, self.topic, self.group, receiver.url, **change))

    def refuse(self, bodies: list[bytes]) -> None:
        """Have messages with these bodies become dead letters, and one that is good besides."""
        mark = {"kind": "POISON"}
        for body in bodies:
            self.node.send(self.topic, [Message(body, "paid", f"key {len(bodies)}", 0, mark)])
        self.node.send(self.topic, [Message(b"good", "paid", queue=0)])
        if not self.daemon.running:
            self.daemon.start()
            self.daemon.wait_ready()
        status = await_rest(self.daemon, PATIENCE_S, {(self.topic, 0): self.node.end_offsets(self.topic, 1)[0]})
        assert status["dead_lettered"] == len(bodies)

    def run(self, command: str, *arguments: str, given: str | None = None) -> Result:
        """Run a command with the daemon's file."""
        words = ["dead-letters", command, "-c", str(self.daemon.config_path), *arguments]
        return CliRunner().invoke(main, words, input=given, prog_name="sidecar")

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """The letters that `list` has."""
        done = self.run("list", "--json", *arguments)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refuses_no_more(self) -> None:
        """Let the receiver take everything."""
        self.receiver.control({"faults": []})

    def copy_again(self, offset: int) -> None:
        """Have the broker copy a message of the topic to the dead letters once more, as a daemon that crashed does."""
        with Reader(self.node, self.group, [self.topic], client_id="copier") as reader:
            (tp,) = reader.own(1, self.topic)
            assert reader.source.send_back(tp, offset, -1)


@pytest.fixture
def bench(rocketmq: Node, tmp_path: Path) -> Iterator[Bench]:
    """A bench whose daemon ends with the test."""
    with Receiver() as receiver:
        bench = Bench(rocketmq, tmp_path, receiver)
        try:
            yield bench
        finally:
            if bench.daemon.running:
                bench.daemon.kill9()


def test_letters_of_the_group_s_topic_are_listed_and_shown(bench: Bench) -> None:
    """Each with its place there, its group and the whole message; `--topic` chooses by the topic it came from."""
    bench.refuse([b"\0one", b"two"])
    letters = bench.listed()
    assert [(one["topic"], one["broker"], one["offset"], one["group"]) for one in letters] == [
        (bench.dlq, BROKER, offset, "paid") for offset in (0, 1)
    ]
    shown = json.loads(bench.run("show", str(letters[0]["id"])).stdout)
    assert (shown["message"]["value"], shown["message"]["properties"]["RETRY_TOPIC"]) == ("\0one", bench.topic)
    assert "message.dead_lettered" in shown["reason"]
    assert len(bench.listed("--topic", bench.topic)) == 2
    assert bench.listed("--topic", "another") == bench.listed("--group", "refunded") == []
    assert [one["id"] for one in bench.listed("--after", str(letters[0]["id"]))] == [letters[1]["id"]]


def test_a_group_without_dead_letters_has_none(bench: Bench) -> None:
    """Brokers create the topic with the first of them."""
    bench.refuse([])
    assert bench.listed() == []


def test_purge_is_refused_in_words(bench: Bench) -> None:
    """Only the broker deletes, by its own time."""
    bench.refuse([b"one"])
    done = bench.run("purge", "--yes")
    assert (done.exit_code, "fileReservedTime" in done.stderr) == (64, True)
    assert len(bench.listed()) == 1


def test_replayed_letters_arrive_once_and_are_listed_no_more(bench: Bench) -> None:
    """What the receiver refuses again stays; the next replay has only that."""
    bench.refuse([b"one", b"two", b"POISON three"])
    bench.receiver.control({"faults": []})
    bench.receiver.fail("refuse", status=400, marker="POISON three")
    assert bench.run("replay", "--yes").stdout == "2 dead letters were sent, 1 stay\n"
    assert len(bench.listed()) == 1
    bench.refuses_no_more()
    assert bench.run("replay", "--yes").stdout == "1 dead letters were sent, 0 stay\n"
    assert bench.listed() == []
    wanted = Counter(map(value_hash, [b"one", b"two", b"POISON three", b"good"]))
    assert Counter(row[3] for row in bench.receiver.rows()) == wanted


def test_copies_of_one_origin_go_once(bench: Bench) -> None:
    """In one replay, and in a later one."""
    bench.refuse([b"one"])
    bench.daemon.stop()
    bench.copy_again(0)
    bench.refuses_no_more()
    assert len(bench.listed()) == 1
    assert bench.run("replay", "--yes").stdout == "1 dead letters were sent, 0 stay\n"
    bench.copy_again(0)
    assert bench.node.end_offsets(bench.dlq, 1) == {0: 3}
    assert bench.listed() == []


def test_letters_that_go_to_the_topic_are_delivered_as_new_messages(bench: Bench) -> None:
    """With body, tag, keys and properties as they were; what may come twice is told before the question."""
    bench.refuse([b"\0one", b"two"])
    bench.refuses_no_more()
    done = bench.run("replay", "--to", "topic", given="y\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("2 dead letters were sent, 0 stay\n")
    assert "up to 2 messages that were in flight may come twice" in done.stderr
    assert bench.listed() == []
    wait_until(lambda: len(bench.receiver.rows()) == 3, PATIENCE_S, "they are delivered", detail=bench.daemon.log_tail)
    rows = {row["offset"]: row for body in bench.receiver.bodies for row in map(json.loads, body.splitlines())}
    first, again = rows[3], rows[4]
    assert sorted((first["value"], again["value"])) == ["\0one", "two"]
    assert (first["topic"], first["tag"], first["key"]) == (bench.topic, "paid", "key 2")
    names = first["properties"].keys()
    assert "kind" in names
    assert not names & {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY"}


def test_a_kill_sends_at_most_what_was_in_flight_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before what brokers acknowledged is recorded: only this part is there twice, and none lacks."""
    with closing(Store(bench.daemon.state_dir)) as store:
        store.letters.put([stored(bench.topic, i) for i in range(LETTERS)])
    end, ended = Replays.end_part, []

    def killed(self: Replays, *arguments: Any) -> None:
        ended.append(arguments)
        if len(ended) == 2:
            raise Crash
        end(self, *arguments)

    command = ["replay", "--in", "state", "--to", "topic", "--rate", "10000", "--yes"]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Replays, "end_part", killed)
        bench.run(*command)
    assert bench.run(*command).stdout == f"{LETTERS - AT_ONCE} dead letters were sent, 0 stay\n"
    with Reader(bench.node, unique("group"), [bench.topic]) as reader:
        found = Counter(reader.read(LETTERS + AT_ONCE))
    assert sorted(found) == sorted(b"%d" % i for i in range(LETTERS))
    assert Counter(found.values()) == {1: LETTERS - AT_ONCE, 2: AT_ONCE}


def stored(topic: str, offset: int) -> StoredLetter:
    """A dead letter as a daemon stores it."""
    tp, details = TopicPartition(topic, 0, BROKER), Details(b"id", "", [], 0)
    envelope = envelope_row(tp, offset, 5, None, (), [("TAGS", b"paid"), ("DELAY", b"3")], b"%d" % offset, details)
    return letter(offset, topic=topic, partition=0, broker=BROKER, envelope=envelope)


def test_a_topic_that_is_gone_is_told(bench: Bench) -> None:
    """The letters stay."""
    bench.refuse([b"one"])
    bench.daemon.stop()
    done = CliRunner().invoke(
        main, ["dead-letters", "replay", "-c", str(moved(bench)), "--to", "topic", "--yes"], prog_name="sidecar"
    )
    assert (done.exit_code, f"{bench.topic} of these dead letters no longer exists" in done.stderr) == (69, True)
    assert len(bench.listed()) == 1


def moved(bench: Bench) -> Path:
    """A file that reads another topic; the one of the letters is deleted."""
    other = bench.node.create_topic(unique("topic"), 1)
    bench.node.delete_topic(bench.topic)
    rocketmq = {**bench.daemon.config["source"]["rocketmq"], "topics": [other]}
    path = bench.daemon.config_path
    return write_config(path, {**bench.daemon.config, "source": {"rocketmq": rocketmq}})


def test_grpc_is_refused_in_words(tmp_path: Path) -> None:
    """It has no brokers to send to, and no name servers to ask."""
    source = {"rocketmq": {"client": "grpc", "endpoints": "localhost:1", "group": "g", "topics": ["orders"]}}
    config = {"source": source, "sink": {"http": {"url": "http://localhost:1/"}}, "state": {"dir": str(tmp_path)}}
    path = write_config(tmp_path / "sidecar.yaml", config)
    done = CliRunner().invoke(main, ["dead-letters", "replay", "-c", str(path), "--to", "topic"])
    assert (done.exit_code, "has only proxies" in done.stderr) == (78, True)
