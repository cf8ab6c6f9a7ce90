"""What happens to topics and offsets behind the daemon's back: nothing is lost, nothing is repeated but by wish."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.compacted import COMPACT, surviving
from tests.support.kafka import Broker, KafkaBroker, Outgoing, produce, produce_transaction, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.scene import Scene, await_rest, new_scene, values


def settled(scene: Scene, daemon: Daemon) -> None:
    """Start the daemon, let it deliver all that is expected, and stop it."""
    daemon.start()
    scene.await_all(daemon)
    daemon.stop()


# Topics made again


@pytest.mark.parametrize(
    ("count", "running", "start"),
    [(20, True, "latest"), (80, True, "earliest"), (20, False, "latest")],
    ids=["fewer messages", "more messages", "while the daemon is away"],
)
def test_a_topic_made_again_is_read_from_its_start(scene: Scene, count: int, *, running: bool, start: str) -> None:
    """A topic of the same name with fewer or more messages is another topic: all of it arrives, under other names."""
    with scene.daemon(source={"kafka": {"start": start}}) as daemon:
        daemon.wait_ready()
        scene.send(values("old", 50))
        scene.await_all(daemon)
        if not running:
            daemon.stop()
        scene.broker.delete_topic(scene.topic)
        scene.broker.create_topic(scene.topic)
        scene.send(values("new", count))
        if not running:
            daemon.start()
        scene.await_all(daemon, 20)
        assert len(scene.receiver.rows()) == 50 + count
        daemon.stop()


def test_a_topic_made_again_at_once_is_not_read_on_at_the_old_offset(scene: Scene) -> None:
    """What the client fetches of the new topic behind the old offset, before anybody asked for its id, is dropped."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.send(values("old", 50))
        scene.await_all(daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        scene.broker.delete_topic(scene.topic)
        scene.broker.create_topic(scene.topic)
        scene.send(values("new", 80))
        daemon.process.send_signal(signal.SIGCONT)
        scene.await_all(daemon, 20)
        assert len(daemon.events("topic.recreated")) == 1


# Offsets set by an operator


@pytest.mark.parametrize(("offset", "stale"), [(10, False), (45, True)], ids=["earlier", "later, stale metadata"])
def test_an_operators_reset_is_obeyed(scene: Scene, offset: int, *, stale: bool) -> None:
    """Set back, messages come again and are no duplicates; set forward, what lies between is left out."""
    with scene.daemon() as daemon:
        first = scene.send(values("first", 30))
        scene.await_all(daemon)
        daemon.stop()
        _, metadata = scene.broker.committed(scene.group)[scene.topic, 0]
        later = scene.send(values("later", 30))
        scene.broker.alter_group_offsets(scene.group, scene.topic, {0: offset}, metadata=metadata if stale else None)
        scene.expected = first + (first + later)[offset:]
        daemon.start()
        status = scene.await_all(daemon)
        assert (status["consumed"], status["duplicate"]) == (60 - offset, 0)
        assert len(daemon.events("partition.reset")) == 1
        daemon.stop()


@pytest.mark.parametrize("again", [False, True], ids=["reset", "made again"])
def test_ids_of_before_hide_nothing_after(scene: Scene, *, again: bool) -> None:
    """With duplicates told by id, what a reset replays and what a new topic holds arrives: those ids are forgotten."""
    daemon = scene.daemon(dedup={"by": {"header": "tag"}})
    for tag in ("one", "two"):
        scene.send([b"x"], tag=tag)
    settled(scene, daemon)
    if again:
        scene.broker.delete_topic(scene.topic)
        scene.broker.create_topic(scene.topic)
        scene.send([b"new"], tag="one")
    else:
        scene.broker.alter_group_offsets(scene.group, scene.topic, {0: 0})
        scene.expected *= 2
    settled(scene, daemon)
    produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"twin", None, [("tag", b"one")])])
    with daemon:
        daemon.wait_ready()
        wait_until(lambda: daemon.status()["duplicate"] == 1, 15, "a twin of since is dropped", detail=daemon.log_tail)
    assert Counter(scene.receiver.rows()) == Counter(scene.expected)


def test_metadata_of_another_group_is_ignored(scene: Scene, group: str) -> None:
    """A group that was given another's offsets and metadata starts at that offset with names of its own."""
    scene.send(values("first", 30))
    settled(scene, scene.daemon())
    offset, metadata = scene.broker.committed(scene.group)[scene.topic, 0]
    other = unique("copy")
    scene.broker.alter_group_offsets(other, scene.topic, {0: offset}, metadata=metadata)
    scene.send(values("later", 5))
    with scene.daemon("copy", source={"kafka": {"group_id": other}}) as daemon:
        scene.await_all(daemon)
        assert [event["reason"] for event in daemon.events("partition.reset")] == [
            "the metadata beside the offset is not ours"
        ]
    scopes = {part["part"].split("@")[1].split(":")[0] for part in scene.receiver.parts()}
    assert len(scopes) == 2


