"""Brokers that forget: older commits come back, and logs lose their end."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sidecar.sources.kafka.start import CommitMemory
from sidecar.state.database import DATABASE_FILE
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.kafka import Broker, KafkaBroker
from tests.support.process import Daemon, wait_until
from tests.support.scene import Scene, await_rest, new_scene, values

MESSAGES = 4_000


def small(scene: Scene) -> Daemon:
    """A daemon whose batches are small, so that it commits often."""
    return scene.daemon(batch={"max_messages": 50, "linger": "1ms"})


def first_commit(scene: Scene, daemon: Daemon, after: int) -> tuple[int, str]:
    """A commit of the daemon at some offset beyond `after`, while it goes on."""

    def committed() -> tuple[int, str] | None:
        found = scene.broker.committed(scene.group).get((scene.topic, 0))
        return found if found and found[0] > after else None

    found = wait_until(committed, 20, "something is committed", detail=daemon.log_tail)
    assert found is not None
    return found


def remembered(daemon: Daemon) -> int:
    """The newest watermark that the daemon's folder has of its only partition."""
    with contextlib.closing(sqlite3.connect(f"file:{daemon.state_dir / DATABASE_FILE}?mode=ro", uri=True)) as database:
        (text,) = database.execute("SELECT text FROM progress").fetchone()
    memory = CommitMemory.load(text)
    assert memory is not None
    return memory.watermark


def rewound(scene: Scene, daemon: Daemon) -> tuple[int, str]:
    """Let all be delivered in two waves, kill the daemon, and put a commit from amidst the first one back."""
    daemon.wait_ready()
    scene.send(values("first", MESSAGES))
    offset, metadata = first_commit(scene, daemon, 0)
    scene.send(values("second", MESSAGES))
    scene.await_all(daemon)
    first_commit(scene, daemon, 2 * MESSAGES - 1)
    wait_until(lambda: remembered(daemon) == 2 * MESSAGES, 20, "the folder has the newest commit")
    daemon.kill9()
    wait_until(lambda: not scene.broker.members(scene.group), 20, "the group gave the dead member up")
    scene.broker.alter_group_offsets(scene.group, scene.topic, {0: offset}, metadata=metadata)
    return offset, metadata


def repeated(
    check: Callable[[Scene], Tally], point: str, messages: int, broker: Broker, folder: Path, times: int
) -> Finding:
    """A check that many times, each with a topic, a group and a folder of its own."""
    begun, found = time.monotonic(), Tally()
    for number in range(times):
        place = folder / f"{check.__name__}-{number}"
        place.mkdir()
        with new_scene(broker, place) as scene:
            found.add(check(scene))
    return Finding(point, times, times * messages, found, time.monotonic() - begun)


def commit_rewound(scene: Scene) -> Tally:
    """The daemon is killed at rest, and an older commit of its own comes back; its folder knows better."""
    with small(scene) as daemon:
        offset, _ = rewound(scene, daemon)
        later = scene.send(values("later", 100))
        daemon.start()
        status = scene.await_all(daemon)
        assert (offset < MESSAGES, status["delivered"]) == (True, len(later))
        (behind,) = daemon.events("commit.behind")
        assert (behind["committed"], behind["remembered"]) == (offset, 2 * MESSAGES)
        daemon.stop()
    return scene.tally()


def commit_gone(scene: Scene) -> Tally:
    """The daemon is killed in mid-flow, and its commit deleted."""
    with small(scene) as daemon:
        daemon.wait_ready()
        scene.send(values("first", MESSAGES))
        first_commit(scene, daemon, 0)
        daemon.kill9()
        wait_until(lambda: not scene.broker.members(scene.group), 20, "the group gave the dead member up")
        scene.broker.delete_group(scene.group)
        daemon.start()
        scene.await_all(daemon)
        assert len(daemon.events("commit.expired")) == 1
        daemon.stop()
    return scene.tally()


def put_back(folder: Path) -> Tally:
    """All files of a broker come from an older copy, and its log is filled with other messages."""
    place = folder / "kafka" / "broker"
    with KafkaBroker(place) as broker, new_scene(broker, folder) as scene:
        with small(scene) as daemon:
            daemon.wait_ready()
            kept = scene.send(values("kept", 1_000))
            scene.await_all(daemon)
            broker.stop()
            shutil.copytree(place, folder / "copy")
            broker.start()
            vanished = scene.send(values("vanished", 1_000))
            scene.await_all(daemon)
            daemon.kill9()
            broker.kill()
            shutil.rmtree(place)
            shutil.copytree(folder / "copy", place)
            broker.start()
            scene.expected = kept
            scene.send(values("other", 2_000))
            daemon.start()
            daemon.wait_ready()
            await_rest(daemon, ends={(scene.topic, 0): 3_000})
            assert len(daemon.events("partition.truncated")) == 1
            daemon.stop()
        return tally_counts(Counter(scene.receiver.rows()) - Counter(vanished), Counter(scene.expected))


def rewinds(broker: Broker, folder: Path, times: int) -> list[Finding]:
    """Each way in which a broker forgets, that many times."""
    begun, found = time.monotonic(), Tally()
    for number in range(times):
        found.add(put_back(folder / f"restored-{number}"))
        shutil.rmtree(folder / f"restored-{number}")
    filled = Finding("the broker's files put back to an older copy, metadata log included, and its log refilled",
                     times, 4_000 * times, found, time.monotonic() - begun)  # fmt: skip
    rewound = "an older commit came back after `kill -9`, state folder kept"
    gone = "commit deleted after `kill -9` in mid-flow, state folder kept"
    return [
        repeated(commit_rewound, rewound, 2 * MESSAGES + 100, broker, folder, times),
        repeated(commit_gone, gone, MESSAGES, broker, folder, times),
        filled,
    ]
