"""Every kind of message through the daemon, poison, and kills while a batch is halved; rows are compared."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.state.store import Store
from tests.support.audit import CheckingReceiver, Finding, StrikingReceiver, Tally, check_books, tally, tally_values
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, spawn, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.scene import merged
from tests.support.workload import WANTED, Expected, Place, Workload

TOPICS, PARTITIONS = 3, 4


class Seeking(Daemon):
    """The daemon with a source that hands about 5 % of the messages over twice."""

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start it."""
        with self.log_path.open("ab") as log:
            command = [sys.executable, "-m", "tests.support.seeking", str(self.config_path), "7"]
            self._process = spawn(command, log, env=dict(env or {}))


def configuration(
    broker: Broker, topics: list[str], url: str, subscribe: str = " || ".join(WANTED), **sections: Any
) -> dict[str, Any]:
    """A configuration for a new consumer group; `sections` go over what is set here."""
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": unique("group"), "topics": topics}
    base: dict[str, Any] = {
        "source": {"kafka": kafka},
        "tags": {"from": {"header": "tag"}, "subscribe": subscribe},
        "sink": {"http": {"url": url}},
        "retry": {"backoff": "20ms", "backoff_max": "500ms"},
    }
    return merged(base, sections)


def new_topics(broker: Broker, count: int = TOPICS, partitions: int = PARTITIONS) -> list[str]:
    """New topics, by name."""
    names = [unique("topic") for _ in range(count)]
    for name in names:
        broker.create_topic(name, partitions, {"max.message.bytes": "4194304"})
    return names


def finish(broker: Broker, daemon: Daemon, timeout_s: float) -> dict[str, Any]:
    """Wait until all that was produced is settled, the books balanced at each look, then stop; the last status."""
    await_settled(broker, [daemon], timeout_s)
    last = daemon.status()
    daemon.stop()
    return last


def await_settled(broker: Broker, members: Sequence[Daemon], timeout_s: float) -> None:
    """Wait until the watermarks of the members that live reach the ends of all partitions, and nothing is in flight."""
    goal = ends(broker, members[0].config["source"]["kafka"]["topics"])
    seen: dict[str, Any] = {}

    def settled() -> bool:
        running = [member for member in members if member.running]
        told = [member.status() for member in running]
        for member, status in zip(running, told, strict=True):
            left = member.events("partitions.revoked") or member.events("partitions.lost")
            check_books(status, left=bool(left))
        owned = [p for status in told for p in status["partitions"] if p["lag"] is not None]
        watermarks = {(p["topic"], p["partition"]): p["watermark"] for p in owned}
        seen.update(missing={p: (watermarks.get(p), end) for p, end in goal.items() if watermarks.get(p) != end})
        return watermarks == goal and not any(status["in_flight"] for status in told)

    for member in members:
        if member.running:
            member.wait_ready()
    wait_until(settled, timeout_s, "all is settled", detail=lambda: f"{seen}\n{members[0].log_tail()}")


def flow(
    broker: Broker, folder: Path, messages: int, *, form: str = "envelope", by: str = "partition", ids: bool = False
) -> Finding:
    """Messages of every kind, 5 % handed over twice: each wanted one arrives once, whole; books and commits agree."""
    begun = time.monotonic()
    topics = new_topics(broker)
    work = Workload(topics, PARTITIONS, messages)
    expected = work.produce(broker.bootstrap)
    receiver = CheckingReceiver(expected.prints) if form == "envelope" else Receiver()
    with receiver:
        config = configuration(broker, topics, receiver.url, batch={"by": by})
        config["sink"]["http"]["format"] = form
        if ids:
            config["dedup"] = {"by": {"header": "id"}, "as": "int"}
        with Seeking(folder, config, name=unique("flow")) as daemon:
            status = finish(broker, daemon, 60 + messages / 2_000)
        unframeable = set() if form == "envelope" else expected.unframeable[form]
        wanted = expected.first_of_each_id() if ids else expected.wanted
        framed = {place: value for place, value in wanted.items() if place not in unframeable}
        found = (tally if form == "envelope" else tally_values)(receiver.rows(), framed)
        assert receiver.stats["repeated_parts"] == 0, "a name was sent twice"
        if isinstance(receiver, CheckingReceiver):
            found.unknown += receiver.wrong
    again = _check_flow_books(status, expected, wanted, len(framed))
    assert committed_ends(broker, config) == ends(broker, topics)
    assert dead_lettered(daemon) == {place for place in wanted if place in unframeable}
    notes = f"{again} handed over twice"
    return Finding(_flow_name(form, by, ids=ids), 1, messages, found, time.monotonic() - begun, notes)


def _flow_name(form: str, by: str, *, ids: bool) -> str:
    how = "a header id, 5 % produced twice" if ids else "position"
    return f"every kind of value, `{form}`, `batch.by: {by}`, duplicates by {how}"


