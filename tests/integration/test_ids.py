"""Many remembered message ids on a real broker: restored while others flow, in nobody's way, and all of them known."""

from __future__ import annotations

import json
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
from tests.support.process import http_get, wait_until
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
