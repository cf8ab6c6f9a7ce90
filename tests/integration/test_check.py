"""`sidecar check` with a real broker, a receiver and a daemon: what is there, what is not, and that nothing changes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.checking import Checked, checked
from tests.support.kafka import Broker, MakeTopic, unique
from tests.support.process import free_ports, missing, write_config
from tests.support.scene import Scene


def check(scene: Scene, folder: Path, **change: Any) -> Checked:
    """The outcome for the scene's configuration."""
    return checked(folder, scene.config(**change))


def kafka(**change: Any) -> dict[str, Any]:
    """`source` with other keys of Kafka's section."""
    return {"kafka": change}


def test_all_is_well(scene: Scene, tmp_path: Path) -> None:
    """Exit 0 with a line for each subject."""
    outcome = check(scene, tmp_path)
    assert (outcome.code, outcome.bad) == (0, [])
    assert "1 broker, cluster " in outcome.of("Kafka at ")["text"]
    assert outcome.of(f"topic {scene.topic}")["text"] == "1 partition; Read allowed"
    assert outcome.of(f"group {scene.group}")["text"] == "no members now; Read allowed"
    assert "to HEAD" in outcome.of("receiver http://localhost")["text"]
    assert outcome.of("state folder ")["text"].startswith("will be created")


def test_nothing_changes(scene: Scene, kafka: Broker, tmp_path: Path) -> None:
    """No group, no commit, no topic, no folder and no row comes of it."""
    topics, delayed = kafka.topics(), {"delay": {}, "dead_letters": {"kafka": {"topic": unique("dead")}}}
    outcome = check(scene, tmp_path, **delayed)
    assert outcome.of("topic of delayed messages ")["ok"]
    groups = kafka.admin.list_consumer_groups().result(10).valid
    assert scene.group not in {found.group_id for found in groups}
    assert kafka.committed(scene.group) == {}
    assert kafka.topics() == topics
    assert [path.name for path in tmp_path.iterdir()] == ["checked.yaml"]
    assert (scene.receiver.stats["requests"], scene.receiver.rows()) == (0, [])


def test_a_group_that_a_daemon_serves_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    """Beside the daemon all is well: it is named, and neither rebalances nor loses its folder or its port."""
    with scene.daemon() as daemon:
        scene.send([b"before"])
        scene.await_all(daemon)
        outcome = checked(tmp_path, daemon.config)
        assert (outcome.code, outcome.bad) == (0, [])
        assert f"in use by the running daemon, pid {daemon.pid}, healthy" in outcome.of("state folder ")["text"]
        assert outcome.of(f"group {scene.group}")["text"].startswith("1 member on ")
        scene.send([b"after"])
        scene.await_all(daemon)
        assert len(daemon.events("partitions.assigned")) == 1
        daemon.stop()


