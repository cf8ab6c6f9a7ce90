"""What `sidecar spark run` reads from RocketMQ, and what must come of it. Starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.audit import Tally, tally
from tests.support.kafka import unique
from tests.support.produce import Outgoing
from tests.support.receiver import Receiver, Request, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.spark.deliveries import ComparingReceiver
from tests.support.spark.tables import Kind, into
from tests.support.workload import POISON, WANTED, Expected, Workload

QUEUES = 4
SUBSCRIBED = " || ".join(WANTED)
COMPRESSIONS = ("", "", "", "zlib", "lz4", "zstd")


class QueueReceiver(ComparingReceiver):
    """The receiver that compares repeats; rows of RocketMQ are compared by place and body alone."""

    def store(self, request: Request, marker: bytes = b"") -> list[int]:
        """Store."""
        return Receiver.store(self, request, marker)


def source(node: Node, topic: str, **keys: Any) -> dict[str, Any]:
    """A topic for a new group."""
    return {"rocketmq": {"name_servers": node.name_server, "group": unique("spark"), "topics": [topic], **keys}}


def http_config(read: dict[str, Any], url: str) -> dict[str, Any]:
    """Five of eight tags, two of them in one group, duplicates by id, quick retries, to a receiver."""
    return {
        "source": read,
        "tags": {"subscribe": SUBSCRIBED, "groups": {"money": "paid || refunded"}},
        "dedup": {"by": {"header": "id"}, "as": "int"},
        "batch": {"linger": "20ms", "max_messages": 100},
        "sink": {"http": {"url": url}},
        "retry": {"backoff": "20ms", "backoff_max": "500ms"},
    }


def rocketmq_config(read: dict[str, Any], folder: Path, kind: Kind, **table: Any) -> dict[str, Any]:
    """Five of eight tags, duplicates by id, into a table in the folder."""
    return {"source": read, "tags": {"subscribe": SUBSCRIBED}} | into(folder, kind, **table)


def tally_bodies(found: Iterable[dict[str, Any]], expected: Expected) -> Tally:
    """Rows of a table against the first wanted message of each id, by place and body."""
    told = ((row["topic"], row["partition"], row["offset"], value_hash(row["value"])) for row in found)
    return tally(told, expected.first_of_each_id())


def waiting(node: Node, messages: int, *, seed: int = 1, poison_every: int = 0) -> tuple[str, Expected]:
    """Messages in a new topic, some of them compressed: 5 % with a repeated id, five of eight tags wanted."""
    topic = node.create_topic(unique("spark"), QUEUES)
    work = Workload([topic], QUEUES, messages, seed=seed, odd=False, poison_every=poison_every)
    expected = Expected()
    send(node, topic, (one for _, one in work.some(messages)), expected)
    return topic, expected


def send(node: Node, topic: str, outgoing: Iterable[Outgoing], expected: Expected) -> None:
    """Send these, and note where each of them is: the broker does not keep the order of what is sent at once."""
    produced = list(outgoing)
    places = node.send(topic, map(_message, range(len(produced)), produced), queues=QUEUES)
    for (queue, offset), one in zip(places, produced, strict=True):
        headers = dict(one.headers or ())
        expected.count += 1
        if (headers["tag"] or b"").decode() not in WANTED:
            continue
        place = (topic, queue, offset)
        expected.wanted[place] = value_hash(one.value)
        expected.ids[place] = headers["id"] or b""
        if (one.value or b"").startswith(POISON):
            expected.poison.add(place)


def _message(number: int, one: Outgoing) -> Message:
    headers = {name: (value or b"").decode() for name, value in one.headers or ()}
    compress = COMPRESSIONS[number % len(COMPRESSIONS)]
    return Message(one.value or b"", headers["tag"], "", one.partition, {"id": headers["id"]}, compress)
