"""Two consumer groups whose configurations name one store: the second is told whose it is, and does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.owner import Owner, read
from tests.support.checking import checked
from tests.support.kafka import unique
from tests.support.postgresql import Database
from tests.support.process import Daemon, last_words, missing, wait_until
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


@pytest.mark.parametrize("key", ["dedup.ledger.postgresql", "delay.postgresql"])
def test_rows_of_a_group_of_the_same_name_on_another_cluster_are_refused(
    scene: Scene, postgresql: Database, tmp_path: Path, key: str
) -> None:
    """`check` and the start end with 78 and name both clusters; without the mark, the rows are this cluster's."""
    delay, elsewhere = postgresql.delay_section(), unique("cluster")
    ledger = {"by": {"header": "id"}, "ledger": {"postgresql": delay["postgresql"]}}
    change = {"delay": delay} if key == "delay.postgresql" else {"dedup": ledger}
    daemon = of_group(scene, "here", unique("group"), **change)
    group = daemon.config["source"]["kafka"]["group_id"]
    with Database(delay["postgresql"]["url"], postgresql.password).connect() as db:

        def served() -> str:
            with daemon:
                daemon.wait_ready()
                mark = "SELECT mark FROM sidecar_owner WHERE consumer_group = %s"
                is_there = "SELECT to_regclass('sidecar_owner') IS NOT NULL"
                wait_until(lambda: db.execute(is_there).fetchone() == (True,), 20, "the table is there")
                found = wait_until(lambda: db.execute(mark, [group]).fetchone(), 20, "it is marked")
                assert found
                daemon.stop()
            return str(found[0])

        here = served()
        db.execute("UPDATE sidecar_owner SET mark = %s", [Owner(group, elsewhere).marked().decode()])
        outcome = checked(tmp_path, daemon.config)
        said = last_words(daemon, FOREIGN)
        words = (elsewhere, read(here.encode()).cluster, key)
        assert missing(said, *words) == []
        assert (outcome.code, [missing(str(found), *words) for found in outcome.bad]) == (FOREIGN, [[]])
        db.execute("DELETE FROM sidecar_owner")
        assert (served(), checked(tmp_path, daemon.config).code) == (here, 0)
