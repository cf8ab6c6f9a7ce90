"""Many remembered message ids on a real broker: restored while others flow, in nobody's way, and all of them known."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from sidecar.core.idruns import mixed
from sidecar.core.ids import text_id
from sidecar.core.records import TopicPartition
from sidecar.state.id_files import IdFiles
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, http_get, wait_until
from tests.support.receiver import Receiver
from tests.support.scene import Scene, rss_bytes

REMEMBERED = 3_000_000
MEMORY_BYTES = 120 << 20


def outgoing(partition: int, first: int, last: int) -> list[Outgoing]:
    """Messages with ids of their own."""
    return [
        Outgoing(partition, b"%d" % i, None, [("tag", b"a"), ("id", b"%d-%d" % (partition, i))])
        for i in range(first, last)
    ]


def remember(folder: Path, topic: str) -> None:
    """Put many ids of partition 0 into the state folder, in five files: those of 1,000 and more messages among them."""
    with closing(sqlite3.connect(folder / "state.db")) as database:
        (owner,) = database.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
    kept = IdFiles(folder, print)
    kept.bind(*json.loads(owner))
    numbers = [text_id(b"0-%d" % i) for i in range(1_000, 2_000)]
    keys = mixed(np.concatenate([np.arange(REMEMBERED), np.array(numbers, np.int64)]))
    for part in np.array_split(keys, 5):
        kept.add(TopicPartition(topic, 0), 0, np.sort(part))


def test_ids_are_restored_beside_the_flow(kafka: Broker, tmp_path: Path) -> None:
    """Millions of ids are known again after a restart within seconds, in mapped files; a stop waits for none of it."""
    topic = unique("ids")
    kafka.create_topic(topic, 2)
    with Receiver() as receiver:
        scene = Scene(kafka, tmp_path, receiver, topic, unique("group"))
        daemon = scene.daemon(dedup={"by": {"header": "id"}})
        with daemon:
            produce(kafka.bootstrap, topic, [*outgoing(0, 0, 50), *outgoing(1, 0, 50)])
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delivered"] == 100, 30, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
        remember(daemon.state_dir, topic)
        with daemon:
            produce(kafka.bootstrap, topic, [*outgoing(0, 1_000, 1_100), *outgoing(0, 40, 60), *outgoing(1, 40, 60)])
            looks: list[int] = []

            def told() -> bool:
                looks.append(http_get(f"{daemon.admin_url}/livez")[0])
                status = daemon.status()
                return (status["delivered"], status["duplicate"]) == (20, 120)

            daemon.wait_ready()
            wait_until(told, 30, "each is told from what is remembered", detail=daemon.log_tail)
            assert set(looks) == {200}
            ids = daemon.status()["ids"]
            assert ids["remembered"] == REMEMBERED + 1_000 + 120
            assert ids["file_bytes"] < 11 * REMEMBERED
            assert rss_bytes(daemon.pid, "RssAnon") < MEMORY_BYTES
            seconds = [event["seconds"] for event in daemon.events("ids.loaded")[-2:]]
            assert max(seconds) < 5
            begun = time.monotonic()
            daemon.stop()
            assert time.monotonic() - begun < 3


def settled(daemon: Daemon, delivered: int, duplicate: int) -> bool:
    """Whether all came to its end, so many as each."""
    status = daemon.status()
    return (status["delivered"], status["duplicate"], status["lag"]) == (delivered, duplicate, 0)


def mapped(daemon: Daemon) -> bool:
    """Whether ids are looked up in a file."""
    code, body = http_get(f"{daemon.admin_url}/status")
    return code == 200 and bool(json.loads(body)["ids"]["file_bytes"])


def test_files_of_ids_that_go_are_made_again(kafka: Broker, tmp_path: Path) -> None:
    """Removed under the daemon, each id is known still, now and after a crash; the daemon says so and is degraded."""
    topic = unique("ids")
    kafka.create_topic(topic, 1)
    with Receiver() as receiver:
        daemon = Scene(kafka, tmp_path, receiver, topic, unique("group")).daemon(dedup={"by": {"header": "id"}})
        with daemon:
            produce(kafka.bootstrap, topic, outgoing(0, 0, 3_000))
            daemon.wait_ready()
            wait_until(lambda: settled(daemon, 3_000, 0), 30, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
            daemon.start()  # which moves them into a file
            wait_until(lambda: mapped(daemon), 20, "they are in a file", detail=daemon.log_tail)
            folder = daemon.state_dir / "ids"
            shutil.rmtree(folder)
            wait_until(lambda: list(folder.rglob("*.ids")), 10, "it is made again", detail=daemon.log_tail)
            wait_until(lambda: daemon.status()["health"]["kind"] == "state_damaged", 10, "it is told")
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
    topic = unique("ids")
    kafka.create_topic(topic, 1)
    with Receiver() as receiver:
        daemon = Scene(kafka, tmp_path, receiver, topic, unique("group")).daemon(dedup={"by": {"header": "id"}})
        with daemon:
            produce(kafka.bootstrap, topic, outgoing(0, 0, 3_000))
            daemon.wait_ready()
            wait_until(lambda: settled(daemon, 3_000, 0), 30, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
            daemon.start()
            wait_until(lambda: mapped(daemon), 20, "they are in a file", detail=daemon.log_tail)
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
            wait_until(lambda: daemon.status()["health"]["kind"] == "state_damaged", 10, "it is told")
            damages = daemon.events("state.damaged")
            assert [one["reason"] for one in damages] in (["not as long as it was"], ["no file of message ids"])
            assert len(receiver.rows()) >= 3_000
            daemon.stop()
