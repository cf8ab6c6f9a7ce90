"""A running daemon reads its file again: what applies at once, when all is quiet, and after a restart."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.runtime.lane import is_built
from tests.scenarios.delayed import HEADER
from tests.scenarios.reloads import reload, reloads, reloads_killed
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, missing, wait_until, write_config
from tests.support.receiver import Receiver
from tests.support.scene import Scene, values


def changed(daemon: Daemon, **sections: Any) -> dict[str, Any]:
    """The daemon's configuration with other values in some sections."""
    config = deepcopy(daemon.config)
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    return config


def command(daemon: Daemon, config: dict[str, Any]) -> Result:
    """Write the configuration, and run `sidecar reload`."""
    write_config(daemon.config_path, config)
    return CliRunner().invoke(main, ["reload", "-c", str(daemon.config_path)])


def await_applied(daemon: Daemon) -> dict[str, Any]:
    """What the status tells once nothing waits."""
    wait_until(lambda: daemon.status()["reload"]["outcome"] == "applied", 30, "it applies", detail=daemon.log_tail)
    told: dict[str, Any] = daemon.status()["reload"]
    return told


def test_batches_go_to_another_receiver_at_once(scene: Scene) -> None:
    """The command tells what applies; messages before are with the one, those after it with the other."""
    with Receiver() as other, scene.daemon() as daemon:
        before = scene.send(values("before", 10))
        scene.await_all(daemon)
        http = {**daemon.config["sink"]["http"], "url": other.url, "auth": {"bearer": "s3cret"}}
        done = command(daemon, changed(daemon, sink={"http": http}))
        assert (done.exit_code, done.stdout) == (0, "apply now: sink.http.url, sink.http.auth\n")
        after = scene.send(values("after", 10))
        wait_until(lambda: len(other.rows()) == 10, 30, "they arrive", detail=daemon.log_tail)
        assert (sorted(scene.receiver.rows()), sorted(other.rows())) == (sorted(before), sorted(after))
        assert other.headers[0]["authorization"] == "Bearer s3cret"
        assert daemon.status()["reload"]["restart"] == []
        daemon.stop()


def test_groups_and_format_change_when_all_is_quiet(scene: Scene) -> None:
    """Later messages have the new ones, and a start after a kill goes on under these rules: nothing comes again."""
    scene.receiver.remember = False
    with scene.daemon(batch={"linger": "5s"}, source={"kafka": {"lane": "auto"}}) as daemon:
        scene.send(values("before", 5), tag="a")
        daemon.wait_ready()
        tags = {"subscribe": "a || b", "groups": {"both": "a || b"}}
        http = {**daemon.config["sink"]["http"], "format": "json_array"}
        done = command(daemon, changed(daemon, tags=tags, sink={"http": http}, batch={"linger": "10ms"}))
        assert done.stdout.splitlines() == [
            "apply now: batch.linger",
            "apply as soon as nothing is open or being sent: tags.subscribe, tags.groups, sink.http.format",
        ]
        told = await_applied(daemon)
        assert told["changed"] == ["batch.linger", "tags.subscribe", "tags.groups", "sink.http.format"]
        scene.send([b"[%d]" % number for number in range(5)], tag="b")
        wait_until(lambda: len(scene.receiver.rows()) == 10, 30, "all arrive", detail=daemon.log_tail)
        assert [part["group"] for part in scene.receiver.parts()] == ["a", "both"]
        wait_until(lambda: not daemon.status()["lane"]["used"], 30, "Python sorts", detail=daemon.log_tail)
        assert scene.receiver.headers[-1]["content-type"] == "application/json"
        committed = partial(scene.broker.committed, scene.group)
        wait_until(lambda: committed()[scene.topic, 0][0] == 10, 30, "it is committed", detail=daemon.log_tail)
        daemon.kill9()
        daemon.start()
        scene.send([b"[%d]" % number for number in range(5, 10)], tag="a")
        wait_until(lambda: len(scene.receiver.rows()) >= 15, 30, "the rest arrives", detail=daemon.log_tail)
        assert len(scene.receiver.rows()) == 15
        assert not daemon.events("partition.reset")
        daemon.stop()


@pytest.mark.skipif(not is_built(), reason="the fast lane is not built")
def test_what_the_fast_lane_does_not_do_is_refused_if_it_must_be_used(scene: Scene) -> None:
    """The daemon goes on as before, and would not have started with the new file."""
    with scene.daemon(source={"kafka": {"lane": "on"}}) as daemon:
        daemon.wait_ready()
        http = {**daemon.config["sink"]["http"], "format": "json_array"}
        done = command(daemon, changed(daemon, sink={"http": http}))
        assert (done.exit_code, missing(done.stderr, "source.kafka.lane", "json_array", "`auto`")) == (78, [])
        scene.send(values("after", 5), tag="a")
        scene.await_all(daemon)
        daemon.stop()


