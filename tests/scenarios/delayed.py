"""Delayed messages while the daemon is killed: each arrives once, and not before it is due."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

PARTITIONS = 3
HEADER = "sidecar-deliver-at"


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

    Raises:
        AssertionError: A message came before it was due.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    due: dict[str | None, int] = {}
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(
            broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={"store": store},
        )  # fmt: skip
        with Daemon(folder, config, name=unique("delayed")) as daemon:
            now_ms = time.time_ns() // 1_000_000
            sent = []
            for number in range(messages):
                value, headers = b"%d" % number, [("tag", b"ab"[number % 2 : number % 2 + 1])]
                if number % 4:
                    due_ms = now_ms + int(chance.uniform(0, spread_s * 1000))
                    headers.append((HEADER, b"%d" % due_ms))
                    due[value_hash(value)] = due_ms
                sent.append(Outgoing(number % PARTITIONS, value, None, headers))
            produce(broker.bootstrap, topic, sent)
            for _ in range(times):
                time.sleep(chance.uniform(0, spread_s / times))  # the instant is random: there is nothing to wait for
                daemon.kill9()
                if forgets and daemon.state_dir.exists():
                    shutil.rmtree(daemon.state_dir)
                daemon.start()
            wait_until(lambda: time.time_ns() // 1_000_000 > max(due.values()), spread_s + 60, "all are due")
            finish(broker, daemon, 60 + messages / 1_000)
        parts = receiver.parts()
    rows = [(row[-1], part["at_ms"]) for part in parts for row in part["rows"]]
    early = [due[value] - at_ms for value, at_ms in rows if at_ms < due.get(value, 0)]
    assert not early, f"{len(early)} messages came up to {max(early)} ms early"
    wanted = Counter(value_hash(b"%d" % number) for number in range(messages))
    found = tally_counts(Counter(value for value, _ in rows), wanted)
    late = sorted(at_ms - due[value] for value, at_ms in rows if value in due)
    notes = f"half of them at most {late[len(late) // 2]} ms late"
    kind = f"delayed, {store}, `kill -9`{' and the folder deleted' if forgets else ''}"
    return Finding(kind, times, messages, found, time.monotonic() - begun, notes)
