"""Many remembered message ids on a real broker: restored while others flow, in nobody's way, and all of them known."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.core.messages.tags import TagFilter
from sidecar.runtime.lane import is_built
from tests.scenarios.ids import outgoing, restored, switched
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, http_get, wait_until
from tests.support.receiver import Receiver
from tests.support.scene import Scene

REMEMBERED, FLOWING = 3_000_000, 2_000
NEEDS_LANE = pytest.mark.skipif(not is_built(), reason="the fast lane is not built")


def test_ids_are_restored_beside_the_flow(kafka: Broker, tmp_path: Path) -> None:
    """Millions of ids are known again after a restart within seconds, in mapped files; a stop waits for none of it."""
    assert restored(kafka, tmp_path, REMEMBERED, FLOWING).exact


@NEEDS_LANE
def test_the_fast_lane_knows_the_ids_that_python_knew(kafka: Broker, tmp_path: Path) -> None:
    """Killed four times, and each life reads the other way: each id is delivered once."""
    assert switched(kafka, tmp_path, 20_000, 4).exact


def settled(daemon: Daemon, delivered: int, duplicate: int) -> bool:
    """Whether all came to its end, so many as each."""
    status = daemon.status()
    return (status["delivered"], status["duplicate"], status["lag"]) == (delivered, duplicate, 0)


def mapped(daemon: Daemon) -> bool:
    """Whether ids are looked up in a file."""
    code, body = http_get(f"{daemon.admin_url}/status")
    return code == 200 and bool(json.loads(body)["ids"]["file_bytes"])


@contextmanager
def filed(kafka: Broker, folder: Path) -> Iterator[tuple[Daemon, Receiver, str]]:
    """A daemon that has 3,000 ids in a file, its receiver and its topic."""
    topic = unique("ids")
    kafka.create_topic(topic, 1)
    with Receiver() as receiver:
        daemon = Scene(kafka, folder, receiver, topic, unique("group")).daemon(dedup={"by": {"header": "id"}})
        with daemon:
            produce(kafka.bootstrap, topic, outgoing(0, 0, 3_000))
            daemon.wait_ready()
            wait_until(lambda: settled(daemon, 3_000, 0), 30, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
            daemon.start()  # which moves them into a file
            wait_until(lambda: mapped(daemon), 20, "they are in a file", detail=daemon.log_tail)
            yield daemon, receiver, topic


def test_files_of_ids_that_go_are_made_again(kafka: Broker, tmp_path: Path) -> None:
    """Removed under the daemon, each id is known still, now and after a crash; the daemon says so and is degraded."""
    with filed(kafka, tmp_path) as (daemon, _, topic):
        folder = daemon.state_dir / "ids"
        shutil.rmtree(folder)
        wait_until(lambda: list(folder.rglob("*.ids")), 10, "it is made again", detail=daemon.log_tail)
        wait_until(
            lambda: daemon.status()["health"]["kind"] == "state_damaged", 30, "it is told", detail=daemon.log_tail
        )
        (damage,) = daemon.events("state.damaged")
        assert (damage["reason"], damage["outcome"]) == ("removed", "made again from memory")
        daemon.kill9()
        daemon.start()
        daemon.wait_ready()
        produce(kafka.bootstrap, topic, outgoing(0, 0, 3_000))
        wait_until(lambda: settled(daemon, 0, 3_000), 30, "each is known", detail=daemon.log_tail)
        assert len(daemon.events("state.damaged")) == 1
        daemon.stop()


def test_a_file_of_ids_that_is_cut_short_ends_one_life_at_most(kafka: Broker, tmp_path: Path) -> None:
    """The kernel may end the daemon, which leaves a traceback; the next one says what is forgotten, and goes on."""
    with filed(kafka, tmp_path) as (daemon, receiver, topic):
        (file,) = daemon.state_dir.rglob("*.ids")
        os.truncate(file, 100)
        produce(kafka.bootstrap, topic, outgoing(0, 0, 3_000))

        def is_over() -> bool:
            return not daemon.running or bool(daemon.events("state.damaged"))

        wait_until(is_over, 20, "it is found", detail=daemon.log_tail)
        if not daemon.running:
            assert daemon.process.returncode == -signal.SIGBUS
            assert "Bus error" in daemon.log_path.read_text()
            daemon.start()
            daemon.wait_ready()
        wait_until(lambda: daemon.status()["lag"] == 0, 30, "it goes on", detail=daemon.log_tail)
        wait_until(
            lambda: daemon.status()["health"]["kind"] == "state_damaged", 30, "it is told", detail=daemon.log_tail
        )
        damages = daemon.events("state.damaged")
        assert [one["reason"] for one in damages] in (["not as long as it was"], ["no file of message ids"])
        assert len(receiver.rows()) >= 3_000
        daemon.stop()


def test_an_id_that_is_given_twice_drops_nothing_and_is_told(kafka: Broker, tmp_path: Path) -> None:
    """A thousand messages whose first value is the same are delivered; metric and problem tell of them."""
    topic = unique("odd-ids")
    kafka.create_topic(topic, 1)
    with Receiver() as receiver:
        daemon = Scene(kafka, tmp_path, receiver, topic, unique("group")).daemon(dedup={"by": {"header": "id"}})
        with daemon:
            twice = [Outgoing(0, b"%d" % i, None, [("id", b"same"), ("id", b"%d" % i)]) for i in range(1_000)]
            produce(kafka.bootstrap, topic, [*twice, *(Outgoing(0, b"x", None, [("id", b"one")]) for _ in range(2))])
            daemon.wait_ready()
            wait_until(lambda: settled(daemon, 1_001, 1), 30, "all is delivered", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["ids"]["unusable"] == 1_000, 5, "they are counted")
            assert "sidecar_ids_unusable_total 1000.0" in http_get(f"{daemon.admin_url}/metrics")[1].decode()
            assert daemon.status()["health"]["kind"] == "ids_unusable"


def test_that_nothing_is_wanted_is_told_with_the_tags(kafka: Broker, tmp_path: Path) -> None:
    """All is filtered and committed, and the problem names the tags that were seen."""
    topic = unique("unwanted")
    kafka.create_topic(topic, 1)
    with Receiver() as receiver:
        tags = {"from": {"header": "tag"}, "subscribe": "'created, paid'"}
        daemon = Scene(kafka, tmp_path, receiver, topic, unique("group")).daemon(tags=tags)
        with daemon:
            wrong = [Outgoing(0, b"x", None, [("tag", (b"created", b"paid")[i % 2])]) for i in range(2_000)]
            produce(kafka.bootstrap, topic, wrong)
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["health"]["kind"] == "all_filtered", 30, "it is told")
            wait_until(lambda: daemon.status()["lag"] == 0, 30, "all is committed")
            assert "tags seen: 'created', 'paid'" in daemon.status()["health"]["reason"]
            assert "messages.all_filtered" in daemon.log_tail()
            produce(kafka.bootstrap, topic, [Outgoing(0, b"x", None, [("tag", b"created, paid")])])
            wait_until(lambda: daemon.status()["health"]["state"] == "healthy", 30, "a wanted message ends it")


@pytest.mark.parametrize("lane", [pytest.param("on", marks=NEEDS_LANE), "off"])
def test_status_and_metric_say_what_refused_tags(kafka: Broker, tmp_path: Path, lane: str) -> None:
    """Most unwanted tags are refused by the mask, the few that it lets through by the look, in C and in Python."""
    topic, filter_ = unique("masked"), TagFilter("paid || created || sent")
    kafka.create_topic(topic, 1)
    tags = [b"user-%d" % i if i % 10 else b"paid" for i in range(5_000)]
    looks = sum(filter_.may_want(tag) for tag in tags) - tags.count(b"paid")
    with Receiver() as receiver:
        wanted = {"from": {"header": "tag"}, "subscribe": "paid || created || sent"}
        scene = Scene(kafka, tmp_path, receiver, topic, unique("group"))
        with scene.daemon(tags=wanted, source={"kafka": {"lane": lane}}) as daemon:
            produce(kafka.bootstrap, topic, [Outgoing(0, b"x", None, [("tag", tag)]) for tag in tags])
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delivered"] == 500, 30, "the wanted ones", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["filtered"] == 4_500, 5, "the others are counted")
            assert daemon.status()["tags_refused"] == {"mask": 4_500 - looks, "look": looks}
            assert (
                f'sidecar_tags_refused_total{{by="look"}} {looks}.0'
                in http_get(f"{daemon.admin_url}/metrics")[1].decode()
            )
            daemon.stop()
