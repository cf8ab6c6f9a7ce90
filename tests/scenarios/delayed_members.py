"""Delayed messages in a changelog while members of a group are killed or stand still, or the broker is killed."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from tests.scenarios.delay_requests import Operator
from tests.scenarios.delayed import PARTITIONS, Dues, counted
from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, tally_counts
from tests.support.clock import Clock
from tests.support.kafka import Broker, KafkaBroker, unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver

TAKEOVER_S = 60.0
"""Longest wait for another member: a session, and a rebalance on a busy machine."""
BETWEEN_S = 16.0
"""From one takeover to the next, about."""
STANDSTILL_S = 20.0
"""Longer than a session: the group goes on without the member, which does not know that."""
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001",
    "max.message.bytes": "8000000",
}  # fmt: skip
"""Compacted at once."""


@dataclass
class Takeover:
    """A member was killed, and another one got its partitions."""

    partitions: set[int]
    assigned_ms: float

    def delivers_again_s(self, parts: Iterable[Mapping[str, Any]]) -> float | None:
        """Time from the assignment to the next delivery from one of these; None if nothing came any more."""
        later = (
            part["at_ms"]
            for part in parts
            if part["at_ms"] >= self.assigned_ms and int(part["part"].rsplit(":", 2)[1]) in self.partitions
        )
        at_ms = min(later, default=None)
        return None if at_ms is None else (at_ms - self.assigned_ms) / 1_000


def takeovers(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    seed: int = 1,
    delay: Mapping[str, Any] | None = None,
    skew_ms: int = 0,
) -> Finding:
    """Two members with folders of their own; in turns, one is killed while messages fall due, and comes back.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        messages: All have a due time.
        times: The number of kills.
        seed: Of due times and instants.
        delay: The section `delay`.
        skew_ms: The clock of the first member is ahead by this, and that of the other behind.

    Raises:
        AssertionError: A message came early, by more than the skew, or no member took over.
    """
    begun, chance, done = time.monotonic(), random.Random(seed), list[Takeover]()
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        group = _group(broker, topic, receiver, folder, delay or {}, skew_ms)
        with ended_after(group):
            _start(group)
            dues = Dues.spread(topic, messages, BETWEEN_S * times, chance)
            dues.produce(broker)
            for number in range(times):
                victim, heir = group[number % 2], group[1 - number % 2]
                time.sleep(chance.uniform(0, 1))  # the instant is random: there is nothing to wait for
                partitions = _owned(victim)
                victim.kill9()
                done.append(Takeover(partitions, _await_all(heir)))
                victim.start()
                _await_shared(group)
            dues.await_all(group)
            await_settled(broker, group, 60 + messages / 1_000)
        parts = receiver.parts()
    late = dues.late_ms(parts, early_ms=skew_ms)
    again = sorted(s for each in done if (s := each.delivers_again_s(parts)) is not None)
    found = tally_counts(counted(parts), Counter(dues.hashes))
    notes = (
        f"delivers again {again[len(again) // 2]:.2f} s after the assignment, at most {again[-1]:.2f} s;"
        f" at most {late[-1] / 1_000:.1f} s late{f', and {-late[0]} ms early' if skew_ms else ''}"
    )
    kind = f"delayed{_named(delay)}, 2 members with folders of their own, one of them `kill -9`"
    kind += f", clocks {skew_ms} ms ahead and behind" if skew_ms else ""
    return Finding(kind, times, messages, found, time.monotonic() - begun, notes)


def zombies(
    broker: Broker, folder: Path, messages: int, times: int, *, seed: int = 1, delay: Mapping[str, Any] | None = None
) -> Finding:
    """Two members; in turns, one stands still for longer than its session while an operator cancels and releases.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        messages: All have a due time.
        times: How often.
        seed: Of due times, requests and instants.
        delay: The section `delay`.

    Raises:
        AssertionError: A message came early that was not to be released, or no member took over.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        group = _group(broker, topic, receiver, folder, delay or {})
        with ended_after(group):
            _start(group)
            dues = Dues.spread(topic, messages, (STANDSTILL_S + BETWEEN_S) * times, chance)
            operator = Operator(dues, chance)
            dues.produce(broker)
            for number in range(times):
                victim, heir = group[number % 2], group[1 - number % 2]
                answers = [operator.begin(victim) for _ in range(2)]
                time.sleep(chance.uniform(0.2, 0.8))  # the instant is random: they ask meanwhile, or are on the way
                victim.process.send_signal(signal.SIGSTOP)
                until_s = time.monotonic() + STANDSTILL_S
                try:
                    while time.monotonic() < until_s:
                        operator.ask(heir)
                        time.sleep(chance.uniform(0, 0.5))  # an operator's pace
                finally:
                    victim.process.send_signal(signal.SIGCONT)
                for answer in answers:
                    answer()
                for _ in range(5):
                    operator.ask(victim)
                _await_shared(group)
            dues.await_all(group)
            await_settled(broker, group, 60 + messages / 1_000)
        found = operator.tally(receiver.parts())
    kind = f"delayed{_named(delay)}, 2 members, one of them stopped for {STANDSTILL_S:.0f} s"
    kind += "; cancelled and released meanwhile"
    return Finding(kind, times, messages, found, time.monotonic() - begun, operator.notes)


