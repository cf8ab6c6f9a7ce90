"""The configuration is changed and read again under load, while daemons are killed or not."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, ended_after, wait_until, write_config
from tests.support.receiver import Receiver
from tests.support.workload import TAGS, Stream, Workload

PARTITIONS = 3
RELOADS_A_SECOND = 2.0
"""About; each waits until the one before is told."""
GROUPS: tuple[dict[str, str], ...] = (
    {},
    {"money": "paid || refunded"},
    {"money": "paid || refunded", "rest": "shipped || returned || probe"},
)
"""`tags.groups`: every message stays wanted, and goes to another group."""
ANY_LANE = {"kafka": {"lane": "auto"}}
"""The fast lane may lack what a changed file needs."""


def changed(base: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Another configuration: limits, waits, credentials, formats and groups by chance."""
    new = deepcopy(base)
    new["batch"] = {"max_messages": chance.choice((50, 200)), "linger": chance.choice(("0ms", "50ms"))}
    new["batch"]["by"] = chance.choice(("partition", "group"))
    new["retry"] = {"backoff": chance.choice(("20ms", "50ms")), "backoff_max": "500ms"}
    new["sink"]["http"] |= {
        "format": chance.choice(("envelope", "envelope", "json_array", "ndjson")),
        "auth": {"bearer": f"token-{chance.randrange(1_000)}"},
        "concurrency": chance.choice((1, 4)),
    }
    new["tags"]["groups"] = chance.choice(GROUPS)
    return new


def reload(daemon: Daemon, config: dict[str, Any], *, is_bad: bool = False) -> dict[str, Any]:
    """Write a configuration, let the daemon read it, and return what its status tells.

    Raises:
        AssertionError: It tells nothing within a minute.
    """
    wait_until(
        lambda: (daemon.status()["reload"] or {}).get("outcome") != "waiting", 60, "the last one applies",
        detail=daemon.log_tail,
    )  # fmt: skip
    before = (daemon.status()["reload"] or {}).get("at")
    write_config(daemon.config_path, config)
    if is_bad:
        daemon.config_path.write_text(daemon.config_path.read_text() + "batch: twice\n")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: (daemon.status()["reload"] or {}).get("at") != before, 60, "the reload is told", detail=daemon.log_tail
    )
    told: dict[str, Any] = daemon.status()["reload"]
    return told


def reloads(broker: Broker, folder: Path, times: int, bad: int, *, seed: int = 1) -> Finding:
    """Change what can be changed under load; nothing is lost, and nothing comes twice.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        times: How often the file is read again.
        bad: How often of these with a mistake in it.
        seed: Of all that is random.

    Raises:
        AssertionError: A reload is not told, or not as it should be.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    mistakes = set(chance.sample(range(times), bad))
    told = Counter[str]()
    (topic,) = new_topics(broker, 1, PARTITIONS)
    work = _work(topic, round(times / RELOADS_A_SECOND * 500), seed)
    with Receiver(out=folder / unique("rows")) as receiver, Stream(broker.bootstrap, work, 500) as stream:
        base = configuration(broker, [topic], receiver.url, " || ".join(TAGS), source=ANY_LANE)
        with Daemon(folder, base, name=unique("reloaded")) as daemon:
            base = daemon.config
            daemon.wait_ready()
            for number in range(times):
                answer = reload(daemon, changed(base, chance), is_bad=number in mistakes)
                told[answer["outcome"]] += 1
                assert (answer["outcome"] == "refused") == (number in mistakes), answer
                time.sleep(chance.uniform(0, 1 / RELOADS_A_SECOND))  # the instant is random: nothing is awaited
            stream.wait()
            _await_all([daemon], receiver, work)
            await_settled(broker, [daemon], 60)
            told["changed at a quiet point"] = sum("tags.groups" in e.get("changed", ()) for e in _applied(daemon))
            daemon.stop()
    notes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(told.items()))
    return Finding(
        "reloads under load", times, work.expected.count, _tally(receiver, work), time.monotonic() - begun, notes
    )


def reloads_killed(broker: Broker, folder: Path, times: int, *, seed: int = 1) -> Finding:
    """Two members on files of their own, which change; one of them is killed soon after. Nothing is lost.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        times: Number of kills.
        seed: Of all that is random.

    Raises:
        AssertionError: A member does not come back.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    work = _work(topic, times * 1_500, seed)
    with Receiver(out=folder / unique("rows")) as receiver, Stream(broker.bootstrap, work, 500) as stream:
        base = configuration(broker, [topic], receiver.url, " || ".join(TAGS), source=ANY_LANE)
        members = [Daemon(folder, base, name=unique("reloaded")) for _ in range(2)]
        with ended_after(members):
            for member in members:
                member.start()
            for _ in range(times):
                victim = chance.choice(members)
                victim.wait_ready()
                write_config(victim.config_path, changed(victim.config, chance))
                victim.process.send_signal(signal.SIGHUP)
                time.sleep(chance.uniform(0, 0.6))  # the instant is random: in the midst of the change, or after it
                victim.kill9()
                victim.start()
            stream.wait()
            _await_all(members, receiver, work)
            await_settled(broker, members, 90)
            for member in members:
                member.stop()
    found = _tally(receiver, work)
    repeated, found.twice = len(found.twice), []
    point = "reloads, 2 members with different files, `kill -9`"
    notes = "what was in flight under changed rules may come again"
    return Finding(point, times, work.expected.count, found, time.monotonic() - begun, notes, repeated)


def _work(topic: str, count: int, seed: int) -> Workload:
    return Workload([topic], PARTITIONS, count, seed=seed, tags=TAGS, wanted=TAGS, odd=False)


def _hashes(receiver: Receiver) -> Counter[Any]:
    return Counter(row[-1] for row in receiver.rows())


def _tally(receiver: Receiver, work: Workload) -> Any:
    return tally_counts(_hashes(receiver), Counter(work.expected.wanted.values()))


def _await_all(members: Iterable[Daemon], receiver: Receiver, work: Workload) -> None:
    def missing() -> int:
        return sum((Counter(work.expected.wanted.values()) - _hashes(receiver)).values())

    wait_until(lambda: not missing(), 90, "all arrive", detail=lambda: (missing(), *(m.log_tail() for m in members)))


def _applied(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.events("config.applied")
