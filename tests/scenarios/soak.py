"""Three members under every fault at once, for as long as is asked: `make chaos HOURS=1`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, ends, new_topics
from tests.support.audit import Finding, check_books, tally_counts
from tests.support.kafka import KafkaBroker, unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.produce import make_producer
from tests.support.receiver import Receiver, parts_in, value_hash

PARTITIONS = 6
GROUPS = tuple(f"g{number:02}" for number in range(20))
RATE = 60
"""Messages a second."""
BETWEEN_S = 19.0
"""From one kill, stop or fault of the broker to the next, about: 70 in 22 minutes."""
DELAY_MAX_S = 90
WARM_S = 600.0
"""What grows after this is a leak; a shorter soak does not look for one."""
GROWTH_MAX = 1.1
FOLDER_BYTES_MIN = 64 << 20
"""A smaller state folder tells nothing: it keeps message ids, and logs of delayed messages of up to 16 MiB."""
POISON = b"poison"
POISON_EVERY = 500
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 503},
    {"kind": "status", "status": 429, "headers": {"Retry-After": "1"}},
    {"kind": "status", "status": 500},
    {"kind": "hang"},
    {"kind": "close"},
    {"kind": "truncate"},
    {"kind": "drip"},
    {"kind": "lost"},
    {"kind": "giant"},
    {"kind": "slow", "delay_ms": 3_000},
)
"""Ten kinds; one at a time strikes a third of the requests, and another fails one group for long, which is parked."""
ALWAYS = {"kind": "refuse", "status": 400, "marker": POISON.decode()}


class Sample(NamedTuple):
    """What a member that was never killed takes."""

    rss_bytes: int
    folder_bytes: int
    descriptors: int


class Load(threading.Thread):
    """Produces at an even rate, also while the broker is away; a third of the messages is due later.

    Args:
        broker: The broker.
        topic: Has `PARTITIONS`; it is empty.
        seed: Of groups and due times.
    """

    def __init__(self, broker: KafkaBroker, topic: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.poison = 0
        self._producer = make_producer(broker.bootstrap, delivery_timeout_ms=600_000)
        self._topic, self._chance, self._over = topic, random.Random(seed), threading.Event()

    def run(self) -> None:
        """Produce until `end`."""
        begun_s = time.monotonic()
        while not self._over.wait(0.02):
            while self.count < (time.monotonic() - begun_s) * RATE:
                self._send(self.count)
            self._producer.poll(0)

    def _send(self, number: int) -> None:
        chance = self._chance
        headers: list[tuple[str, str | bytes | None]] = [("tag", chance.choice(GROUPS)), ("id", f"id-{number}")]
        if chance.random() < 1 / 3:
            headers.append((HEADER, b"%d" % (time.time_ns() // 1_000_000 + chance.randrange(DELAY_MAX_S * 1_000))))
        value = value_of(number)
        self.poison += value.startswith(POISON)
        self._producer.produce(self._topic, value, partition=chance.randrange(PARTITIONS), headers=headers)
        self.count += 1

    def end(self) -> None:
        """Stop, and wait until the broker has all."""
        self._over.set()
        self.join()
        assert self._producer.flush(120) == 0


def value_of(number: int) -> bytes:
    """A value of 1 KB."""
    return (b"%s %d " % (b"good" if (number + 1) % POISON_EVERY else POISON, number)).ljust(1_000, b"x")


def soak(broker: KafkaBroker, folder: Path, hours: float, *, seed: int = 1) -> Finding:
    """Kills, stops, faults of the broker and of the receiver, delay, ids and parked batches over three members.

    Args:
        broker: The broker; it is killed, frozen and restarted.
        folder: For the daemons' files.
        hours: How long the faults last.
        seed: Of all that is random.

    Raises:
        AssertionError: Books did not balance, a member did not heal, or the one that is never killed grew.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    out = folder / unique("rows")
    with Receiver(out=out) as receiver:
        receiver.control({"faults": [ALWAYS]})
        config = configuration(
            broker, [topic], receiver.url, "*",
            delay={"store": "changelog"}, dedup={"by": {"header": "id"}}, batch={"max_messages": 50, "linger": "50ms"},
            retry={"park_after": "3s", "backoff": "50ms", "backoff_max": "2s"},
        )  # fmt: skip
        config["sink"]["http"]["timeout"] = "2s"
        members = [Daemon(folder, config, name=f"soak-{number}-{unique('of')}") for number in range(3)]
        with ended_after(members):
            for member in members:
                member.start()
            for member in members:
                member.wait_ready()
            load = Load(broker, topic, seed)
            load.start()
            told, samples = _storm(broker, members, receiver, chance, hours * 3_600)
            load.end()
            receiver.control({"faults": [ALWAYS]})
            _await_end(broker, topic, members)
            samples += [_sample(members[0])] if samples else []
            for member in members:
                member.stop(60)
    wanted = Counter(value_hash(value) for value in map(value_of, range(load.count)) if not value.startswith(POISON))
    found = tally_counts(Counter(row[-1] for part in parts_in(out) for row in part["rows"]), wanted)
    events = ", ".join(f"{count} {what}" for what, count in sorted(told.items()))
    notes = f"{events}; {load.poison} poison"
    if found.exact and samples:
        notes += f"; the member never killed: {_grown(samples)}"
    kind = f"soak of {hours:g} h: 3 members, delay, ids, parked batches, ten kinds of faults of the receiver"
    return Finding(kind, sum(told.values()), load.count, found, time.monotonic() - begun, notes)


