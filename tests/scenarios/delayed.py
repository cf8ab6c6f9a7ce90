"""Delayed messages while the daemon is killed: each arrives once, and not before it is due."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

PARTITIONS = 3
HEADER = "sidecar-deliver-at"


class Dues:
    """Messages whose values are their numbers, and when each is due.

    Args:
        topic: Has `PARTITIONS`; it is empty.
        dues: Milliseconds since the epoch by number; None for a message without a due time.
    """

    def __init__(self, topic: str, dues: Sequence[int | None]) -> None:
        self.topic = topic
        self.dues = dues
        self.hashes = [value_hash(b"%d" % number) for number in range(len(dues))]
        """Of the values."""

    @classmethod
    def spread(cls, topic: str, messages: int, spread_s: float, chance: random.Random, *, every: int = 1) -> Dues:
        """Messages that fall due within some time from now, but for one of `every`, which is not delayed."""
        now_ms = time.time_ns() // 1_000_000
        last = int(spread_s * 1_000)
        return cls(
            topic, [now_ms + chance.randrange(last) if every == 1 or i % every else None for i in range(messages)]
        )

    def place(self, number: int) -> str:
        """Where a message is, as commands take it."""
        return f"{self.topic}:{number % PARTITIONS}:{number // PARTITIONS}"

    def produce(self, broker: Broker) -> None:
        """Send all."""
        produce(broker.bootstrap, self.topic, map(self._outgoing, range(len(self.dues))))

    def _outgoing(self, number: int) -> Outgoing:
        due_ms, headers = self.dues[number], [("tag", b"ab"[number % 2 : number % 2 + 1])]
        if due_ms is not None:
            headers.append((HEADER, b"%d" % due_ms))
        return Outgoing(number % PARTITIONS, b"%d" % number, None, headers)

    @property
    def left_s(self) -> float:
        """Seconds until the last is due."""
        return max(due_ms for due_ms in self.dues if due_ms is not None) / 1_000 - time.time()

    def await_all(self, members: Sequence[Daemon]) -> None:
        """Wait until all are due, by the clocks of these members too, and none of them holds one."""
        wait_until(lambda: self.left_s < 0, self.left_s + 60, "all are due")
        for member in members:
            member.wait_ready()
        wait_until(
            lambda: not any(member.status()["delayed"] for member in members), 60 + len(self.dues) / 1_000,
            "none is held", detail=members[0].log_tail,
        )  # fmt: skip

    def late_ms(self, parts: Iterable[Mapping[str, Any]], but: Collection[int] = (), early_ms: int = 0) -> list[int]:
        """How late the delayed messages arrived, in order.

        Args:
            parts: What the receiver got.
            but: Messages that may come early.
            early_ms: By how much the others may, since an owner's clock may be ahead.

        Raises:
            AssertionError: Another one came early.
        """
        due = {
            value: due_ms
            for number, (value, due_ms) in enumerate(zip(self.hashes, self.dues, strict=True))
            if due_ms is not None and number not in but
        }
        arrived = ((row[-1], part["at_ms"]) for part in parts for row in part["rows"])
        late = sorted(at_ms - due[value] for value, at_ms in arrived if value in due)
        early = [-each for each in late if each < -early_ms]
        assert not early, f"{len(early)} messages came up to {max(early)} ms early"
        return late


def counted(parts: Iterable[Mapping[str, Any]]) -> Counter[str | None]:
    """How often each value came."""
    return Counter(row[-1] for part in parts for row in part["rows"])


def delayed_kills(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    spread_s: float,
    store: str = "local",
    forgets: bool = False,
    seed: int = 1,
    delay: Mapping[str, Any] | None = None,
) -> Finding:
    """Produce messages that fall due while the daemon is killed at random instants; what arrived, how early, how often.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: Three quarters of them have a due time.
        times: The number of kills.
        spread_s: They fall due within this time.
        store: `delay.store`.
        forgets: Whether the daemon's folder is deleted at each kill.
        seed: Of due times and instants.
        delay: More of the section `delay`.

    Raises:
        AssertionError: A message came before it was due.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(
            broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={"store": store, **(delay or {})},
        )  # fmt: skip
        with Daemon(folder, config, name=unique("delayed")) as daemon:
            messages_due = Dues.spread(topic, messages, spread_s, chance, every=4)
            messages_due.produce(broker)
            for _ in range(times):
                time.sleep(chance.uniform(0, spread_s / times))  # the instant is random: there is nothing to wait for
                daemon.kill9()
                if forgets and daemon.state_dir.exists():
                    shutil.rmtree(daemon.state_dir)
                daemon.start()
            messages_due.await_all([daemon])
            finish(broker, daemon, 60 + messages / 1_000)
        parts = receiver.parts()
    late = messages_due.late_ms(parts)
    found = tally_counts(counted(parts), Counter(messages_due.hashes))
    notes = f"half of them at most {late[len(late) // 2]} ms late"
    kind = f"delayed, {store}, `kill -9`{' and the folder deleted' if forgets else ''}"
    return Finding(kind, times, messages, found, time.monotonic() - begun, notes)
