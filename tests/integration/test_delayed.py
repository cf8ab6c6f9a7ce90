"""Delayed messages of a real Kafka: each arrives once when it is due, whatever happens in between."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store
from tests.scenarios.delay_space import freed
from tests.scenarios.delay_tags import delay_tags
from tests.scenarios.delayed import HEADER, delayed_kills
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, ended_after, last_words, missing, wait_until
from tests.support.receiver import Receiver

BOTH = pytest.mark.parametrize("store", ["changelog", pytest.param("local", marks=pytest.mark.proof)])


@pytest.mark.parametrize(
    ("store", "forgets"), [pytest.param("local", False, marks=pytest.mark.proof), ("changelog", True)]
)
def test_kills_while_messages_fall_due_lose_and_repeat_nothing(
    kafka: Broker, tmp_path: Path, store: str, forgets: bool
) -> None:
    """Killed 3 times while messages fall due, each arrives once, and none early; a changelog needs no folder for it."""
    assert delayed_kills(kafka, tmp_path, 20_000, 3, spread_s=12, store=store, forgets=forgets).exact


@pytest.mark.parametrize("store", ["local", pytest.param("changelog", marks=pytest.mark.proof)])
def test_ended_messages_free_their_space_within_their_hour(kafka: Broker, tmp_path: Path, store: str) -> None:
    """More passes than `delay.disk_max` allows, also after a kill, while nothing is held in between."""
    assert freed(kafka, tmp_path, store, waves=3, rebalances=store != "local").exact


def _sent(number: int, due: bytes, value: bytes = b"{}") -> Outgoing:
    return Outgoing(0, value, b"key-%d" % number, [("tag", b"a"), (HEADER, due)])


def _due(after_ms: int) -> bytes:
    return b"%d" % (time.time_ns() // 1_000_000 + after_ms)


@BOTH
def test_dead_letters_name_place_and_reason(kafka: Broker, tmp_path: Path, store: str) -> None:
    """A due time that cannot be read is a dead letter with that reason; so is a held message that is refused."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            poison = _sent(2, _due(300), b'"poison"')
            produce(kafka.bootstrap, topic, [_sent(0, b"soon"), _sent(1, b"40d"), poison, _sent(3, _due(300))])
            wait_until(lambda: receiver.rows(), 30, "what is held is delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
            assert [row[2] for row in receiver.rows()] == [3]
            letters = _letters(daemon)
    assert [(one.partition, one.offset) for one in letters] == [(0, 0), (0, 1), (0, 2)]
    assert "neither epoch milliseconds" in letters[0].reason
    assert "more than delay.max" in letters[1].reason
    assert b"poison" in (letters[2].row or b"")


def _letters(daemon: Daemon) -> list[StoredLetter]:
    with closing(Store(daemon.state_dir)) as store:
        return sorted(store.letters.load(10), key=lambda letter: letter.offset)


def test_what_the_local_store_holds_is_not_forgotten(kafka: Broker, tmp_path: Path) -> None:
    """Exit 78 with their number and the folder that has them, without the section and with the other store."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": "local"})
        with Daemon(tmp_path, config) as daemon:
            produce(kafka.bootstrap, topic, [_sent(0, b"1h"), _sent(1, b"2h")])
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == 2, 30, "both are held", detail=daemon.log_tail)
            daemon.stop()
        said = last_words(Daemon(tmp_path, {**config, "delay": {"store": "changelog"}}), 78)
        assert missing(said, "2 delayed messages", str(daemon.state_dir / "delay"), "delay.store is not local") == []
        del config["delay"]
        said = last_words(Daemon(tmp_path, config), 78)
    assert missing(said, "2 delayed messages", str(daemon.state_dir / "delay"), "keep the section delay") == []


def _changelog(config: dict[str, Any]) -> str:
    """The name of the changelog's topic."""
    kafka = config["source"]["kafka"]
    return f"sidecar-delay-{kafka['group_id']}-{kafka['topics'][0]}"


def test_a_changelog_that_deletes_messages_is_refused(kafka: Broker, tmp_path: Path) -> None:
    """Exit 78 with the command that changes the topic."""
    (topic,) = new_topics(kafka, 1, 1)
    config = configuration(kafka, [topic], "http://localhost:9/", "*", delay={})
    kafka.create_topic(_changelog(config), 1, {"cleanup.policy": "delete"})
    said = last_words(Daemon(tmp_path, config), 78)
    assert missing(said, "cleanup.policy=delete", "kafka-configs.sh", "cleanup.policy=compact") == []


def test_what_a_killed_member_held_is_delivered_by_another(kafka: Broker, tmp_path: Path) -> None:
    """It was on another disk, and comes once, late by the session at most."""
    (topic,) = new_topics(kafka, 1, 2)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        first, second = (Daemon(tmp_path, config, name=name) for name in ("first", "second"))
        with ended_after([first, second]):
            for member in (first, second):
                member.start()
                member.wait_ready()
            wait_until(lambda: _owned(first) == _owned(second) == 1, 60, "each has a partition", detail=second.log_tail)
            due = _due(8_000)
            sent = [(number % 2, b"%d" % number) for number in range(1_000)]
            headers = [("tag", b"a"), (HEADER, due)]
            produce(kafka.bootstrap, topic, [Outgoing(at, value, None, headers) for at, value in sent])
            wait_until(lambda: _delayed(first) == _delayed(second) == 500, 30, "each holds its half")
            first.kill9()
            wait_until(lambda: len(receiver.rows()) >= 1_000, 60, "all is delivered", detail=second.log_tail)
            finish(kafka, second, 60)
        restored = [event["count"] for event in second.events("delay.restored") if event["count"]]
        assert (len(set(receiver.rows())), len(receiver.rows()), restored) == (1_000, 1_000, [500])


def _owned(member: Daemon) -> int:
    """Number of partitions that it owns."""
    return sum(each["lag"] is not None for each in member.status()["partitions"])


def _delayed(member: Daemon) -> int:
    """Number of messages that it holds."""
    return int(member.status()["delayed"])


def test_a_changelog_waits_while_the_store_is_local(kafka: Broker, tmp_path: Path) -> None:
    """It is told, and what the changelog holds is delivered when it is the store again."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(number, _due(6_000)) for number in range(3)])
            wait_until(lambda: daemon.status()["delayed"] == 3, 30, "all are held", detail=daemon.log_tail)
            daemon.stop()
        with Daemon(tmp_path, {**config, "delay": {"store": "local"}}) as daemon:
            wait_until(lambda: daemon.events("delay.elsewhere"), 30, "it is told", detail=daemon.log_tail)
            told = "may hold messages: set delay.store to changelog again"
            wait_until(lambda: told in str(daemon.status()["problems"]), 30, "it is a problem", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert receiver.rows() == []
        with Daemon(tmp_path, config) as daemon:
            wait_until(lambda: len(receiver.rows()) == 3, 30, "all are delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
            assert daemon.events("delay.changelog_lost") == []


@BOTH
def test_an_operators_reset_delivers_again_and_holds_nothing_twice(kafka: Broker, tmp_path: Path, store: str) -> None:
    """Held messages from the offset on are dropped, since they come again; those below it stay."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(number, _due(7_000)) for number in range(4)])
            wait_until(lambda: daemon.status()["delayed"] == 4, 30, "all are held", detail=daemon.log_tail)
            daemon.stop()
            group = config["source"]["kafka"]["group_id"]
            kafka.alter_group_offsets(group, topic, {0: 2})
            daemon.start()
            wait_until(lambda: len(receiver.rows()) >= 4, 60, "all are delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)
        assert sorted(row[2] or 0 for row in receiver.rows()) == [0, 1, 2, 3]


@BOTH
def test_a_timestamp_before_1970_is_left_out(kafka: Broker, tmp_path: Path, store: str) -> None:
    """A held message with such a timestamp is delivered without one, and stops nothing."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(tmp_path, config) as daemon:
            old = Outgoing(0, b"{}", None, [("tag", b"a"), (HEADER, b"10s")], timestamp_ms=-5)
            produce(kafka.bootstrap, topic, [old, _sent(1, _due(300))])
            wait_until(lambda: len(receiver.rows()) == 2, 30, "both are delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)


def test_a_folder_that_is_removed_costs_nothing_more(kafka: Broker, tmp_path: Path) -> None:
    """Nothing is committed from then on that only the removed folder has, and the problem is told."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={"store": "local"})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            shutil.rmtree(daemon.state_dir / "delay")
            produce(kafka.bootstrap, topic, [_sent(0, _due(500))])
            problem = "the folder delay of state.dir was moved or removed"
            wait_until(lambda: problem in str(daemon.status()["problems"]), 30, "it is told", detail=daemon.log_tail)
            daemon.kill9()
            daemon.start()
            wait_until(lambda: len(receiver.rows()) == 1, 30, "it is delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)


def test_a_local_copy_that_is_removed_is_restored(kafka: Broker, tmp_path: Path) -> None:
    """The daemon ends rather than pass messages over, and its next start has them from the changelog."""
    (topic,) = new_topics(kafka, 1, 1)
    with Receiver() as receiver:
        config = configuration(kafka, [topic], receiver.url, "*", delay={})
        with Daemon(tmp_path, config) as daemon:
            daemon.wait_ready()
            produce(kafka.bootstrap, topic, [_sent(0, _due(4_000))])
            wait_until(lambda: _delayed(daemon) == 1, 30, "it is held", detail=daemon.log_tail)
            shutil.rmtree(daemon.state_dir / "delay-cache")
            daemon.wait(73)
            daemon.start()
            wait_until(lambda: len(receiver.rows()) == 1, 30, "it is delivered", detail=daemon.log_tail)
            finish(kafka, daemon, 60)


@pytest.mark.parametrize("back", [False, True])
def test_a_change_of_tags_reads_only_messages_that_may_be_wanted(kafka: Broker, tmp_path: Path, back: bool) -> None:
    """So do a listing and a count of one tag; changed back in time, all are delivered."""
    assert delay_tags(kafka, tmp_path, 3_000, 100, 10, store="local" if back else "changelog", back=back).exact
