"""Messages with every trouble at once for the pipeline on Spark, and what must arrive of them. Starts nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.state.store import Store
from tests.support.kafka import Broker, Outgoing
from tests.support.receiver import Receiver, value_hash
from tests.support.workload import Place

TAGS = ("a", "b", "c", "x")
POISON = b"poison"


@dataclass
class Mixture:
    """What was made, and what must become of it."""

    messages: list[Outgoing] = field(default_factory=list)
    wanted: dict[Place, str | None] = field(default_factory=dict)
    dead: set[Place] = field(default_factory=set)
    filtered: int = 0
    duplicate: int = 0


def mixture(topic: str, count: int, partitions: int) -> Mixture:
    """A quarter is not wanted, a tenth has the id of an earlier message of its partition, six are poison."""
    made = Mixture()
    seen: list[set[int]] = [set() for _ in range(partitions)]
    for i in range(count):
        partition, offset = i % partitions, i // partitions
        tag = TAGS[i // partitions % len(TAGS)]
        poison = i % (count // 6) == 5
        number = i - 7 * len(TAGS) * partitions if i % 10 == 3 and not poison and i > 1_000 else i
        value = b"%s %d" % (POISON if poison else b"value", i)
        headers = [("id", b"%d" % number), ("tag", tag.encode())]
        made.messages.append(Outgoing(partition, value, b"key", headers))
        if tag == "x":
            made.filtered += 1
        elif number in seen[partition]:
            made.duplicate += 1
        elif poison:
            made.dead.add((topic, partition, offset))
        else:
            made.wanted[topic, partition, offset] = value_hash(value)
        if tag != "x":
            seen[partition].add(number)
    return made


def config(kafka: Broker, topic: str, group: str, url: str, **change: Any) -> dict[str, Any]:
    """A group for each tag, duplicates by id, quick retries."""
    base: dict[str, Any] = {
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}},
        "tags": {"from": {"header": "tag"}, "subscribe": "a || b || c", "groups": {"both": "b || c"}},
        "dedup": {"by": {"header": "id"}},
        "batch": {"linger": "20ms", "max_messages": 50},
        "sink": {"http": {"url": url, "timeout": "2s"}},
        "retry": {"backoff": "10ms", "backoff_max": "100ms"},
    }
    return base | change


def dead_letters(state: Path) -> Counter[tuple[str, int, int, str, str]]:
    """Topic, partition, offset, group and reason of what lies in a state folder that nobody uses."""
    store = Store(state)
    try:
        found = store.dead_letters(1_000)
        return Counter((one.topic, one.partition, one.offset, one.group_name, one.reason) for one in found)
    finally:
        store.close()


def grouped(receiver: Receiver) -> Counter[tuple[Any, ...]]:
    """Group and row of all that a receiver has."""
    return Counter((part["group"], *row) for part in receiver.parts() for row in part["rows"])


def assert_repeats_are_equal(receiver: Receiver) -> int:
    """Whatever came more than once under a name came byte for byte; gives back how often something was repeated."""
    bodies: dict[tuple[str, str], set[bytes]] = {}
    for headers, body in zip(receiver.headers, receiver.bodies, strict=True):
        bodies.setdefault((headers["sidecar-group"], headers["sidecar-parts"]), set()).add(body)
    differing = [name for name, found in bodies.items() if len(found) > 1]
    assert not differing, f"{len(differing)} names stand for two bodies, the first: {differing[0]}"
    return len(receiver.bodies) - len(bodies)
