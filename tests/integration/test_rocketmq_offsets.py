"""`sidecar offsets` and `sidecar explain` for the queues of a real RocketMQ, beside and between daemons."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.state.store import Store
from tests.scenarios.rocketmq_messages import PATIENCE_S, arrived, configuration
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until, write_config
from tests.support.receiver import Receiver
from tests.support.rocketmq import BROKER, Message, RocketMqNode
from tests.support.scene import await_rest

QUEUES = 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node of this file alone: it is restarted."""
    with RocketMqNode(tmp_path_factory.mktemp("offsets") / "node") as node:
        yield node


class Bench:
    """A daemon on a topic of two queues, a receiver, and the commands with the daemon's file."""

    def __init__(self, node: RocketMqNode, folder: Path, receiver: Receiver, **change: Any) -> None:
        self.node, self.receiver = node, receiver
        self.group, self.topic = unique("group"), node.create_topic(unique("topic"), QUEUES)
        config = configuration(node, self.topic, self.group, receiver.url, tags={"subscribe": "paid"}, **change)
        self.daemon = Daemon(folder, config)

    def send(self, count: int) -> None:
        """Send as many messages to each queue."""
        self.node.send(self.topic, [Message(b"%d" % i, tag="paid") for i in range(QUEUES * count)], queues=QUEUES)

    def deliver(self, count: int) -> None:
        """Send as many messages to each queue, and wait until they are delivered and committed."""
        self.send(count)
        if not self.daemon.running:
            self.daemon.start()
            self.daemon.wait_ready()
        ends = self.node.end_offsets(self.topic, QUEUES)
        wait_until(
            lambda: self.node.committed(self.group, self.topic, QUEUES) == ends, PATIENCE_S, "all is committed",
            detail=self.daemon.log_tail,
        )  # fmt: skip

    def run(self, *arguments: str, given: str | None = None) -> Result:
        """Run a command with the daemon's file."""
        command, subcommand, *rest = arguments
        return CliRunner().invoke(main, [command, subcommand, "-c", str(self.daemon.config_path), *rest], input=given)

    def reset(self, *arguments: str, given: str | None = None) -> Result:
        """Reset offsets."""
        return self.run("offsets", "reset", *arguments, given=given)

    def shown(self) -> list[tuple[int | None, int, int, int, str]]:
        """Committed offset, the log's bounds, lag and writer of each queue of the topic."""
        rows = json.loads(self.run("offsets", "show", "--json").stdout)["partitions"]
        keys = ("committed", "log_start", "log_end", "lag", "committed_by")
        return [tuple(row[key] for key in keys) for row in rows if row["topic"] == self.topic]

    def explained(self, queue: int, offset: int) -> dict[str, Any]:
        """What became of a message."""
        place = f"{self.topic}:{BROKER}:{queue}:{offset}"
        done = CliRunner().invoke(main, ["explain", "-c", str(self.daemon.config_path), place, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def await_times(self, times: dict[int, int]) -> None:
        """Wait until each queue's messages from these offsets on have arrived twice, and all others once."""
        ends = self.node.end_offsets(self.topic, QUEUES)
        wanted = Counter(
            {(queue, at): 1 + (at >= times.get(queue, end)) for queue, end in ends.items() for at in range(end)}
        )
        wait_until(
            lambda: not wanted - arrived(self.receiver, self.topic), PATIENCE_S, "they come again",
            detail=self.daemon.log_tail,
        )  # fmt: skip
        await_rest(self.daemon, PATIENCE_S)
        assert arrived(self.receiver, self.topic) == wanted


@pytest.fixture
def bench(node: RocketMqNode, tmp_path: Path) -> Iterator[Bench]:
    """A bench whose daemon ends with the test."""
    with Receiver() as receiver:
        bench = Bench(node, tmp_path, receiver)
        try:
            yield bench
        finally:
            if bench.daemon.running:
                bench.daemon.kill9()


def test_what_is_committed_is_shown(bench: Bench) -> None:
    """With the log's bounds, the lag, who committed it, and the members."""
    bench.deliver(5)
    assert len(json.loads(bench.run("offsets", "show", "--json").stdout)["members"]) == 1
    bench.daemon.stop()
    bench.send(1)
    assert bench.shown() == [(5, 0, 6, 1, "sidecar")] * QUEUES
    assert f"{bench.topic}:{BROKER}:1" in bench.run("offsets", "show").stdout
    bench.node.commit(bench.group, bench.topic, 0, 2)
    assert bench.shown()[0] == (2, 0, 6, 4, "another program or host")


@pytest.mark.parametrize("end", ["planned", "killed"])
def test_a_reset_delivers_again_from_there(bench: Bench, end: str) -> None:
    """It tells beforehand how many come again; the next daemon delivers exactly these, under new names."""
    bench.deliver(5)
    bench.daemon.stop() if end == "planned" else bench.daemon.kill9()
    done = bench.reset("--to", "2", "--partition", "1", "--yes")
    assert done.exit_code == 0, done.output
    assert "up to 3 messages come again, up to 0 are passed over" in done.stdout
    bench.daemon.start()
    bench.await_times({1: 2})


def test_a_reset_counts_also_if_the_broker_was_restarted(bench: Bench) -> None:
    """Else the daemon could not tell it from commits that the broker lost, and would go on from its state folder."""
    bench.deliver(5)
    bench.daemon.kill9()
    bench.node.kill()
    bench.node.start()
    assert bench.reset("--to", "4", "--partition", "0", "--yes").exit_code == 0
    bench.daemon.start()
    bench.await_times({0: 4})
    assert 0 not in {event["partition"] for event in bench.daemon.events("commit.behind")}


def test_a_reset_to_the_end_passes_messages_over(bench: Bench) -> None:
    """They are counted, and what comes later is delivered."""
    bench.deliver(2)
    bench.daemon.stop()
    bench.send(3)
    assert "up to 0 messages come again, up to 6 are passed over" in bench.reset("--to", "latest", "--yes").stdout
    bench.deliver(1)
    assert sorted(arrived(bench.receiver, bench.topic)) == [(queue, at) for queue in range(QUEUES) for at in (0, 1, 5)]


def test_a_dry_run_and_a_no_change_nothing(bench: Bench) -> None:
    """Both tell what would come of it."""
    bench.deliver(5)
    bench.daemon.stop()
    for arguments, given in ((["--dry-run"], None), ([], "n\n")):
        done = bench.reset("--to", "earliest", *arguments, given=given)
        assert done.exit_code == 0
        assert "up to 10 messages come again" in done.stdout
    assert bench.shown() == [(5, 0, 5, 0, "sidecar")] * QUEUES


def test_a_reset_is_refused_while_a_member_is_alive(bench: Bench) -> None:
    """The member is named, and nothing changes."""
    bench.deliver(1)
    done = bench.reset("--to", "earliest", "--yes")
    assert done.exit_code == 69
    assert "has members: " in done.stderr
    assert bench.shown() == [(1, 0, 1, 0, "sidecar")] * QUEUES


def test_a_reset_is_refused_while_a_process_has_the_state_folder(bench: Bench) -> None:
    """A daemon that is cut off is no member, and would go on where it was: nothing changes at the broker either."""
    bench.deliver(1)
    bench.daemon.stop()
    with closing(Store(bench.daemon.state_dir)):
        done = bench.reset("--to", "earliest", "--yes")
    assert (done.exit_code, "is in use by" in done.stderr) == (73, True)
    assert bench.shown() == [(1, 0, 1, 0, "sidecar")] * QUEUES


def test_a_reset_to_a_time_finds_the_first_message_from_then_on(bench: Bench) -> None:
    """After all of them it is the end of the log. A group that no broker knows is told, and what creates it."""
    bench.send(3)
    assert "updateSubGroup" in bench.reset("--to", "latest", "--yes").stderr
    bench.node.create_group(bench.group)
    between_ms = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > between_ms, 5, "a later millisecond")
    bench.send(2)
    for at_ms, offset in ((between_ms, 3), (between_ms + 3_600_000, 5)):
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        done = bench.reset("--to", at, "--yes")
        assert done.exit_code == 0, done.output
        assert [row[0] for row in bench.shown()] == [offset] * QUEUES


@pytest.mark.parametrize(("client", "place"), [("grpc", "endpoints"), ("native", "name_servers")])
def test_a_client_without_queues_is_refused_in_words(tmp_path: Path, client: str, place: str) -> None:
    """The reason, and what to do instead."""
    native = {"native_path": str(tmp_path)} if client == "native" else {}
    source = {"rocketmq": {"client": client, place: "localhost:1", "group": "g", "topics": ["orders"], **native}}
    config = {"source": source, "sink": {"console": {}}, "state": {"dir": str(tmp_path)}}
    path = write_config(tmp_path / "sidecar.yaml", config)
    done = CliRunner().invoke(main, ["offsets", "show", "-c", str(path)])
    assert (done.exit_code, "dropped as duplicates" in done.stderr) == (78, True)


def test_each_fate_of_a_message_is_told(bench: Bench) -> None:
    """Filtered, settled, a dead letter, being sent with its attempts, unread and not produced."""
    daemon, receiver = bench.daemon, bench.receiver
    receiver.fail("refuse", status=400, marker="POISON")
    poison = Message(b"x", "paid", queue=0, properties={"a": "POISON"})
    for one in (Message(b"lost", "draft", queue=0), Message(b"fine", "paid", queue=0), poison):
        bench.node.send(bench.topic, [one])  # one by one: a broker stores messages that come together in any order
    daemon.start()
    daemon.wait_ready()
    await_rest(daemon, PATIENCE_S, {(bench.topic, 0): 3})
    receiver.fail("status", status=503, group="paid")
    bench.node.send(bench.topic, [Message(b"stuck", "paid", queue=0)])
    wait_until(lambda: daemon.status()["retrying"], PATIENCE_S, "the group fails", detail=daemon.log_tail)
    wait_until(lambda: bench.explained(0, 3)["outcome"] == "fixed", PATIENCE_S, "its part is committed")
    assert (bench.explained(0, 0)["outcome"], bench.explained(0, 0)["tags"]) == ("filtered", ["draft"])
    assert (bench.explained(0, 1)["outcome"], bench.explained(0, 1)["group"]) == ("settled", "paid")
    letter = bench.explained(0, 2)
    assert (letter["outcome"], letter["letter"], letter["broker"]) == ("dead letter", 1, BROKER)
    assert bench.explained(0, 3)["failing"]["reason"].startswith("HTTP 503")
    daemon.kill9()
    bench.node.send(bench.topic, [Message(b"later", "paid", queue=0)])
    assert [bench.explained(0, offset)["outcome"] for offset in (4, 5)] == ["unread", "not produced"]


def test_a_place_without_its_broker_is_enough_if_there_is_one(bench: Bench) -> None:
    """As TOPIC:QUEUE:OFFSET; a queue that nobody reads is told."""
    bench.send(1)
    for queue, code in ((1, 0), (2, 69)):
        place = f"{bench.topic}:{queue}:0"
        done = CliRunner().invoke(main, ["explain", "-c", str(bench.daemon.config_path), place], prog_name="sidecar")
        assert (done.exit_code, f"{bench.topic}:{BROKER}:1:0: unread" in done.stdout) == (code, code == 0), done.output


def test_a_delayed_message_is_asked_for(node: RocketMqNode, tmp_path: Path) -> None:
    """The daemon that holds it is asked, by queue and broker."""
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    with Receiver() as receiver:
        bench = Bench(node, tmp_path, receiver, delay={"store": "local"})
        later = {"sidecar-deliver-at": str(due_ms)}
        node.send(bench.topic, [Message(b"later", "paid", queue=1, properties=later)], queues=QUEUES)
        with bench.daemon as daemon:
            daemon.wait_ready()
            wait_until(
                lambda: bench.explained(1, 0)["outcome"] == "held", PATIENCE_S, "it is held", detail=daemon.log_tail
            )
            assert bench.explained(1, 0)["due_ms"] == due_ms
            daemon.stop()
