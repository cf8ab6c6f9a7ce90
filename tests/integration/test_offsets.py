"""`sidecar offsets`: what the group has committed in a real Kafka, and an operator's reset by command."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from tests.support.kafka import Outgoing, produce
from tests.support.process import Daemon, wait_until
from tests.support.scene import Scene, values


def offsets(daemon: Daemon, command: str, *arguments: str, given: str | None = None) -> Result:
    """Run a command with the daemon's configuration."""
    return CliRunner().invoke(main, ["offsets", command, "-c", str(daemon.config_path), *arguments], input=given)


def shown(daemon: Daemon) -> list[tuple[int | None, int, int, int, str]]:
    """Committed offset, the log's bounds, lag and writer of each partition."""
    rows = json.loads(offsets(daemon, "show", "--json").stdout)["partitions"]
    keys = ("committed", "log_start", "log_end", "lag", "committed_by")
    return [tuple(row[key] for key in keys) for row in rows]


def stopped(scene: Scene, daemon: Daemon, count: int = 10) -> None:
    """Let it deliver some messages, and stop it."""
    scene.send(values("first", count))
    scene.await_all(daemon)
    daemon.stop()


def test_what_is_committed_is_shown(scene: Scene) -> None:
    """With the log's bounds, the lag, who committed it, and the members."""
    with scene.daemon() as daemon:
        scene.send(values("first", 10))
        scene.await_all(daemon)
        status = json.loads(offsets(daemon, "show", "--json").stdout)
        assert len(status["members"]) == 1
        daemon.stop()
        scene.send(values("more", 3))
        assert shown(daemon) == [(10, 0, 13, 3, "sidecar")]
        assert f"{scene.topic}:0" in offsets(daemon, "show").stdout
        scene.broker.alter_group_offsets(scene.group, scene.topic, {0: 4})
        assert shown(daemon) == [(4, 0, 13, 9, "another program")]


def test_a_group_that_never_was_has_no_offsets(scene: Scene) -> None:
    """Its lag is the whole log."""
    daemon = scene.daemon()
    scene.send(values("first", 3))
    assert shown(daemon) == [(None, 0, 3, 3, "")]


def test_a_reset_delivers_again_from_there(scene: Scene) -> None:
    """It tells beforehand how many come again, and the next daemon replays them under new names."""
    with scene.daemon() as daemon:
        stopped(scene, daemon)
        done = offsets(daemon, "reset", "--to", "4", "--yes")
        assert done.exit_code == 0, done.output
        assert "up to 6 messages come again, up to 0 are passed over" in done.stdout
        assert shown(daemon) == [(4, 0, 10, 6, "another program")]
        daemon.start()
        wait_until(lambda: len(scene.receiver.rows()) == 16, 30, "six come again", detail=daemon.log_tail)
        daemon.stop()


def test_a_dry_run_and_a_no_change_nothing(scene: Scene) -> None:
    """Both tell what would come of it."""
    with scene.daemon() as daemon:
        stopped(scene, daemon)
        for arguments, given, code in ((["--dry-run"], None, 0), ([], "n\n", 0)):
            done = offsets(daemon, "reset", "--to", "earliest", *arguments, given=given)
            assert done.exit_code == code
            assert "up to 10 messages come again" in done.stdout
        assert shown(daemon) == [(10, 0, 10, 0, "sidecar")]


def test_a_reset_is_refused_while_a_member_is_alive(scene: Scene) -> None:
    """The member is named, and nothing changes."""
    with scene.daemon() as daemon:
        scene.send(values("first", 10))
        scene.await_all(daemon)
        done = offsets(daemon, "reset", "--to", "earliest", "--yes")
        assert done.exit_code == 69
        assert "has members: sidecar" in done.stderr
        assert shown(daemon) == [(10, 0, 10, 0, "sidecar")]
        daemon.stop()


def test_a_reset_to_a_time_finds_the_first_message_from_then_on(scene: Scene) -> None:
    """After all of them it is the end of the log."""
    base_ms = time.time_ns() // 1_000_000 - 60_000
    messages = [Outgoing(0, b"%d" % n, None, [("tag", b"a")], base_ms + 1_000 * n) for n in range(10)]
    produce(scene.broker.bootstrap, scene.topic, messages)
    daemon = scene.daemon()
    for at_ms, offset in ((base_ms + 2_500, 3), (base_ms + 30_000, 10)):
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert offsets(daemon, "reset", "--to", at, "--yes").exit_code == 0
        assert shown(daemon)[0][0] == offset


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "yesterday"], "is neither earliest, latest, an offset, nor a time"),
        (["--to", "11"], "has offsets from 0 to 10, not 11"),
        (["--to", "latest", "--partition", "7"], "the source has no such partition"),
    ],
)
def test_a_wrong_target_is_refused(scene: Scene, arguments: list[str], text: str) -> None:
    """With words, and the exit code of a wrong command line."""
    scene.send(values("first", 10))
    done = offsets(scene.daemon(), "reset", *arguments)
    assert done.exit_code == 64
    assert text in " ".join(done.stderr.split())
