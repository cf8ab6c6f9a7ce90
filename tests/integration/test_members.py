"""Several members of one group that come, go and are killed: nothing is lost or stored twice, deliveries go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.scenarios.exactly_once import PARTITIONS as PARTITIONS_OF_TOPIC
from tests.scenarios.exactly_once import configuration, new_topics
from tests.scenarios.kills import together
from tests.scenarios.members import SESSION_MS, members
from tests.support.kafka import Broker
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.workload import Workload


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


@pytest.mark.proof
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


@pytest.mark.parametrize(
    "client_id", ["shared", pytest.param("", marks=pytest.mark.proof)], ids=["set by the user", "ours"]
)
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
