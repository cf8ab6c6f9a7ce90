"""Whatever thread of the daemon fails, the process ends with 70, and the next one delivers what was left."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support.kafka import Broker
from tests.support.process import Daemon, wait_until
from tests.support.scene import new_scene, values

WITHIN_S = 40.0
"""Limit of a process's end after the failure of a thread, in a loaded machine."""


@pytest.mark.parametrize("name", ["writer", "sorter-0", "sink-deadlines", "history", "admin"])
def test_a_failed_thread_ends_the_process_and_the_next_is_exact(kafka: Broker, tmp_path: Path, name: str) -> None:
    """An exception that no code knows, thrown into a thread while messages flow."""
    with new_scene(kafka, tmp_path) as scene:
        config = scene.config(dedup={"by": {"header": "id"}})
        failing = Daemon(tmp_path, config, program=("tests.support.throwing", name))
        with failing:
            scene.send(values("first", 200))
            scene.await_all(failing)
            os.kill(failing.pid, signal.SIGUSR1)
            scene.send(values("later", 200))
            failing.wait(70, WITHIN_S)
        assert [event["thread"] for event in failing.events("thread.failed")] == [name]
        with Daemon(tmp_path, config) as daemon:
            scene.send(values("last", 200))
            wanted = Counter(scene.expected)
            wait_until(lambda: not wanted - Counter(scene.receiver.rows()), 45, "all arrives", detail=daemon.log_tail)
            daemon.stop()
        # This receiver remembers no names: what was in flight may come again, and nothing else.
        twice = Counter(scene.receiver.rows()) - wanted
        assert {row for row in twice if row in scene.expected[:200] or row in scene.expected[400:]} == set()
