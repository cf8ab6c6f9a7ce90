"""Delayed messages that have ended free their space: several times `delay.disk_max` passes within an hour."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.scenarios.delayed import HEADER, counted
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver, value_hash

PARTITIONS = 2
VALUE_BYTES = 900_000
WAVE = 100
"""Messages that are held at once: their rows and the log are well below `delay.disk_max`."""
DISK_MAX = 256 << 20
"""The least that is allowed."""
DELAY_S = 3.0


def freed(
    broker: Broker,
    folder: Path,
    store: str,
    waves: int = 4,
    *,
    rebalances: bool = False,
    delay: Mapping[str, Any] | None = None,
) -> Finding:
    """Produce messages in waves, each of which is delivered before the next; the member is killed after the first.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        store: `delay.store`.
        waves: Each has 90 MB; nothing is held between them.
        rebalances: Whether another member comes and goes between the others.
        delay: More of the section `delay`.

    Raises:
        AssertionError: Messages did not arrive, or the files were larger than is allowed.
    """
    begun, most = time.monotonic(), 0
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        section = {"store": store, "disk_max": f"{DISK_MAX >> 20}MiB", **(delay or {})}
        config = configuration(broker, [topic], receiver.url, "*", delay=section)
        first, second = (Daemon(folder, config, name=unique("space")) for _ in range(2))
        with ended_after([first, second]):
            first.start()
            for wave in range(waves):
                first.wait_ready()
                due_ms = time.time_ns() // 1_000_000 + int(DELAY_S * 1_000)
                numbers = range(wave * WAVE, (wave + 1) * WAVE)
                produce(broker.bootstrap, topic, (_message(number, due_ms) for number in numbers))
                has_come = partial(_has, receiver, numbers.stop)
                wait_until(has_come, 120, f"wave {wave} arrives", detail=first.log_tail)
                most = max(most, _used(first))
                if not wave:
                    first.kill9()
                    first.start()
                elif rebalances and second.running:
                    second.stop()
                elif rebalances:
                    second.start()
                    second.wait_ready()
            if second.running:
                second.stop()
            finish(broker, first, 120)
        found = tally_counts(counted(receiver.parts()), Counter(map(value_hash, map(_value, range(waves * WAVE)))))
    assert most < DISK_MAX, f"{most} bytes of files"
    total = waves * WAVE * VALUE_BYTES
    notes = f"{total / 1e6:.0f} MB of an hour; files of {most >> 20} MiB at most when nothing was held"
    others = ", another member comes and goes" if rebalances else ""
    kind = f"delayed, {store}, `disk_max: {DISK_MAX >> 20}MiB`, `kill -9`{others}"
    return Finding(kind, waves, waves * WAVE, found, time.monotonic() - begun, notes)


def _has(receiver: Receiver, count: int) -> bool:
    return len(receiver.rows()) >= count


def _message(number: int, due_ms: int) -> Outgoing:
    return Outgoing(number % PARTITIONS, _value(number), None, [("tag", b"a"), (HEADER, b"%d" % due_ms)])


def _value(number: int) -> bytes:
    return (b"%d " % number).ljust(VALUE_BYTES, b"x")


def _used(member: Daemon) -> int:
    """Bytes of the member's files of delayed messages, as it tells them."""
    return int(member.status()["delay"]["disk_bytes"])
