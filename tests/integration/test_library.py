"""`examples/consumer.py`, a consumer on the library alone, against a real Kafka: killed, joined, left, stopped."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.scenarios.library import PARTITIONS, RATE, WAIT_S, Member, kills, scene
from tests.support.kafka import Broker, MakeTopic
from tests.support.process import wait_until


@pytest.mark.proof
def test_kills_and_members_lose_nothing(kafka: Broker, tmp_path: Path) -> None:
    """After kill -9, joins and leaves each wanted message arrived, no twin, and again only what was not committed."""
    assert kills(kafka, tmp_path, 3).exact


def test_without_faults_nothing_comes_twice(kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path) -> None:
    """Members that join and leave, a restart, an outage and a poisoned batch: every row once, or a dead letter."""
    with scene(kafka, make_topic(PARTITIONS), group, tmp_path) as one:
        first = one.start("first")
        second = one.start("second")
        first.stop()
        with one.endpoint.outage():
            third = Member(kafka, one.endpoint, one.topic, group, tmp_path, "third")
            one.members.append(third)
            wait_until(lambda: third.owns(kafka, group), WAIT_S, "the third has partitions", detail=one.logs)
        one.await_rows(RATE)
        one.endpoint.poison = b"5"
        wait_until(lambda: second.letters.exists() or third.letters.exists(), WAIT_S, "a dead letter", detail=one.logs)
        one.endpoint.poison = b""
        one.finish()
        second.stop()
        third.stop()
        dead = defaultdict[tuple[int, int], int](int)
        for member in one.members:
            for line in member.letters.read_text().splitlines() if member.letters.exists() else []:
                letter = json.loads(line)
                dead[letter["key"][1], letter["offset"]] += 1
        assert one.repeated() == set(), one.logs()
        assert set(dead.values()) == {1}
        assert not dead.keys() & {(partition, offset) for partition, offset, _ in one.endpoint.rows}
        assert len(one.endpoint.rows) + len(dead) == len(one.flow.wanted)


def test_a_member_that_was_given_up_loses_nothing(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Frozen longer than its session, a member lets go of its partitions: again comes only what it may have held."""
    with scene(kafka, make_topic(PARTITIONS), group, tmp_path) as one:
        first = one.start("first")
        second = one.start("second")
        with second.frozen():
            wait_until(lambda: not one.endpoint.requests, WAIT_S, "the endpoint has what was sent")
            committed = {partition: offset for (_, partition), (offset, _) in kafka.committed(group).items()}
            wait_until(lambda: first.owns(kafka, group) == PARTITIONS, WAIT_S, "the first has all", detail=one.logs)
            one.await_rows(RATE)
        wait_until(lambda: second.owns(kafka, group) == PARTITIONS // 2, WAIT_S, "the second is back", detail=one.logs)
        ends = kafka.end_offsets(one.topic)  # a message may have been on its way to it when it froze
        one.await_rows(RATE)
        one.finish()
        first.stop()
        second.stop()
        assert {value for _, _, value in one.endpoint.rows} == one.flow.wanted
        assert all(committed[partition] <= offset < ends[partition] for partition, offset in one.repeated())