def test_a_second_process_with_the_same_folder_and_port_is_told(scene: Scene, tmp_path: Path) -> None:
    """Another group that would take the folder and the address of a running daemon learns so before it starts."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        shared = {key: daemon.config[key] for key in ("state", "admin")}
        outcome = check(scene, tmp_path, source=kafka(group_id=unique("other")), **shared)
        assert outcome.code == 73
        assert f"pid {daemon.pid}" in outcome.of("state folder ")["text"]
        assert outcome.of("admin.listen ")["exit_code"] == 69


def test_a_missing_topic_is_told(scene: Scene, tmp_path: Path) -> None:
    """Exit 69 with its name; the topic that is there is told too."""
    gone = unique("gone")
    outcome = check(scene, tmp_path, source=kafka(topics=[scene.topic, gone]))
    assert (outcome.code, [finding["subject"] for finding in outcome.bad]) == (69, [f"topic {gone}"])
    assert "create the topic" in outcome.bad[0]["cure"]


def test_a_pattern_tells_how_many_topics_it_has(scene: Scene, make_topic: MakeTopic, tmp_path: Path) -> None:
    """None is no problem, since topics may be created later."""
    word = unique("word")
    for found in ("0 topics", "1 topic"):
        outcome = check(scene, tmp_path, source=kafka(topics=[f"^{word}.*"]))
        assert (outcome.code, outcome.of("topics ^")["text"].split(";")[0]) == (0, found)
        make_topic(name=word)


def test_topics_that_are_written_are_told(scene: Scene, kafka: Broker, tmp_path: Path) -> None:
    """The changelog is created at the start, dead letters need their topic; once both are there, all is well."""
    delayed, dead = unique("delayed"), unique("dead")
    change = {"delay": {"changelog": {"topic": delayed}}, "dead_letters": {"kafka": {"topic": dead}}}
    outcome = check(scene, tmp_path, **change)
    assert (outcome.code, [finding["subject"] for finding in outcome.bad]) == (69, [f"topic of dead letters {dead}"])
    assert outcome.of(f"topic of delayed messages {delayed}")["text"].endswith("will be created at the start")
    for name in (delayed, dead):
        kafka.create_topic(name)
    outcome = check(scene, tmp_path, **change)
    assert (outcome.code, outcome.of("topic of delayed")["text"]) == (0, "1 partition; Read and Write allowed")


def test_more_replicas_than_brokers_are_told(scene: Scene, tmp_path: Path) -> None:
    """The changelog could not be created."""
    outcome = check(scene, tmp_path, delay={"changelog": {"replication_factor": 3}})
    assert (outcome.code, len(outcome.bad)) == (69, 1)
    assert missing(str(outcome.bad[0]), "cannot be created", "replication_factor") == []


def test_a_group_of_other_consumers_is_told(scene: Scene, kafka: Broker, tmp_path: Path) -> None:
    """Exit 78: its members share partitions by rules that Sidecar does not know."""
    from confluent_kafka import Consumer

    from tests.support.process import wait_until

    other = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": scene.group})
    try:
        other.subscribe([scene.topic])
        wait_until(lambda: (other.poll(0.2), bool(other.assignment()))[1], 30, "it is a member")
        outcome = check(scene, tmp_path)
    finally:
        other.close()
    assert (outcome.code, len(outcome.bad)) == (78, 1)
    assert missing(str(outcome.bad[0]), scene.group, "range", "group_id") == []


def silent() -> socket.socket:
    """A port that takes connections and answers nothing."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_everything_dead_is_told_within_15_seconds(tmp_path: Path, is_silent: bool) -> None:
    """Kafka, receiver and database at once, whether their ports refuse connections or say nothing."""
    sockets = [silent() for _ in range(3)]
    ports = [one.getsockname()[1] for one in sockets]
    if not is_silent:
        for one in sockets:
            one.close()
    config = {
        "source": {"kafka": {"bootstrap_servers": f"127.0.0.1:{ports[0]}", "group_id": "g", "topics": ["t"]}},
        "sink": {"http": {"url": f"http://127.0.0.1:{ports[1]}/"}},
        "dedup": {"by": "key", "ledger": {"postgresql": {"url": f"postgresql://u@127.0.0.1:{ports[2]}/d"}}},
        "state": {"dir": str(tmp_path / "state")},
        "admin": {"listen": f"127.0.0.1:{free_ports(1)[0]}"},
    }
    file = write_config(tmp_path / "dead.yaml", config)
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "sidecar", "check", "-c", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    took_s = time.monotonic() - begun_s
    for one in sockets:
        one.close()
    bad = [finding["subject"] for finding in json.loads(done.stdout)["checks"] if not finding["ok"]]
    assert (done.returncode, [subject.split()[0] for subject in bad]) == (69, ["Kafka", "receiver", "ledger"])
    assert took_s < 15


def test_the_lines_for_a_person_have_marks_and_cures(scene: Scene, tmp_path: Path) -> None:
    """A good line has a ✓, a bad one a ✗ and what to do; a terminal without these signs gets words."""
    config = {**scene.config(source=kafka(topics=["gone"])), "state": {"dir": str(tmp_path / "s")}}
    file = write_config(tmp_path / "f.yaml", {**config, "admin": {"listen": "off"}})
    for encoding, good, bad in (("utf-8", "✓", "✗"), ("ascii", "ok  ", "FAIL")):
        command = [sys.executable, "-m", "sidecar", "check", "-c", str(file)]
        environ = {"PYTHONIOENCODING": encoding, "PATH": "/usr/bin"}
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environ)
        lines = done.stdout.decode(encoding).splitlines()
        assert (done.returncode, done.stderr) == (69, b"")
        assert lines[0].startswith(f"{good} Kafka at ")
        assert lines[1].startswith(f"{bad} topic gone: ")
        assert lines[2].startswith("  Try: create the topic")