def test_while_a_group_fails_the_old_rules_stay(scene: Scene) -> None:
    """The status names the group; others go on as before, and the new rules apply when it has recovered."""
    scene.receiver.fail("status", group="a")
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.send(values("failing", 5), tag="a")
        wait_until(lambda: daemon.status()["retrying"], 30, "the group fails", detail=daemon.log_tail)
        command(daemon, changed(daemon, tags={"subscribe": "a || b", "groups": {"both": "a || b"}}))
        wait_until(lambda: daemon.status()["reload"]["reason"], 30, "it waits", detail=daemon.log_tail)
        told = daemon.status()["reload"]
        assert (told["outcome"], told["reason"], told["waiting"]) == (
            "waiting", "group a fails", ["tags.subscribe", "tags.groups"],
        )  # fmt: skip
        scene.send(values("other", 5), tag="b")
        wait_until(lambda: scene.receiver.rows(), 30, "the other arrives", detail=daemon.log_tail)
        scene.receiver.faults.clear()
        await_applied(daemon)
        scene.send(values("after", 5), tag="a")
        wait_until(lambda: len(scene.receiver.rows()) == 15, 30, "all arrive", detail=daemon.log_tail)
        assert [part["group"] for part in scene.receiver.parts()] == ["b", "a", "both"]
        daemon.stop()


@pytest.mark.parametrize("store", [pytest.param("local", marks=pytest.mark.proof), "changelog"])
def test_held_messages_go_by_the_new_rules_when_they_are_due(scene: Scene, store: str) -> None:
    """Each comes once, also after a kill: their progress is kept under the rules in force."""
    scene.receiver.remember = False
    with scene.daemon(delay={"store": store}) as daemon:
        daemon.wait_ready()
        due_ms = time.time_ns() // 1_000_000 + 6_000
        headers = [("tag", b"a"), (HEADER, b"%d" % due_ms)]
        produce(
            scene.broker.bootstrap, scene.topic, [Outgoing(0, b"%d" % number, None, headers) for number in range(5)]
        )
        wait_until(lambda: daemon.status()["delayed"] == 5, 30, "they are held", detail=daemon.log_tail)
        command(daemon, changed(daemon, tags={"groups": {"all": "a || b"}, "subscribe": "a || b"}))
        await_applied(daemon)
        daemon.kill9()
        daemon.start()
        wait_until(lambda: len(scene.receiver.rows()) >= 5, 60, "they arrive", detail=daemon.log_tail)
        scene.send(values("last", 1), tag="b")
        wait_until(lambda: len(scene.receiver.rows()) >= 6, 30, "and others", detail=daemon.log_tail)
        assert len(scene.receiver.rows()) == 6
        assert {part["group"] for part in scene.receiver.parts()} == {"all"}
        assert not daemon.events("partition.reset")
        daemon.stop()


def test_a_file_with_a_mistake_changes_nothing(scene: Scene) -> None:
    """The command and the status say where it is, and messages flow as before."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        config = changed(daemon, batch={"linger": "soon"}, log={"level": "debug"})
        told = reload(daemon, config)
        assert told["outcome"] == "refused"
        assert f"{daemon.config_path}:" in told["reason"]
        assert "batch.linger" in told["reason"]
        done = command(daemon, config)
        assert done.exit_code == 78
        assert "batch.linger" in done.stderr
        scene.send(values("flows", 5))
        scene.await_all(daemon)
        assert [event["level"] for event in daemon.events("config.refused")] == ["error"]
        daemon.stop()


def test_what_needs_a_restart_is_named(scene: Scene) -> None:
    """The rest applies."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        done = command(daemon, changed(daemon, dedup={"capacity": 1_000_000}, log={"level": "debug"}))
        assert done.stdout.splitlines() == ["apply now: log.level", "apply after a restart: dedup.capacity"]
        (event,) = daemon.events("config.applied")
        assert (event["level"], event["restart"]) == ("warning", ["dedup.capacity"])
        assert CliRunner().invoke(main, ["reload", "-c", str(daemon.config_path)]).stdout.startswith("apply after")
        daemon.stop()


def test_a_terminal_that_is_closed_stops_the_daemon(scene: Scene) -> None:
    """It ends in order, and does not go on without anybody who sees it."""
    daemon = scene.daemon()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sidecar", "run", "-c", str(daemon.config_path)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        wait_until(lambda: b"health.changed" in os.read(ours, 4_096), 30, "it is healthy")
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0
    os.close(ours)


@pytest.mark.slow
def test_reloads_under_load_lose_and_repeat_nothing(kafka: Broker, tmp_path: Path) -> None:
    """40 times, 5 of them with a mistake in the file, which changes nothing."""
    assert reloads(kafka, tmp_path, 40, 5).exact


@pytest.mark.proof
@pytest.mark.slow
def test_kills_in_the_midst_of_a_reload_lose_nothing(kafka: Broker, tmp_path: Path) -> None:
    """5 times, with two members on different files."""
    assert reloads_killed(kafka, tmp_path, 5).exact