def _storm(
    broker: KafkaBroker, members: list[Daemon], receiver: Receiver, chance: random.Random, seconds: float
) -> tuple[Counter[str], list[Sample]]:
    """All faults, in turns, until the time is over; how often each, and what the first member took meanwhile."""
    told, samples = Counter[str](), list[Sample]()
    deeds = list(_deeds(broker, members, chance))
    begun = time.monotonic()
    with ThreadPoolExecutor() as pool:
        while (passed_s := time.monotonic() - begun) < seconds:
            receiver.control({"faults": _faults(chance)})
            name, deed = chance.choice(deeds)
            pool.submit(deed).result()
            told[name] += 1
            time.sleep(chance.uniform(0.5, 1.5) * BETWEEN_S / 2)  # the rhythm of the test
            receiver.control({"faults": [ALWAYS, *_long(chance)]})
            time.sleep(chance.uniform(0.5, 1.5) * BETWEEN_S / 2)  # likewise
            assert members[0].running, members[0].log_tail()
            check_books(members[0].status(), left=True)
            if passed_s >= WARM_S:
                samples.append(_sample(members[0]))
    return told, samples


def _deeds(
    broker: KafkaBroker, members: list[Daemon], chance: random.Random
) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is done, more often what is more likely to go wrong; the first member is stopped, and never killed."""

    def kill() -> None:
        victim = chance.choice(members[1:])
        if victim.running:
            victim.kill9()
        time.sleep(chance.uniform(0, 12))  # shorter and longer than a session
        victim.start()

    def leave() -> None:
        victim = chance.choice(members[1:])
        if victim.running:
            victim.stop(60)
        time.sleep(chance.uniform(0, 3))
        victim.start()

    def stand_still() -> None:
        victim = chance.choice(members)
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(1, 15))
        victim.process.send_signal(signal.SIGCONT)

    def broker_killed() -> None:
        broker.kill()
        time.sleep(chance.uniform(0, 3))
        broker.start()

    def broker_frozen() -> None:
        broker.freeze()
        time.sleep(chance.uniform(1, 6))
        broker.thaw()

    yield from [("kills", kill)] * 6
    yield from [("stops", stand_still)] * 3
    yield ("members left", leave)
    yield ("brokers killed", broker_killed)
    yield ("brokers frozen", broker_frozen)


def _faults(chance: random.Random) -> list[dict[str, Any]]:
    return [ALWAYS, {**chance.choice(FAULTS), "rate": 0.33}, *_long(chance)]


def _long(chance: random.Random) -> list[dict[str, Any]]:
    """Two groups fail for so long that they are parked."""
    return [{"kind": "status", "status": 503, "group": group} for group in chance.sample(GROUPS, 2)]


def _await_end(broker: KafkaBroker, topic: str, members: list[Daemon]) -> None:
    """Wait until nothing is held, parked or in flight, and all is committed."""
    for member in members:
        if not member.running:
            member.start()
        member.wait_ready()
    goal, seen = ends(broker, [topic]), dict[str, Any]()

    def is_over() -> bool:
        told = [member.status() for member in members]
        for status in told:
            check_books(status, left=True)
        held = {name: [status[name] for status in told] for name in ("in_flight", "delayed", "parked")}
        owned = [each for status in told for each in status["partitions"] if each["lag"] is not None]
        marks = {(each["topic"], each["partition"]): each["watermark"] for each in owned}
        seen.update(held=held, missing={place: (marks.get(place), end) for place, end in goal.items()})
        return marks == goal and not any(map(sum, held.values()))

    wait_until(is_over, DELAY_MAX_S + 240, "all is settled", detail=lambda: f"{seen}\n{members[0].log_tail()}")


def _sample(member: Daemon) -> Sample:
    pages = int(Path(f"/proc/{member.pid}/statm").read_text().split()[1])
    files = [path for path in member.state_dir.rglob("*") if path.is_file()]
    size = sum(_size(path) for path in files)
    return Sample(pages * os.sysconf("SC_PAGE_SIZE"), size, len(list(Path(f"/proc/{member.pid}/fd").iterdir())))


def _size(path: Path) -> int:
    """0 if it was deleted meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _grown(samples: list[Sample]) -> str:
    """The medians of the first and of the last tenth: one sample may be a peak.

    Raises:
        AssertionError: The last is more than `GROWTH_MAX` times the first, or a folder than `FOLDER_BYTES_MIN`.
    """
    share = max(1, len(samples) // 10)
    first, last = _median(samples[:share]), _median(samples[-share:])
    text = (
        f"RSS {first.rss_bytes >> 20} -> {last.rss_bytes >> 20} MiB, state folder {first.folder_bytes >> 10} ->"
        f" {last.folder_bytes >> 10} KiB, descriptors {first.descriptors} -> {last.descriptors}"
    )
    least = first._replace(folder_bytes=max(first.folder_bytes, FOLDER_BYTES_MIN))
    grown = [name for name in Sample._fields if getattr(last, name) > GROWTH_MAX * getattr(least, name)]
    assert not grown, f"{', '.join(grown)}: {text}"
    return text


def _median(samples: list[Sample]) -> Sample:
    return Sample(*(sorted(column)[len(column) // 2] for column in zip(*samples, strict=True)))
