"""What the pipeline on Spark gets to deliver, a receiver that compares all of it, and what is found. Starts nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from sidecar.state.store import Store
from tests.scenarios.exactly_once import configuration
from tests.support.audit import CheckingReceiver, StrikingReceiver, Tally, tally
from tests.support.kafka import Broker
from tests.support.receiver import Fault, Request
from tests.support.workload import POISON, Expected, Place, Workload

POISON_EVERY = 1_000


class ComparingReceiver(CheckingReceiver, StrikingReceiver):
    """The receiver, which refuses poison, and compares rows with what was produced, and repeats with the first of them.

    Args:
        expected: What was produced.

    Attributes:
        repeats: How many requests came under a key that had come before.
        differing: Keys that came with two bodies, and their sizes in bytes.
    """

    def __init__(self, expected: Expected) -> None:
        self.repeats = 0
        self.differing: dict[str, tuple[int, int]] = {}
        self._expected = expected
        self._first: dict[str, tuple[int, bytes]] = {}
        self._compared = threading.Lock()
        super().__init__(expected.prints)
        self.fail("refuse", status=400, marker=POISON.decode())

    def __enter__(self) -> ComparingReceiver:
        return self

    def fault_for(self, request: Request) -> Fault | None:
        """Compare, then go on as ever."""
        key, body = request.headers["idempotency-key"], (len(request.body), xxhash.xxh3_128_digest(request.body))
        with self._compared:
            self.repeats += key in self._first
            first = self._first.setdefault(key, body)
            if first != body:
                self.differing[key] = first[0], body[0]
        return super().fault_for(request)

    def tally(self) -> Tally:
        """What came against what must; unknown is also a key that stands for two bodies."""
        found = tally(self.rows(), alive(self._expected))
        found.unknown += [*self.wrong, *self.differing.items()]
        return found

    def grouped(self) -> Counter[tuple[Any, ...]]:
        """Group and row of all that came."""
        return Counter((part["group"], *row) for part in self.parts() for row in part["rows"])


def workload(topics: Sequence[str], partitions: int, count: int) -> Workload:
    """Messages of every kind: odd bytes, unwanted tags, 5 % produced twice with one id, poison."""
    return Workload(topics, partitions, count, poison_every=POISON_EVERY)


def dead(expected: Expected) -> set[Place]:
    """What must be dead-lettered."""
    return expected.poison & expected.first_of_each_id().keys()


def alive(expected: Expected) -> Mapping[Place, str | None]:
    """What must arrive, with the hashes of its values."""
    return {place: value for place, value in expected.first_of_each_id().items() if place not in expected.poison}


def config(broker: Broker, topics: Sequence[str], url: str, **sections: Any) -> dict[str, Any]:
    """A new consumer group, two tags in one group, duplicates by id, small batches, quick retries."""
    base: dict[str, Any] = {
        "tags": {"groups": {"money": "paid || refunded"}},
        "dedup": {"by": {"header": "id"}, "as": "int"},
        "batch": {"linger": "20ms", "max_messages": 100},
    }
    return configuration(broker, list(topics), url, **base) | sections


def dead_letters(state: Path) -> Counter[tuple[str, int, int, str, str]]:
    """Topic, partition, offset, group and reason of what lies in a state folder that nobody uses."""
    store = Store(state)
    try:
        found = store.letters.load(100_000)
        return Counter((one.topic, one.partition, one.offset, one.group_name, one.reason) for one in found)
    finally:
        store.close()


def assert_dead(state: Path, expected: Expected) -> None:
    """The poison lies in the state folder, each message of it once, and nothing else does."""
    found, wanted = Counter(one[:3] for one in dead_letters(state).elements()), Counter(dead(expected))
    assert found == wanted, f"missing {list(wanted - found)[:5]}, too much {list(found - wanted)[:5]}"