# Offsets and messages that expired


def test_what_retention_took_unread_is_told(scene: Scene) -> None:
    """Deleted below the committed offset, nothing changes; beyond it the daemon says how many are gone, and goes on."""
    with scene.daemon() as daemon:
        scene.send(values("first", 30))
        scene.await_all(daemon)
        daemon.stop()
        scene.broker.delete_records(scene.topic, {0: 20})
        scene.send(values("second", 30))
        daemon.start()
        scene.await_all(daemon)
        assert not daemon.events("offset.expired")
        daemon.stop()
        gone = scene.send(values("third", 30))[:10]
        scene.broker.delete_records(scene.topic, {0: 70})
        scene.expected = [row for row in scene.expected if row not in gone]
        daemon.start()
        scene.await_all(daemon)
        (event,) = daemon.events("offset.expired")
        assert (event["committed"], event["log_start"], event["expired"]) == (60, 70, 10)


def test_messages_deleted_while_in_flight_lose_nothing_that_was_read(scene: Scene) -> None:
    """What was read before retention took it is delivered, and the daemon reads on."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.receiver.fail("status", status=503)
        scene.send(values("first", 30))
        wait_until(lambda: daemon.status()["in_flight"] == 30, 10, "all was read", detail=daemon.log_tail)
        scene.broker.delete_records(scene.topic, {0: 30})
        scene.send(values("later", 5))
        scene.receiver.faults.clear()
        scene.await_all(daemon)
        assert len(scene.receiver.rows()) == 35


def test_a_deleted_commit_goes_on_from_the_state_folder(scene: Scene) -> None:
    """With the group deleted at the broker, nothing is repeated: the state folder knows where it was."""
    with scene.daemon() as daemon:
        scene.send(values("first", 30))
        scene.await_all(daemon)
        daemon.stop()
        scene.broker.delete_group(scene.group)
        scene.send(values("later", 10))
        daemon.start()
        status = scene.await_all(daemon)
        assert status["consumed"] == 10
        assert len(daemon.events("commit.expired")) == 1


# Where a new group starts, and what is new later


def test_latest_starts_at_the_end_and_stays_there(scene: Scene) -> None:
    """A new group with `start: latest` skips what was there, and nothing that came after its first start."""
    produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"before")] * 5)
    with scene.daemon(source={"kafka": {"start": "latest"}}) as daemon:
        committed = scene.broker.committed
        wait_until(lambda: committed(scene.group), 15, "the start is committed", detail=daemon.log_tail)
        daemon.kill9()
        scene.send(values("while it was away", 5))
        daemon.start()
        scene.await_all(daemon)
        assert len(scene.receiver.rows()) == 5


def test_a_timestamp_starts_there(scene: Scene) -> None:
    """A new group with a timestamp as `start` gets the first message that is not older, and all after it."""
    day_ms = 86_400_000
    base_ms = int(time.time() * 1000) - 10 * day_ms
    sent = [Outgoing(0, b"%d" % i, None, [("tag", b"a")], base_ms + i * day_ms) for i in range(5)]
    produce(scene.broker.bootstrap, scene.topic, sent)
    scene.expected = [(scene.topic, 0, i, value_hash(b"%d" % i)) for i in range(3, 5)]
    start = datetime.fromtimestamp((base_ms + 3 * day_ms) // 1000, UTC).isoformat()
    with scene.daemon(source={"kafka": {"start": start}}) as daemon:
        scene.await_all(daemon)
        assert len(scene.receiver.rows()) == 2


def test_a_partition_added_later_is_read_from_its_start(scene: Scene) -> None:
    """Even with `start: latest`, what stands in a new partition before the daemon hears of it is delivered."""
    with scene.daemon(source={"kafka": {"start": "latest"}}) as daemon:
        daemon.wait_ready()
        scene.broker.add_partitions(scene.topic, 2)
        scene.send(values("new", 5), partition=1)
        scene.send(values("old", 5), partition=0)
        scene.await_all(daemon, 20)
        assert len(scene.receiver.rows()) == 10


def test_a_pattern_takes_topics_that_come_later(kafka: Broker, group: str, tmp_path: Path) -> None:
    """A pattern that fits nothing at the start is no error, and each topic that fits later is read."""
    prefix = unique("pattern")
    with Receiver() as receiver:
        scene = Scene(kafka, tmp_path, receiver, f"{prefix}-b", group)
        with scene.daemon(source={"kafka": {"topics": [f"^{prefix}-.*"], "start_timeout": "5s"}}) as daemon:
            wait_until(lambda: daemon.events("daemon.started"), 15, "it started", detail=daemon.log_tail)
            kafka.create_topic(f"{prefix}-a")
            kafka.create_topic(scene.topic)
            scene.send(values("a", 5), topic=f"{prefix}-a")
            scene.send(values("b", 5))
            scene.await_all(daemon, 20)
            assert len(scene.receiver.rows()) == 10


def test_a_topic_of_a_pattern_may_go(kafka: Broker, group: str, tmp_path: Path) -> None:
    """A topic that a pattern found is deleted: 5 s after the group gave it up, nothing is a problem."""
    prefix = unique("pattern")
    with Receiver() as receiver:
        scene = Scene(kafka, tmp_path, receiver, kafka.create_topic(f"{prefix}-stays"), group)
        gone = kafka.create_topic(f"{prefix}-goes")
        with scene.daemon(source={"kafka": {"topics": [f"^{prefix}-.*"]}}) as daemon:
            scene.send(values("a", 5))
            scene.send(values("b", 5), topic=gone)
            scene.await_all(daemon, 20)
            kafka.delete_topic(gone)

            def given_up() -> bool:
                told = [*daemon.events("partitions.revoked"), *daemon.events("partitions.lost")]
                return any(gone in str(event["partitions"]) for event in told)

            wait_until(given_up, 20, "the group gave it up", detail=daemon.log_tail)
            wait_until(lambda: not daemon.status()["problems"], 5, "it is no problem", detail=daemon.status)
            scene.send(values("c", 5))
            wait_until(lambda: len(receiver.rows()) == 15, 15, "the other topic goes on", detail=daemon.log_tail)
            assert daemon.status()["health"]["state"] == "healthy"


def test_a_topic_that_is_deleted_is_named(scene: Scene) -> None:
    """When all that a daemon reads is gone it is stopped, and says that the topic is missing, not Kafka."""
    with scene.daemon() as daemon:
        scene.send(values("a", 5))
        scene.await_all(daemon, 20)
        scene.broker.delete_topic(scene.topic)
        said = f"Kafka: the topic {scene.topic} no longer exists: create it again"
        wait_until(lambda: said in daemon.status()["health"]["reason"], 20, "it is told", detail=daemon.status)
        assert daemon.status()["health"]["state"] == "stopped"


# Gaps


def test_an_idle_transactional_topic_has_no_lag(scene: Scene) -> None:
    """Aborted messages never arrive, committed ones do, and the position behind the last marker is committed."""
    bootstrap, topic = scene.broker.bootstrap, scene.topic
    yes = [Outgoing(0, b"yes", None, [("tag", b"a")])] * 3
    with scene.daemon() as daemon:
        produce_transaction(bootstrap, topic, yes, transactional_id=topic)
        produce_transaction(bootstrap, topic, [Outgoing(0, b"no")] * 3, transactional_id=topic, commit=False)
        scene.expected = [(topic, 0, i, value_hash(b"yes")) for i in range(3)]
        status = scene.await_all(daemon)
        assert status["consumed"] == 3
        assert scene.broker.end_offsets(topic) == {0: 8}
        wait_until(lambda: scene.broker.committed(scene.group)[topic, 0][0] == 8, 20, "the end is committed")
        produce_transaction(bootstrap, topic, [Outgoing(0, b"no")], transactional_id=topic, commit=False)
        wait_until(lambda: scene.broker.committed(scene.group)[topic, 0][0] == 10, 20, "the new end is committed")
        assert await_rest(daemon)["consumed"] == 3


def test_compaction_under_way_loses_nothing_that_is_left(tmp_path: Path) -> None:
    """Killed with a batch under way that compaction then thins out: what is left arrives once, under the same name."""
    # A broker of its own: the cleaner of a shared one is busy with topics of other tests.
    with KafkaBroker(tmp_path / "broker") as broker, new_scene(broker, tmp_path) as scene:
        scene.topic = broker.create_topic(unique("compacted"), 1, COMPACT)
        now_ms, tag = int(time.time() * 1_000), [("tag", b"a")]
        keyed = [
            Outgoing(0, None if i % 5 == 4 else b"%d" % i, b"%d" % (i % 20), tag, now_ms - 9_000 + i)
            for i in range(100)
        ]
        with scene.daemon() as daemon:
            daemon.wait_ready()
            scene.receiver.fail("status", status=503)
            produce(broker.bootstrap, scene.topic, keyed)
            wait_until(lambda: daemon.events("group.failed"), 10, "the batch was sent", detail=daemon.log_tail)
            daemon.kill9()
            # Only rolled segments are compacted, and this one rolls, as it is much younger.
            produce(broker.bootstrap, scene.topic, [Outgoing(0, b"last", b"last", tag, now_ms)])
            wait_until(lambda: len(surviving(broker, scene.topic)) < 30, 60, "the topic is compacted")
            scene.expected = surviving(broker, scene.topic)
            assert None in {row[3] for row in scene.expected}
            scene.receiver.faults.clear()
            daemon.start()
            scene.await_all(daemon)
            assert max(part["attempt"] for part in scene.receiver.parts()) > 1
