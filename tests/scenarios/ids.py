"""Many remembered ids, restored at a restart."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from sidecar.core.messages.ids import text_id
from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import mixed
from sidecar.state.ids.files import IdFiles
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, http_get, wait_until, write_config
from tests.support.receiver import value_hash
from tests.support.scene import await_rest, new_scene, rss_bytes

MEMORY_BYTES = 120 << 20


def outgoing(partition: int, first: int, last: int) -> list[Outgoing]:
    """Messages with ids of their own."""
    return [
        Outgoing(partition, b"%d" % i, None, [("tag", b"a"), ("id", b"%d-%d" % (partition, i))])
        for i in range(first, last)
    ]


def switched(broker: Broker, folder: Path, messages: int, times: int, seed: int = 1) -> Finding:
    """Kills in mid-flow, and at each the other way to read Kafka; one in ten messages has a repeated id.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: How many.
        times: How many kills.
        seed: Of the instants and ids.
    """
    begun, chance, partitions = time.monotonic(), random.Random(seed), 2
    sent = [0] * partitions
    with new_scene(broker, folder, partitions) as scene:
        daemon = scene.daemon(dedup={"by": {"header": "id"}}, source={"kafka": {"lane": "on"}})
        with daemon:
            for life in range(times):
                for partition in range(partitions):
                    first = sent[partition]
                    fresh = outgoing(partition, first, first + messages * 9 // 10 // partitions // times)
                    sent[partition] += len(fresh)
                    again = [one for i in chance.choices(range(sent[partition]), k=len(fresh) // 9)
                             for one in outgoing(partition, i, i + 1)]  # fmt: skip
                    # A twin behind its origin, else in a random order.
                    produce(broker.bootstrap, scene.topic, [*fresh, *again])
                daemon.wait_ready()
                goal = len(scene.receiver.rows()) + chance.randrange(sum(sent) // (life + 1))
                wait_until(lambda goal=goal: len(scene.receiver.rows()) >= goal or daemon.status()["lag"] == 0, 60,  # type: ignore[misc]
                           "it delivers", detail=daemon.log_tail)  # fmt: skip
                daemon.kill9()
                _switch(daemon)
                daemon.start()
            daemon.wait_ready()
            await_rest(daemon, 60, {(scene.topic, p): end for p, end in broker.end_offsets(scene.topic).items()})
            daemon.stop()
        got = Counter((partition, value) for _, partition, _, value in scene.receiver.rows())
        wanted = Counter((p, value_hash(b"%d" % i)) for p in range(partitions) for i in range(sent[p]))
        uses = len(daemon.events("lane.used"))
    assert uses == times // 2 + 1
    point = "`kill -9`, and at each the fast lane is switched on or off; one in ten messages has a known id"
    return Finding(point, times, messages, tally_counts(got, wanted), time.monotonic() - begun, f"{uses} lives in C")


def _switch(daemon: Daemon) -> None:
    kafka = daemon.config["source"]["kafka"]
    kafka["lane"] = "off" if kafka["lane"] == "on" else "on"
    write_config(daemon.config_path, daemon.config)


def remember(folder: Path, topic: str, count: int) -> None:
    """Put so many ids of partition 0 into the state folder, in five files, with those of 1,000 later messages."""
    with closing(sqlite3.connect(folder / "state.db")) as database:
        (owner,) = database.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
    kept = IdFiles(folder, print)
    kept.bind(*json.loads(owner))
    numbers = [text_id(b"0-%d" % i) for i in range(1_000, 2_000)]
    keys = mixed(np.concatenate([np.arange(count), np.array(numbers, np.int64)]))
    for part in np.array_split(keys, 5):
        kept.add_keys(TopicPartition(topic, 0), 0, np.sort(part))


def restored(broker: Broker, folder: Path, remembered: int, flowing: int) -> Finding:
    """A restart with millions of ids in one partition, while messages wait in the other.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        remembered: How many ids partition 0 has.
        flowing: How many new messages partition 1 has.

    Raises:
        AssertionError: The daemon was ill meanwhile, took too much memory, or forgot an id.
    """
    begun, looks = time.monotonic(), list[int]()
    with new_scene(broker, folder, 2) as scene:
        daemon = scene.daemon(dedup={"by": {"header": "id"}})
        before = [*outgoing(0, 0, 50), *outgoing(1, 0, 50)]
        with daemon:
            produce(broker.bootstrap, scene.topic, before)
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delivered"] == 100, 30, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
        remember(daemon.state_dir, scene.topic, remembered)
        new = [*outgoing(0, 50, 60), *outgoing(1, 50, 60 + flowing)]
        known = [*outgoing(0, 1_000, 1_100), *outgoing(0, 40, 50), *outgoing(1, 40, 50)]
        produce(broker.bootstrap, scene.topic, [*known, *new])
        with daemon:

            def told() -> bool:
                looks.append(http_get(f"{daemon.admin_url}/livez")[0])
                status = daemon.status()
                return (status["delivered"], status["duplicate"]) == (len(new), len(known))

            daemon.wait_ready()
            wait_until(told, 60, "each is told from what is remembered", detail=daemon.log_tail)
            assert set(looks) == {200}
            ids = daemon.status()["ids"]
            assert ids["remembered"] == remembered + 1_000 + len(before) + len(new)
            assert ids["file_bytes"] < 11 * remembered
            memory_bytes = rss_bytes(daemon.pid, "RssAnon")
            seconds = [event["seconds"] for event in daemon.events("ids.loaded")[-2:]]
            stopping = time.monotonic()
            daemon.stop()
            assert time.monotonic() - stopping < 3
        got = Counter((partition, value) for _, partition, _, value in scene.receiver.rows())
        found = tally_counts(got, Counter((one.partition, value_hash(one.value)) for one in [*before, *new]))
    assert memory_bytes < MEMORY_BYTES
    assert max(seconds) < 5
    notes = (
        f"{remembered:,} ids known again after {max(seconds):.1f} s, the other partition's after {min(seconds):.1f} s; "
    )
    notes += f"{memory_bytes >> 20} MiB anonymous; `/livez` 200 at {len(looks)} of {len(looks)} looks"
    point = "restart with millions of message ids, which are restored while messages flow"
    return Finding(point, 1, len(before) + len(known) + len(new), found, time.monotonic() - begun, notes)
