"""Whatever thread of the daemon fails, the process ends with 70, and the next one delivers what was left."""

import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sidecar.allocator import ARENAS
from tests.support.heaps import heaps
from tests.support.kafka import Broker, unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, wait_until, write_config
from tests.support.receiver import Receiver
from tests.support.rocketmq import Node
from tests.support.rocketmq_flow import Bodies, configuration
from tests.support.rocketmq_servers import proxy
from tests.support.scene import merged, new_scene, values
from tests.support.throwing import DELTA, KAFKA, POSTGRESQL, ROCKETMQ, RUNNING

WITHIN_S = 40.0
"""Limit of a process's end after the failure of a thread, in a loaded machine."""


def await_failure(daemon: Daemon, name: str) -> None:
    """The process ends with 70 because of this thread."""
    daemon.wait(70, WITHIN_S)
    failed = daemon.events("thread.failed")
    assert failed and failed[0]["thread"].startswith(name)


def test_threads_of_a_daemon_share_few_heaps(kafka: Broker, tmp_path: Path) -> None:
    """Each keeps pages for a few small blocks, and would grow for hours."""
    with new_scene(kafka, tmp_path) as scene, scene.daemon() as daemon:
        scene.send(values("first", 200))
        scene.await_all(daemon)
        assert heaps(daemon.pid) <= ARENAS
        daemon.stop()


@pytest.mark.parametrize("name", RUNNING)
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
        failed = failing.events("thread.failed")
        assert failed and all(event["thread"].startswith(name) for event in failed)
        with Daemon(tmp_path, config) as daemon:
            scene.send(values("last", 200))
            wanted = Counter(scene.expected)
            wait_until(lambda: not wanted - Counter(scene.receiver.rows()), 45, "all arrives", detail=daemon.log_tail)
            daemon.stop()
        # This receiver remembers no names: what was in flight may come again, and nothing else.
        twice = Counter(scene.receiver.rows()) - wanted
        assert {row for row in twice if row in scene.expected[:200] or row in scene.expected[400:]} == set()


@pytest.mark.parametrize("name", KAFKA)
def test_a_thread_that_fails_at_once_ends_the_process(kafka: Broker, tmp_path: Path, name: str) -> None:
    """Whatever waits for it, as the start, a takeover, a commit or a stop."""
    with new_scene(kafka, tmp_path) as scene:
        config = scene.config() | KAFKA[name]
        if "sink" in KAFKA[name]:
            config["sink"] = {"delta": {**DELTA, "path": str(tmp_path / "table")}}
        scene.receiver.fail("refuse", status=400, marker="poison")
        with Daemon(tmp_path, config, program=("tests.support.throwing", f"+{name}")) as daemon:
            scene.send([b"fine", b"poison"] if name == "dead-letters" else values("fine", 20))
            if name in ("reload", "sender-retiring"):
                daemon.wait_ready()
                write_config(daemon.config_path, merged(daemon.config, {"sink": {"http": {"concurrency": 3}}}))
                os.kill(daemon.pid, signal.SIGHUP)
            await_failure(daemon, name)


@pytest.mark.parametrize("name", POSTGRESQL)
def test_a_failed_appender_ends_the_process(kafka: Broker, postgresql: Database, tmp_path: Path, name: str) -> None:
    """The thread of a database connection is no exception."""
    with new_scene(kafka, tmp_path) as scene:
        config = scene.config(delay=postgresql.delay_section())
        with Daemon(tmp_path, config, program=("tests.support.throwing", f"+{name}")) as daemon:
            scene.send(values("fine", 20))
            await_failure(daemon, name)


@pytest.mark.parametrize("name", ROCKETMQ)
def test_a_failed_thread_of_a_client_of_rocketmq_ends_the_process(rocketmq: Node, tmp_path: Path, name: str) -> None:
    """Connections, commits to the state folder, the loop of gRPC and the calls that it makes."""
    bodies = Bodies(rocketmq)
    with ExitStack() as stack:
        source: dict[str, Any] = {"client": ROCKETMQ[name], "name_servers": rocketmq.name_server}
        if ROCKETMQ[name] == "grpc":
            server = stack.enter_context(proxy(tmp_path / unique("proxy"), rocketmq.name_server))
            source = {"client": "grpc", "endpoints": server.address}
        receiver = stack.enter_context(Receiver())
        config = configuration(source, bodies, receiver.url)
        daemon = stack.enter_context(Daemon(tmp_path, config, program=("tests.support.throwing", f"+{name}")))
        bodies.send(20)
        await_failure(daemon, name)
