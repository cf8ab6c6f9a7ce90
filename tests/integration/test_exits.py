"""How the daemon ends: the exit code fits, and the message names place and cure; what must not end it does not."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.jars import ROOT
from tests.support.kafka import Broker, MakeTopic, unique
from tests.support.process import free_ports, last_words, missing, wait_until
from tests.support.scene import Scene


def kafka_settings(**change: Any) -> Mapping[str, Any]:
    """A change of `source.kafka`, with little patience."""
    return {"kafka": {"start_timeout": "3s", **change}}


# Unavailable


def test_an_unreachable_broker_is_waited_for_and_named(scene: Scene) -> None:
    """Exit 69 after `start_timeout`, with the address and the setting."""
    address = f"localhost:{free_ports(1)[0]}"
    begun = time.monotonic()
    source = kafka_settings(bootstrap_servers=address)
    said = last_words(scene.daemon(source=source), 69)
    assert missing(said, address, "could not be reached", "start_timeout", "Try: check") == []
    assert time.monotonic() - begun < 25


def test_an_unknown_topic_is_named(scene: Scene) -> None:
    """Exit 69 with the topics that are missing, and only those."""
    source = kafka_settings(topics=[scene.topic, "no-such-topic"])
    said = last_words(scene.daemon(source=source), 69)
    assert missing(said, "does not know the topic no-such-topic", "Try: create the topic") == []


def test_an_admin_port_that_is_taken_is_named(scene: Scene) -> None:
    """Exit 69 with the address that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = last_words(scene.daemon(admin={"listen": address}), 69)
        assert missing(said, address, "admin.listen") == []


def test_a_broker_that_comes_late_is_joined(kafka: Broker, make_topic: MakeTopic, scene: Scene) -> None:
    """A topic that is made while the daemon waits for it at its start is enough: it goes on."""
    scene.topic = unique("late")
    with scene.daemon(source={"kafka": {"start_timeout": "30s"}}) as daemon:
        wait_until(lambda: (daemon.state_dir / "state.db").exists(), 15, "it is about to start", detail=daemon.log_tail)
        kafka.create_topic(scene.topic)
        scene.send([b"here"])
        scene.await_all(daemon)
        assert len(scene.receiver.rows()) == 1


def test_sigterm_while_waiting_for_the_broker_ends_at_once(scene: Scene) -> None:
    """Asked to stop before it ever reached the broker, the daemon does not wait for `start_timeout`."""
    source = {"kafka": {"bootstrap_servers": f"localhost:{free_ports(1)[0]}", "start_timeout": "60s"}}
    with scene.daemon(source=source) as daemon:
        wait_until(lambda: (daemon.state_dir / "state.db").exists(), 15, "it is about to start", detail=daemon.log_tail)
        daemon.terminate()
        daemon.wait(0, 15)
        assert not daemon.events("daemon.started")


# The state folder


def test_a_state_folder_that_cannot_be_made_is_named(scene: Scene, tmp_path: Path) -> None:
    """Exit 73 with the path, whether it is a file or stands below one."""
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        said = last_words(scene.daemon(path.name, state={"dir": str(path)}), 73)
        assert missing(said, str(path), "Try: set state.dir to a folder") == []


def test_a_state_folder_in_use_is_named(scene: Scene) -> None:
    """Exit 73 with the process that has it, whose work goes on; 78 for another group, at any time after."""
    with scene.daemon() as daemon:
        scene.send([b"mine"])
        scene.await_all(daemon)
        folder = str(daemon.state_dir)
        said = last_words(scene.daemon("second", state={"dir": folder}), 73)
        assert missing(said, folder, f"pid {daemon.pid}", "Try: stop", "set state.dir") == []
        scene.send([b"still mine"])
        scene.await_all(daemon)
        daemon.stop()
        other = kafka_settings(group_id="another-group")
        said = last_words(scene.daemon("third", state={"dir": folder}, source=other), 78)
        assert missing(said, "another-group", scene.group, "Try:") == []


def test_a_full_disk_keeps_dead_letters_back(scene: Scene) -> None:
    """While the state folder cannot be written a refused message stays unsettled; with room again it is stored."""
    with scene.daemon() as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        scene.receiver.fail("refuse", status=400, marker="poison")
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY))
        poison = scene.send([b"poison"])
        wait_until(lambda: daemon.events("dead_letters.not_stored"), 15, "it cannot be stored", detail=daemon.log_tail)
        scene.send([b"later"])
        scene.expected.remove(poison[0])
        wait_until(lambda: set(scene.expected) <= set(scene.receiver.rows()), 15, "others are delivered")
        wait_until(lambda: daemon.status()["in_flight"] == 1, 15, "the status knows", detail=daemon.log_tail)
        assert daemon.status()["dead_lettered"] == 0
        assert scene.broker.committed(scene.group)[scene.topic, 0][0] == 1
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        status = scene.await_all(daemon)
        assert status["dead_lettered"] == status["dead_letters_stored"] == 1
        daemon.stop()


