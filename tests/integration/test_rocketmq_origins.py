"""`dedup.by: offset_msg_id` on a real RocketMQ: what the retry topic brings again is a duplicate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.ledger import ledger
from tests.support.jars import native_folder
from tests.support.kafka import unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.rocketmq_reader import Reader

PATIENCE_S = 90.0
SENT = [b"message %d" % i for i in range(40)]
AGAIN = 10


class World:
    """A topic and a group of their own, and what arrived of what was sent."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.topic = node.create_topic(unique("topic"), 4)
        self.group = node.create_group(unique("group"))

    def configuration(self, url: str, client: str, **dedup: Any) -> dict[str, Any]:
        """A daemon's, with ids by origin."""
        native = {"native_path": str(native_folder())} if client == "native" else {}
        source = {"client": client, "name_servers": self.node.name_server, "group": self.group, "topics": [self.topic]}
        return {
            "source": {"rocketmq": {**source, **native}},
            "dedup": {"by": "offset_msg_id", **dedup},
            "batch": {"linger": "50ms"},
            "sink": {"http": {"url": url, "timeout": "5s"}},
            "retry": {"backoff": "50ms", "backoff_max": "200ms"},
        }

    def send(self) -> list[int]:
        """Send; the commit-log offsets of the first messages."""
        self.node.send(self.topic, [Message(body) for body in SENT])
        with Reader(self.node, unique("group"), [self.topic]) as reader:
            reader.read(len(SENT))
            found = [message for messages in reader.messages.values() for message in messages]
        return [message.position for message in found][:AGAIN]

    def hand_back(self, positions: Sequence[int]) -> None:
        """Have the broker copy these to the retry topic, as a consumer of the group does that failed."""
        for position in positions:
            self.node.send_back(self.group, self.topic, position, level=1)


@pytest.fixture
def world(rocketmq: Node) -> World:
    """A topic and a group of the shared node."""
    return World(rocketmq)


def arrived(receiver: Receiver) -> Counter[str | None]:
    """How often each body was stored."""
    return Counter(row[3] for row in receiver.rows())


def await_again(daemons: Sequence[Daemon], receiver: Receiver, duplicates: int = AGAIN) -> None:
    """Wait until all that was handed back came again, and nothing is under way."""
    wait_until(
        lambda: sum(one.status()["duplicate"] for one in daemons) >= duplicates
        and not any(one.status()["in_flight"] for one in daemons),
        PATIENCE_S, "it came again", detail=lambda: ([one.status() for one in daemons], arrived(receiver)),
    )  # fmt: skip


ONCE = Counter(value_hash(body) for body in SENT)


@pytest.mark.parametrize("client", ["remoting", "native"])
def test_what_was_delivered_is_a_duplicate_when_it_comes_again(world: World, client: str, tmp_path: Path) -> None:
    """Handed back while the daemon is dead, and while it runs: each message arrives once, what is new too."""
    with Receiver() as receiver, Daemon(tmp_path, world.configuration(receiver.url, client)) as daemon:
        daemon.wait_ready()
        positions = world.send()
        wait_until(lambda: arrived(receiver) == ONCE, PATIENCE_S, "all arrive", detail=daemon.log_tail)
        world.hand_back(positions[:5])
        await_again([daemon], receiver, 5)
        daemon.kill9()
        world.hand_back(positions[5:])
        daemon.start()
        daemon.wait_ready()
        await_again([daemon], receiver, 5)
        world.node.send(world.topic, [b"new"])
        wait_until(lambda: len(receiver.rows()) == len(SENT) + 1, PATIENCE_S, "what is new arrives")
        daemon.stop()
        assert arrived(receiver) == ONCE + Counter([value_hash(b"new")])


@pytest.mark.parametrize("client", ["remoting", pytest.param("native", marks=pytest.mark.proof)])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
def test_what_was_in_flight_at_a_kill_goes_out_once(world: World, client: str, stored: bool, tmp_path: Path) -> None:
    """The origin goes out under the name it had, and what was handed back meanwhile is its duplicate."""
    with Receiver() as receiver, Daemon(tmp_path, world.configuration(receiver.url, client)) as daemon:
        receiver.fail("lost" if stored else "status")
        daemon.wait_ready()
        positions = world.send()
        wait_until(
            lambda: daemon.status()["in_flight"] == len(SENT) and receiver.stats["requests"] > 8,
            PATIENCE_S, "all are in flight", detail=daemon.status,
        )  # fmt: skip
        world.hand_back(positions)
        daemon.kill9()
        receiver.control({"faults": []})
        daemon.start()
        daemon.wait_ready()
        await_again([daemon], receiver)
        daemon.stop()
        assert arrived(receiver) == ONCE


def test_with_a_ledger_queues_may_move(world: World, postgresql: Database, tmp_path: Path) -> None:
    """Whichever member has the retry topic by then knows what another one has delivered."""
    shared = ledger(postgresql, postgresql.schema(), "3m")["ledger"]
    with Receiver() as receiver:
        config = world.configuration(receiver.url, "remoting", ledger=shared)
        with Daemon(tmp_path, config, name="one") as one:
            one.wait_ready()
            positions = world.send()
            wait_until(lambda: arrived(receiver) == ONCE, PATIENCE_S, "all arrive", detail=one.log_tail)
            with Daemon(tmp_path, config, name="two") as two:
                two.wait_ready()
                world.hand_back(positions[:5])
                await_again([one, two], receiver, 5)
                before = two.status()["duplicate"]
                one.stop()
                world.hand_back(positions[5:])
                await_again([two], receiver, before + 5)
        assert arrived(receiver) == ONCE
