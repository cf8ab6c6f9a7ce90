"""Members of one group that join, leave and are killed."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.support.audit import Finding, longest_gap_ms, tally
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, ended_after, http_get, wait_until
from tests.support.receiver import Receiver
from tests.support.workload import Stream, Workload

PARTITIONS = 6


TOPICS = 2


RATE = 1_000
"""Messages a second."""


EVERY_S = 5.0


SESSION_MS = 9_000


GAP_MAX_MS = SESSION_MS + 3_000
"""A member killed while it joins is waited for until its session ends; one rebalance follows, 2.1 s at a load of 20."""


def members(
    broker: Broker, folder: Path, count: int, seconds: float, *, by: str = "partition", seed: int = 1,
    gap_max_ms: int = GAP_MAX_MS,
) -> Finding:  # fmt: skip
    """Every 5 s a member joins, leaves or is killed; each has its own folder.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        count: Members at most.
        seconds: How long.
        by: `batch.by`.
        seed: Of who comes and goes.
        gap_max_ms: How long nothing may be delivered.

    Raises:
        AssertionError: Something was lost or stored twice, or a gap was longer than that.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    topics = new_topics(broker, TOPICS, PARTITIONS)
    work = Workload(topics, PARTITIONS, int(RATE * (seconds + 60)), odd=False, seed=seed)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(broker, topics, receiver.url, batch={"by": by})
        group = [Daemon(folder, config, name=f"member-{number}-{unique('of')}") for number in range(count)]
        with ended_after(group):
            with Stream(broker.bootstrap, work, RATE) as stream:
                group[0].start()
                wait_until(lambda: receiver.stats["rows"] > 0, 20, "the first delivers", detail=group[0].log_tail)
                from_ms = time.time_ns() // 1_000_000
                events = _come_and_go(group, chance, seconds)
                to_ms = time.time_ns() // 1_000_000
                stream.stop()
            await_settled(broker, group, 60)
            for member in group:
                if member.running:
                    member.stop()
        parts = receiver.parts()
    found = tally((row for part in parts for row in part["rows"]), work.expected.wanted)
    gap = longest_gap_ms(parts, from_ms, to_ms)
    assert gap <= gap_max_ms, f"nothing was delivered for {gap} ms; {events}"
    notes = f"{events.count('kill')} killed, {events.count('leave')} left; longest gap {gap / 1000:.1f} s"
    name = f"{count} members, one joins, leaves or is killed every 5 s, `batch.by: {by}`"
    return Finding(name, len(events), work.expected.count, found, time.monotonic() - begun, notes)


def _come_and_go(group: list[Daemon], chance: random.Random, seconds: float) -> list[str]:
    """Whoever ends leaves a member behind that has partitions: a start alone may take longer than 5 s."""
    events: list[str] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        gone = [member for member in group if not member.running]
        owners = [member for member in group if member.running and owns(member)]
        ending = [member for member in group if member.running and set(owners) - {member}]
        what = chance.choice([*(["join"] * bool(gone)), *(["leave", "kill"] * bool(ending))] or ["wait"])
        if what == "join":
            chance.choice(gone).start()
        elif what == "kill":
            chance.choice(ending).kill9()
        elif what == "leave":
            chance.choice(ending).stop()
        events.append(what)
        time.sleep(EVERY_S)  # the rhythm of the test
    return events


def owns(member: Daemon) -> bool:
    """Whether it has partitions, and their ends are known to it."""
    code, body = http_get(f"{member.admin_url}/status")
    return code == 200 and any(partition["lag"] is not None for partition in json.loads(body)["partitions"])
