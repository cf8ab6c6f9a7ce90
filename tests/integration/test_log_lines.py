"""What a real outage writes into the log: a line when it begins and one at its end, however much fails how often."""

from __future__ import annotations

import re
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.ops.outages import FAILURES
from tests.support.kafka import KafkaBroker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.scene import Scene

PARTITIONS, GROUPS = 4, ("a", "b", "c")
FULL = (16 << 10, resource.RLIM_INFINITY)
ROOMY = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
INFOS = {"health.changed", "partitions.assigned", "ids.loaded"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be killed."""
    with KafkaBroker(tmp_path_factory.mktemp("own") / "broker") as broker:
        yield broker


@pytest.fixture
def scene(broker: KafkaBroker, tmp_path: Path) -> Iterator[Scene]:
    """A topic of several partitions, and a receiver."""
    with Receiver() as receiver:
        yield Scene(broker, tmp_path, receiver, broker.create_topic(unique("lines"), PARTITIONS), unique("group"))


def send(scene: Scene, word: bytes) -> int:
    """A message to each partition for each group, with an id; gives how many."""
    sent = [
        Outgoing(
            partition, word, None, [("tag", group.encode()), ("id", b"%s %d %s" % (word, partition, group.encode()))]
        )
        for partition in range(PARTITIONS)
        for group in GROUPS
    ]
    produce(scene.broker.bootstrap, scene.topic, sent)
    return len(sent)


def lines(daemon: Daemon, since: int) -> Counter[str]:
    """Events of an outage and of its end, but for what tells the whole."""
    return Counter(event["event"] for event in daemon.events()[since:] if event["event"] not in INFOS)


def settled(daemon: Daemon, count: int) -> bool:
    """Whether so many messages have come to their end."""
    status = daemon.status()
    return bool(status["delivered"] + status["dead_lettered"] == count and status["lag"] == 0)


def is_over(found: Counter[str]) -> bool:
    """Whether the end of all that failed was told."""
    return all(found[FAILURES.get(one, one)] for one in found)


@pytest.mark.parametrize("dedup", [{}, {"by": {"header": "id"}}], ids=["letters", "ids"])
def test_a_full_disk_is_few_lines(scene: Scene, dedup: dict[str, object]) -> None:
    """Of ids, dead letters and snapshots of all groups and partitions: one when it begins, one when there is room."""
    with scene.daemon(dedup=dedup) as daemon:
        daemon.wait_ready()
        sent = send(scene, b"first")
        wait_until(lambda: settled(daemon, sent), 30, "all is delivered", detail=daemon.log_tail)
        scene.receiver.fail("refuse", status=400, marker="poison")
        begun = len(daemon.events())
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, FULL)
        sent += send(scene, b"more") + send(scene, b"poison")
        kinds = {"ids"} if dedup else {"dead_letters_store", "state"}

        def told() -> bool:
            return kinds <= set(re.findall(r'^sidecar_problem{.*reason="(\w+)".*} 1.0$', daemon.metrics(), re.M))

        wait_until(told, 30, "it is told", detail=daemon.status)
        # The log of SQLite may have room for a snapshot or two.
        wait_until(lambda: lines(daemon, begun)["snapshot.failed"], 30, "a snapshot failed", detail=daemon.log_tail)
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, ROOMY)
        wait_until(lambda: settled(daemon, sent), 30, "all is settled", detail=daemon.log_tail)
        wait_until(lambda: is_over(lines(daemon, begun)), 30, "all is written", detail=daemon.log_tail)
        found = lines(daemon, begun)
    what = "ids" if dedup else "dead_letters"
    assert f"{what}.not_stored" in found
    dead = found.pop("message.dead_lettered")
    assert (set(found.values()), dead) == ({1}, PARTITIONS * len(GROUPS))


def test_a_broker_that_is_away_is_few_lines(scene: Scene, broker: KafkaBroker) -> None:
    """Killed with messages on their way to a commit: what the client says, and that it is over."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        sent = send(scene, b"first")
        wait_until(lambda: settled(daemon, sent), 30, "all is delivered", detail=daemon.log_tail)
        begun = len(daemon.events())
        broker.kill()
        wait_until(lambda: daemon.status()["health"]["kind"] == "membership", 30, "it is told", detail=daemon.status)
        broker.start()
        sent += send(scene, b"later")
        wait_until(lambda: settled(daemon, sent), 60, "all is delivered", detail=daemon.log_tail)
        wait_until(lambda: not daemon.status()["problems"], 15, "it is over", detail=daemon.status)
        failed = [event["what"] for event in daemon.events("kafka.failed")]
        assert len(failed) == len(set(failed)) <= 4
        assert sorted(failed) == sorted(event["what"] for event in daemon.events("kafka.recovered"))
        assert max(lines(daemon, begun).values()) <= 4
