"""Two consumer groups whose configurations name one store: the second is told whose it is, and does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.checking import checked
from tests.support.kafka import unique
from tests.support.process import Daemon, last_words, missing
from tests.support.scene import Scene

FOREIGN = 78


def of_group(scene: Scene, name: str, group: str, **change: Any) -> Daemon:
    """A daemon of a group, not started."""
    return scene.daemon(name, source={"kafka": {"group_id": group}}, **change)


def serve_once(daemon: Daemon) -> None:
    """Let a daemon use its stores, and stop it."""
    with daemon:
        daemon.wait_ready()
        daemon.stop()


def test_a_changelog_of_another_group_is_refused(scene: Scene, tmp_path: Path) -> None:
    """`check` and the start of a group end with 78 if its changelog has the mark of another one, and name both."""
    changelog = {"delay": {"changelog": {"topic": unique("held")}}}
    first, second = (
        of_group(scene, "first", unique("first"), **changelog),
        of_group(scene, "second", unique("second"), **changelog),
    )
    serve_once(first)
    outcome = checked(tmp_path, second.config)
    said = last_words(second, FOREIGN)
    words = (first.config["source"]["kafka"]["group_id"], second.config["source"]["kafka"]["group_id"])
    assert missing(said, *words, "delay.changelog.topic") == []
    assert (outcome.code, missing(str(outcome.of("topic of delayed messages ")), *words)) == (FOREIGN, [])
    assert (checked(tmp_path, first.config).code, serve_once(first)) == (0, None)


def test_a_state_folder_of_another_group_is_refused(scene: Scene, tmp_path: Path) -> None:
    """`check` and the start of a group end with 78 if another one used its state folder, and name both."""
    groups = unique("first"), unique("second")
    shared = {"state": {"dir": str(tmp_path / "shared")}}
    first, second = (of_group(scene, group, group, **shared) for group in groups)
    serve_once(first)
    outcome = checked(tmp_path, second.config)
    said = last_words(second, FOREIGN)
    assert missing(said, *groups, "state.dir") == []
    assert (outcome.code, missing(str(outcome.of("state folder ")), *groups)) == (FOREIGN, [])
    assert (checked(tmp_path, first.config).code, serve_once(first)) == (0, None)
