"""Several members of one group that come, go and are killed: nothing is lost or stored twice, deliveries go on."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.integration.test_exactly_once import PARTITIONS as PARTITIONS_OF_TOPIC
from tests.integration.test_exactly_once import await_settled, configuration, new_topics
from tests.integration.test_kills import together
from tests.support.audit import Finding, longest_gap_ms, tally
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, http_get, wait_until
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
        try:
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
        finally:
            for member in group:
                if member.running:
                    member.kill9()
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
        owners = [member for member in group if member.running and _owns(member)]
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


def _owns(member: Daemon) -> bool:
    """Whether it has partitions, and their ends are known to it."""
    code, body = http_get(f"{member.admin_url}/status")
    return code == 200 and any(partition["lag"] is not None for partition in json.loads(body)["partitions"])


def test_members_come_and_go(kafka: Broker, tmp_path: Path) -> None:
    """With members joining, leaving and killed for 20 s nothing is lost or stored twice, and deliveries go on."""
    short = partial(members, kafka, tmp_path, seconds=20, gap_max_ms=2 * SESSION_MS)
    findings = together(partial(short, 2), partial(short, 3, by="group"))
    assert all(one.exact for one in findings)


def test_a_member_killed_while_it_joins_does_not_hold_the_group_up(kafka: Broker, tmp_path: Path) -> None:
    """A member that was killed before it got any partition is evicted by its successor: no waiting for its session."""
    topics = new_topics(kafka, 1)
    with Receiver() as receiver:
        config = configuration(kafka, topics, receiver.url)
        group = config["source"]["kafka"]["group_id"]
        other = _other_member(kafka, group, topics)
        with Daemon(tmp_path, config) as daemon:
            wait_until(lambda: len(kafka.members(group)) == 2, 20, "the daemon asks to join", detail=daemon.log_tail)
            daemon.kill9()
            other.close()
            daemon.start()
            daemon.wait_ready()
            Workload(topics, 4, 100, odd=False).produce(kafka.bootstrap)
            wait_until(lambda: receiver.stats["rows"] > 0, 20, "the successor delivers", detail=daemon.log_tail)
            assert [event["member"] for event in daemon.events("member.evicted")] != []


def test_a_member_stopped_while_it_joins_does_not_hold_the_group_up(kafka: Broker, tmp_path: Path) -> None:
    """A member that is stopped while its join is pending leaves the group: the other has all long before a session."""
    topics = new_topics(kafka, 1)
    config = configuration(kafka, topics, "http://localhost:9/")
    group = config["source"]["kafka"]["group_id"]
    other = _other_member(kafka, group, topics)
    with Daemon(tmp_path, config) as daemon:
        wait_until(lambda: len(kafka.members(group)) == 2, 20, "the daemon asks to join", detail=daemon.log_tail)
        daemon.wait_ready()
        daemon.stop()

    def alone() -> bool:
        other.poll(0.1)
        return len(kafka.members(group)) == 1 and len(other.assignment()) == PARTITIONS_OF_TOPIC

    wait_until(alone, 0.7 * SESSION_MS / 1000, "the other is alone, and has all", detail=daemon.log_tail)
    other.close()


@pytest.mark.parametrize("client_id", ["shared", ""], ids=["set by the user", "ours"])
def test_no_living_member_is_taken_for_a_predecessor(kafka: Broker, tmp_path: Path, client_id: str) -> None:
    """At a start without a state folder siblings stay: those of another place, and those with a client id in common."""
    topics = new_topics(kafka, 1)
    config = configuration(kafka, topics, "http://localhost:9/")
    config["source"]["kafka"]["properties"] = {"client.id": client_id} if client_id else {}
    group = config["source"]["kafka"]["group_id"]
    other = _other_member(kafka, group, topics, client_id or "sidecar")
    (before,) = kafka.members(group)
    with Daemon(tmp_path, config) as daemon:
        wait_until(lambda: len(kafka.members(group)) == 2, 20, "the daemon asks to join", detail=daemon.log_tail)
        assert before.member_id in {member.member_id for member in kafka.members(group)}
        assert not daemon.events("member.evicted") + daemon.events("member.not_evicted")
    other.close()


def _other_member(broker: Broker, group: str, topics: list[str], client_id: str = "other") -> Consumer:
    """A member that has all partitions, and holds up every join by not polling any more."""
    client = Consumer(
        {
            "client.id": client_id,
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_MS,
        }
    )
    client.subscribe(topics)

    def assigned() -> bool:
        client.poll(0.1)
        return bool(client.assignment())

    wait_until(assigned, 20, "the other member has partitions")
    return client
