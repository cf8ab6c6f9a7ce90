"""Messages of RocketMQ through the daemon, and what of them must arrive."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.support.audit import Tally, tally
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.scene import await_rest
from tests.support.workload import Place

QUEUES = 8


TAGS = ("created", "paid", "refunded", "shipped", "returned", "probe", "test", "draft")


WANTED = TAGS[:5]


PATIENCE_S = 120.0


def configuration(node: Node, topic: str, group: str, url: str, **change: Any) -> dict[str, Any]:
    """Small batches of five tags of eight, to a receiver."""
    return {
        "source": {"rocketmq": {"name_servers": node.name_server, "group": group, "topics": [topic]}},
        "tags": {"subscribe": " || ".join(WANTED)},
        "batch": {"max_messages": 200, "linger": "50ms"},
        "sink": {"http": {"url": url, "timeout": "20s"}},
        "retry": {"backoff": "50ms", "backoff_max": "500ms"},
        **change,
    }


class Flow:
    """Messages of a topic, and what of them must arrive.

    Args:
        node: The node.
        topic: New and empty.
        giants: Every so many messages one of 1 MiB comes, and every fourth of these of nearly 4 MiB; 0 for none.
    """

    def __init__(self, node: Node, topic: str, giants: int = 0) -> None:
        self.wanted: Counter[tuple[int, int]] = Counter()
        self.hashes: dict[tuple[int, int], str | None] = {}
        self.sent = 0
        self._giants = giants
        self._node = node
        self._topic = topic
        self._random = random.Random(1)

    def send(self, count: int) -> None:
        """Send so many more."""
        for at in range(0, count, 1_000):
            messages = [self._message(self.sent + i) for i in range(min(1_000, count - at))]
            places = self._node.send(self._topic, messages, queues=QUEUES)
            self.hashes |= {
                place: value_hash(one.body) for place, one in zip(places, messages, strict=True) if one.tag in WANTED
            }
            self.sent += len(messages)
        self.wanted = Counter(self.hashes.keys())

    def _message(self, number: int) -> Message:
        """Any bytes, NUL among them."""
        size = number % 100
        if self._giants and number % self._giants == 0:
            size = (4 << 20) - 2_000 if number // self._giants % 4 == 3 else 1 << 20
        return Message(b"\0%d " % number + self._random.randbytes(size), tag=self._random.choice(TAGS))

    def missing(self, receiver: Receiver) -> int:
        """How many of the wanted have not arrived."""
        return (self.wanted - arrived(receiver, self._topic)).total()

    def tally(self, receiver: Receiver) -> Tally:
        """What came of the topic, by place and body, against what is wanted."""
        wanted: dict[Place, str | None] = {(self._topic, *place): value for place, value in self.hashes.items()}
        return tally((row for row in receiver.rows() if row[0] == self._topic), wanted)


def arrived(receiver: Receiver, topic: str) -> Counter[tuple[int, int]]:
    """How often each queue and offset was stored."""
    return Counter((row[1], row[2] or 0) for row in receiver.rows() if row[0] == topic)


def await_all(daemon: Daemon, flow: Flow, receiver: Receiver) -> None:
    """Wait until all has arrived and is settled; the books balance."""
    wait_until(lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived", detail=daemon.log_tail)
    await_rest(daemon, PATIENCE_S)


def owned(member: Daemon) -> set[int]:
    """The queues of the topic that a member has; none while it does not answer."""
    try:
        partitions = member.status()["partitions"]
    except AssertionError:
        return set()
    return {one["partition"] for one in partitions if one["lag"] is not None and not one["topic"].startswith("%")}
