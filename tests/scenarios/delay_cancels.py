"""Messages with names, and messages that cancel them, also while the daemon is killed."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER
from tests.scenarios.delayed import HEADER, PARTITIONS, Dues, counted
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon
from tests.support.receiver import Receiver

LOOK_S = 0.1
"""From one look at what is committed to the next."""
DUE_MS = (2_000, 20_000)
"""After so long, messages of a round are due."""
LATEST_MS = 3_000
"""Messages that are due so soon are not cancelled."""


def named(value: bytes, due_ms: int, name: bytes, partition: int = 0) -> Outgoing:
    """A message that is held."""
    return Outgoing(partition, value, None, [("tag", b"a"), (HEADER, b"%d" % due_ms), (NAME_HEADER, name)])


def cancelling(*names: bytes, partition: int = 0) -> Outgoing:
    """A message that cancels those with these names."""
    return Outgoing(partition, b"cancels", None, [("tag", b"a"), *((CANCEL_HEADER, name) for name in names)])


class Cancellers:
    """Produces named messages and what cancels some of them, and knows which are cancelled for good.

    Args:
        broker: The broker.
        topic: Has `PARTITIONS`; it is empty.
        group: The daemon's consumer group.
        chance: Chooses due times, and what is cancelled.
    """

    def __init__(self, broker: Broker, topic: str, group: str, chance: random.Random) -> None:
        self._broker, self._topic, self._chance = broker, topic, chance
        self._dues: list[int] = []
        self._ends = [0] * PARTITIONS
        """The next offset of each partition."""
        self._cancelled: dict[int, int] = {}
        """By message, the offset of its canceller."""
        self._final: set[int] = set()
        self._client = ck.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})

    @property
    def dues(self) -> Dues:
        """What was produced."""
        return Dues(self._topic, self._dues)

    def produce(self, messages: int) -> None:
        """Produce messages, and then cancel as many as a third of them, of all that are not due soon."""
        now_ms = time.time_ns() // 1_000_000
        first = len(self._dues)
        self._dues += [now_ms + self._chance.randint(*DUE_MS) for _ in range(messages)]
        sent = [self._named(number) for number in range(first, len(self._dues))]
        later = [n for n, due_ms in enumerate(self._dues) if due_ms > now_ms + LATEST_MS and n not in self._cancelled]
        sent += [self._cancelling(number) for number in self._chance.sample(later, min(len(later), messages // 3))]
        produce(self._broker.bootstrap, self._topic, sent)

    def _named(self, number: int) -> Outgoing:
        self._ends[number % PARTITIONS] += 1
        return named(b"%d" % number, self._dues[number], b"order %d" % number, number % PARTITIONS)

    def _cancelling(self, number: int) -> Outgoing:
        partition = number % PARTITIONS
        self._cancelled[number] = self._ends[partition]
        self._ends[partition] += 1
        return cancelling(b"order %d" % number, partition=partition)

    def look_for(self, seconds: float) -> None:
        """For some time, note which cancellers are committed before their messages are due."""
        until_s = time.monotonic() + seconds
        while True:
            asked = [ck.TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
            committed = [each.offset for each in self._client.committed(asked, timeout=20)]
            now_ms = time.time_ns() // 1_000_000
            for number, offset in self._cancelled.items():
                if offset < committed[number % PARTITIONS] and now_ms < self._dues[number]:
                    self._final.add(number)
            if (left_s := until_s - time.monotonic()) <= 0:
                return
            time.sleep(min(left_s, LOOK_S))

    def tally(self, parts: Sequence[Mapping[str, Any]]) -> Tally:
        """What came, against what was cancelled; a message whose canceller was committed late may come, once."""
        came, hashes = counted(parts), self.dues.hashes
        wanted = Counter(
            value
            for number, value in enumerate(hashes)
            if number not in self._cancelled or (number not in self._final and value in came)
        )
        return tally_counts(came, wanted)

    @property
    def notes(self) -> str:
        """How many were cancelled."""
        late = len(self._cancelled) - len(self._final)
        return f"{len(self._final):,} cancelled in time, {late:,} perhaps too late"

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def cancelled_kills(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    between_s: float,
    store: str,
    forgets: bool = False,
    seed: int = 1,
    delay: Mapping[str, Any] | None = None,
) -> Finding:
    """Cancel messages by messages while others fall due, and kill the daemon at random instants of that.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: All have a name and a due time.
        times: The number of kills.
        between_s: Longest time from a start to the next kill.
        store: `delay.store`.
        forgets: Whether the daemon's folder is deleted at each kill.
        seed: Of due times, cancellers and instants.
        delay: More of the section `delay`.

    Raises:
        AssertionError: A message came early.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(
            broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={"store": store, **(delay or {})},
        )  # fmt: skip
        cancellers = Cancellers(broker, topic, config["source"]["kafka"]["group_id"], chance)
        with closing(cancellers), Daemon(folder, config, name=unique("cancels")) as daemon:
            daemon.wait_ready()
            for _ in range(times):
                cancellers.produce(messages // times)
                cancellers.look_for(chance.uniform(0, between_s))
                daemon.kill9()
                if forgets and daemon.state_dir.exists():
                    shutil.rmtree(daemon.state_dir)
                daemon.start()
            cancellers.look_for(cancellers.dues.left_s)
            finish(broker, daemon, 60 + messages / 1_000)
        parts = receiver.parts()
    cancellers.dues.late_ms(parts)
    found = cancellers.tally(parts)
    kind = f"cancelled by messages, {store}, `kill -9`{' and the folder deleted' if forgets else ''}"
    return Finding(kind, times, messages // times * times, found, time.monotonic() - begun, cancellers.notes)