def _check_flow_books(
    status: Mapping[str, Any], expected: Expected, wanted: Mapping[Place, Any], delivered: int
) -> int:
    again = int(status["consumed"]) - expected.count
    twins = len(expected.wanted) - len(wanted)
    assert again >= expected.count // 50, f"only {again} messages were handed over twice: the test tests nothing"
    assert status["delivered"] == delivered
    assert status["dead_lettered"] == len(wanted) - delivered
    assert status["filtered"] == expected.filtered
    assert status["duplicate"] == again + twins
    return again


def ends(broker: Broker, topics: list[str]) -> dict[tuple[str, int], int]:
    """The end of each partition."""
    return {(topic, p): offset for topic in topics for p, offset in broker.end_offsets(topic).items()}


def committed_ends(broker: Broker, config: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """What the group has committed."""
    found = broker.committed(config["source"]["kafka"]["group_id"])
    return {place: offset for place, (offset, _) in found.items()}


def dead_lettered(daemon: Daemon) -> set[Place]:
    """Places of the dead letters in the state folder."""
    store = Store(daemon.state_dir)
    try:
        return {(letter.topic, letter.partition, letter.offset) for letter in store.letters.load(1_000_000)}
    finally:
        store.close()


def poison(broker: Broker, folder: Path, messages: int = 5_000, *, times: int = 1) -> Finding:
    """One refused message among many: the rest arrive, it alone is dead-lettered, found by halving."""
    begun, allowed, most, found = time.monotonic(), 2 * math.ceil(math.log2(messages)), 0, Tally()
    for number in range(times):
        topic = new_topics(broker, 1, 1)
        bad = random.Random(number).randrange(messages)
        values = [b"POISON" if i == bad else b"good %d" % i for i in range(messages)]
        with Receiver() as receiver:
            receiver.fail("refuse", status=400, marker="POISON")
            daemon, arrived = _halved(broker, folder, topic, receiver, values)
            found.add(arrived)
            most = max(most, receiver.stats["requests"] - 1)
        assert most <= allowed, f"{most} extra requests, {allowed} are allowed"
        assert dead_lettered(daemon) == {(topic[0], 0, bad)}
    notes = f"dead-lettered {times}, extra requests at most {most} (allowed {allowed})"
    return Finding(f"one poison message among {messages:,}", times, messages * times, found, _since(begun), notes)


def _since(begun: float) -> float:
    return time.monotonic() - begun


def _halved(
    broker: Broker, folder: Path, topic: list[str], receiver: Receiver, values: list[bytes]
) -> tuple[Daemon, Tally]:
    produce(broker.bootstrap, topic[0], [Outgoing(0, value) for value in values])
    batch = {"max_messages": len(values), "linger": "30s", "max_bytes": "16MiB"}
    config = configuration(broker, topic, receiver.url, "*", batch=batch)
    with Daemon(folder, config, name=unique("poison")) as daemon:
        status = finish(broker, daemon, 60)
        assert status["dead_lettered"] == 1
    wanted = _values(topic[0], values)
    return daemon, tally(receiver.rows(), wanted)


def _values(topic: str, values: list[bytes]) -> dict[Place, str | None]:
    return {(topic, 0, i): value_hash(value) for i, value in enumerate(values) if value != b"POISON"}


def split_killed(broker: Broker, folder: Path, messages: int = 5_000, *, kills: int) -> Finding:
    """Kills while a refused batch is being halved: nothing is lost or stored twice, one message is dead-lettered."""
    begun, chance, killed, found = time.monotonic(), random.Random(11), 0, Tally()
    while killed < kills:
        topic = new_topics(broker, 1, 1)
        bad = chance.randrange(messages)
        values = [b"POISON" if i == bad else b"good %d" % i for i in range(messages)]
        produce(broker.bootstrap, topic[0], [Outgoing(0, value) for value in values])
        with StrikingReceiver() as receiver:
            receiver.fail("refuse", status=400, marker="POISON")
            receiver.fail("slow", delay_ms=30)
            batch = {"max_messages": messages, "linger": "2s", "max_bytes": "16MiB"}
            config = configuration(broker, topic, receiver.url, "*", batch=batch)
            with Daemon(folder, config, name=unique("split")) as daemon:
                killed += _kill_in_split(daemon, receiver, chance, kills - killed)
                finish(broker, daemon, 60)
            found.add(tally(receiver.rows(), _values(topic[0], values)))
        assert dead_lettered(daemon) == {(topic[0], 0, bad)}
    return Finding("`kill -9` while a batch is being halved", kills, messages, found, _since(begun))


def _kill_in_split(daemon: Daemon, receiver: StrikingReceiver, chance: random.Random, most: int) -> int:
    """Kill after a few requests of each life, before the 25 that the halving takes are over; how many kills it were."""
    kills = min(most, 4)
    for _ in range(kills):
        receiver.strike = partial(_kill_after, daemon, receiver, chance.randint(1, 5))
        wait_until(lambda: not daemon.running, 60, "so many requests come", detail=daemon.log_tail)
        daemon.start()
    return kills


def _kill_after(daemon: Daemon, receiver: StrikingReceiver, requests: int) -> None:
    """At the request itself: until somebody has looked, the halving may be over."""
    if requests > 1:
        receiver.strike = partial(_kill_after, daemon, receiver, requests - 1)
    else:
        daemon.process.kill()
