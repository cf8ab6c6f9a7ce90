"""Two groups whose configurations name one changelog: a part of the messages that both hold must not vanish."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.scenarios.delayed import PARTITIONS, Dues, counted
from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver

DUE_MS, SPREAD_MS = 30_000, 3_000
"""Time until the first is due, and from then on until the last is; both groups are killed before that."""
REFUSED = 78


def one_changelog(
    broker: Broker, folder: Path, messages: int, *, groups: tuple[str, str] = ("", ""), copied: bool = True
) -> Finding:
    """Two groups read a topic; the second, if it is refused, gets a changelog of its own. Both are killed once.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        messages: All have a due time; each group is to get each of them.
        groups: Endings of the groups' names.
        copied: Whether `delay.changelog.topic` was copied from one file to the other; else both have the default.
    """
    begun, chance = time.monotonic(), random.Random(1)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    prefix, refused = unique("group"), 0
    shared = {"changelog": {"topic": f"{prefix}-held-{{topic}}"}} if copied else {}
    with Receiver(out=folder / unique("rows")) as first, Receiver(out=folder / unique("rows")) as second:

        def daemon(number: int, delay: Mapping[str, Any]) -> Daemon:
            config = configuration(broker, [topic], (first, second)[number].url, "*", delay=dict(delay))
            group = f"{prefix}{groups[number]}" if not copied else f"{prefix}-{number}"
            config["source"]["kafka"]["group_id"] = group
            return Daemon(folder, config, name=unique("two"))

        members = [daemon(0, shared), daemon(1, shared)]
        with ended_after(members):
            for number, member in enumerate(members):
                member.start()
                wait_until(partial(_began, member), 60, "it owns all, or has ended")
                if not member.running:
                    member.wait(REFUSED)
                    refused += 1
                    members[number] = daemon(number, {"changelog": {"topic": f"{prefix}-own-{{topic}}"}})
                    members[number].start()
                    members[number].wait_ready()
            now_ms = time.time_ns() // 1_000_000
            dues = Dues(topic, [now_ms + DUE_MS + chance.randrange(SPREAD_MS) for _ in range(messages)])
            dues.produce(broker)
            for member in members:
                wait_until(partial(_holds, member, messages), 60, "all are held")
            for member in members:
                member.kill9()
                shutil.rmtree(member.state_dir)
            for member in reversed(members):  # what the second takes for void, the first finds no more
                member.start()
                wait_until(partial(_owns, member, 2), 60, "it owns all again")
            dues.await_all(members)
            for member in members:
                await_settled(broker, [member], 60)
        for one in members:
            if one.running:
                one.kill9()
        found = Tally()
        for receiver in (first, second):
            found.add(tally_counts(counted(receiver.parts()), Counter(dues.hashes)))
    kind = "two groups with one `delay.changelog.topic`" if copied else f"groups `X{groups[0]}` and `X{groups[1]}`"
    notes = "the second is refused with exit code 78, and given another" if copied else "each has one of its own"
    assert refused == copied, f"{refused} of two were refused"
    return Finding(f"{kind}, `kill -9`", 2, 2 * messages, found, time.monotonic() - begun, notes)


def _began(daemon: Daemon) -> bool:
    return _owns(daemon) or not daemon.running


def _holds(daemon: Daemon, messages: int) -> bool:
    return bool(daemon.status()["delayed"] == messages)


def _owns(daemon: Daemon, times: int = 1) -> bool:
    return len(daemon.events("delay.restored")) == times * PARTITIONS