def outages(broker: KafkaBroker, folder: Path, messages: int, times: int, *, seed: int = 1) -> Finding:
    """A changelog that is compacted at once, while the broker is killed; the daemon restores it after each kill.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: All have a due time.
        times: The number of kills.
        seed: Of due times and instants.

    Raises:
        AssertionError: A message came early.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={})
        name = broker.create_topic(
            f"sidecar-delay-{config['source']['kafka']['group_id']}-{topic}", PARTITIONS, COMPACTED
        )
        with Daemon(folder, config, name=unique("compacted")) as daemon:
            dues = Dues.spread(topic, messages, BETWEEN_S * times, chance)
            dues.produce(broker)
            for _ in range(times):
                time.sleep(chance.uniform(0, BETWEEN_S - 6))  # the instant is random: there is nothing to wait for
                broker.kill()
                time.sleep(2)  # long enough that every request under way fails
                broker.start()
                daemon.kill9()
                shutil.rmtree(daemon.state_dir)
                daemon.start()
            dues.await_all([daemon])
            await_settled(broker, [daemon], 60 + messages / 1_000)
            appended = sum(broker.end_offsets(name).values())
            left = _left(broker, name)
        parts = receiver.parts()
    dues.late_ms(parts)
    found = tally_counts(counted(parts), Counter(dues.hashes))
    notes = f"{left:,} of {appended:,} records are left; restored from what is compacted after each kill"
    kind = "delayed, the broker killed, its changelog compacted at once, the folder deleted"
    return Finding(kind, times, messages, found, time.monotonic() - begun, notes)


def _left(broker: Broker, name: str) -> int:
    """Number of records of a topic that are not compacted away."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": unique("left")}
    consumer, left, ends = ck.Consumer({**settings, "enable.partition.eof": True}), 0, 0
    consumer.assign([ck.TopicPartition(name, partition, 0) for partition in range(PARTITIONS)])
    try:
        while ends < PARTITIONS:
            for message in consumer.consume(1_000, 10):
                is_end = message.error() is not None
                ends, left = ends + is_end, left + (not is_end)
    finally:
        consumer.close()
    return left


def _named(delay: Mapping[str, Any] | None) -> str:
    """The store, if it is not the default."""
    return f", {delay['store']}" if delay else ""


def _group(
    broker: Broker, topic: str, receiver: Receiver, folder: Path, delay: Mapping[str, Any], skew_ms: int = 0
) -> list[Daemon]:
    config = configuration(broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay=dict(delay))
    members = []
    for name, ahead_ms in (("one", skew_ms), ("other", -skew_ms)):
        name = f"{name}-{unique('of')}"
        program = Clock(folder / f"{name}-clock", ahead_ms / 1_000).program if skew_ms else ("sidecar",)
        members.append(Daemon(folder, config, name=name, program=program))
    return members


def _start(group: list[Daemon]) -> None:
    for member in group:
        member.start()
    _await_shared(group)


def _owned(member: Daemon) -> set[int]:
    """The partitions that a member reads."""
    return {each["partition"] for each in member.status()["partitions"] if each["lag"] is not None}


def _await_shared(group: list[Daemon]) -> None:
    """Wait until each member has partitions, and each partition has a member."""

    def is_shared() -> bool:
        owned = [_owned(member) for member in group]
        return all(owned) and sum(map(len, owned)) == PARTITIONS

    for member in group:
        member.wait_ready()
    wait_until(is_shared, TAKEOVER_S, "each member has partitions", detail=group[0].log_tail)


def _await_all(member: Daemon) -> float:
    """Wait until a member has all partitions; when the last were assigned, in milliseconds since the epoch."""
    wait_until(lambda: len(_owned(member)) == PARTITIONS, TAKEOVER_S, "a member has all", detail=member.log_tail)
    assigned = member.events("partitions.assigned")[-1]["timestamp"]
    return datetime.fromisoformat(assigned).timestamp() * 1_000