def test_a_state_folder_that_is_removed_settles_nothing(scene: Scene) -> None:
    """A dead letter that no restart would find is not committed; intake stops and says why, the next life stores it."""
    with scene.daemon() as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        scene.receiver.fail("status", status=503)
        scene.expected.remove(*scene.send([b"poison"]))
        wait_until(lambda: daemon.events("group.failed"), 15, "it was sent", detail=daemon.log_tail)
        shutil.rmtree(daemon.state_dir)
        scene.receiver.faults.clear()
        scene.receiver.fail("refuse", status=400, marker="poison")
        wait_until(lambda: daemon.events("dead_letters.not_stored"), 15, "it is refused", detail=daemon.log_tail)
        wait_until(lambda: daemon.events("intake.stopped"), 15, "it stops", detail=daemon.log_tail)
        status = daemon.status()
        assert (status["intake_stopped"], status["ready"]) == (["state_lost"], False)
        assert (
            missing(str(status["problems"]), str(daemon.state_dir), "was removed or moved", "restart the daemon") == []
        )
        assert scene.broker.committed(scene.group)[scene.topic, 0][0] <= 1
        daemon.stop(10)
        daemon.start()
        status = scene.await_all(daemon)
        daemon.stop()
        assert (status["dead_letters_stored"], scene.broker.committed(scene.group)[scene.topic, 0][0]) == (1, 2)


def test_a_state_folder_that_is_put_back_is_gone_on_with(scene: Scene) -> None:
    """While it is away nothing is committed; when it is back what was read meanwhile is settled, each message once."""
    with scene.daemon() as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        away = daemon.state_dir.rename(daemon.state_dir.with_name("away"))
        daemon.state_dir.mkdir()
        wait_until(lambda: daemon.events("intake.stopped"), 15, "it stops", detail=daemon.log_tail)
        scene.send([b"later"] * 10)
        assert scene.broker.committed(scene.group)[scene.topic, 0][0] <= 1
        daemon.state_dir.rmdir()
        away.rename(daemon.state_dir)
        scene.await_all(daemon)
        daemon.stop()


# Configuration and usage


def test_a_bad_configuration_is_named(scene: Scene) -> None:
    """Exit 78 with file, line and the key that was probably meant."""
    daemon = scene.daemon(batch={"max_mesages": 5})
    said = last_words(daemon, 78)
    assert missing(said, str(daemon.config_path), "max_mesages", "max_messages") == []


def test_missing_certificates_of_the_receiver_are_named(scene: Scene) -> None:
    """Exit 78 with the path of a CA file that is not there."""
    sink = {"http": {"url": "https://localhost:1/", "tls": {"ca": "/nowhere/ca.pem"}}}
    said = last_words(scene.daemon(sink=sink), 78)
    assert missing(said, "/nowhere/ca.pem") == []


def test_run_without_a_configuration_is_a_usage_error() -> None:
    """Exit 64 with the option that is missing."""
    command = [sys.executable, "-m", "sidecar", "run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "--config" in done.stderr


# Stopping


def test_a_stop_in_an_outage_takes_no_longer_than_the_drain_limit(scene: Scene) -> None:
    """SIGTERM with a receiver that is down: exit 0 after `drain_timeout`; the next life delivers, each message once."""
    with scene.daemon(drain_timeout="500ms") as daemon:
        daemon.wait_ready()
        scene.receiver.fail("lost")
        scene.send(b"%d" % i for i in range(100))
        wait_until(lambda: scene.receiver.stats["lost"] >= 2, 15, "it was sent", detail=daemon.log_tail)
        begun = time.monotonic()
        daemon.stop(10)
        assert time.monotonic() - begun < 15
        assert scene.broker.committed(scene.group)[scene.topic, 0][0] == 0
        assert daemon.events("partitions.revoked")[-1]["released"] == 100
        scene.receiver.faults.clear()
        daemon.start()
        scene.await_all(daemon)


def test_a_second_signal_ends_at_once(scene: Scene) -> None:
    """A second SIGTERM does not wait for the drain, ends as a signal does, and commits nothing that is unsettled."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.receiver.fail("status", status=503)
        scene.send([b"held"] * 10)
        wait_until(lambda: daemon.events("group.failed"), 15, "it was sent", detail=daemon.log_tail)
        daemon.terminate()
        wait_until(lambda: daemon.events("daemon.draining"), 15, "it drains")
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.wait(128 + signal.SIGTERM, 10)
        assert scene.broker.committed(scene.group)[scene.topic, 0][0] == 0
        scene.receiver.faults.clear()
        daemon.start()
        scene.await_all(daemon)
