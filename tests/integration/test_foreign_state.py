"""A state folder with files of another user: what cannot be read is told by its name, and no stop waits for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, http_get, wait_until
from tests.support.scene import Scene, new_scene

NOBODY = 65_534
IDS = 2_000
"""More than are filed at a start."""
SOON_S = 60.0


def send(scene: Scene, count: int) -> None:
    """Messages with ids of their own."""
    headers = ([("tag", b"a"), ("id", uuid4().hex.encode())] for _ in range(count))
    produce(scene.broker.bootstrap, scene.topic, (Outgoing(0, b"x", None, each) for each in headers))


def is_told(daemon: Daemon) -> bool:
    """Whether health names the cause."""
    code, body = http_get(f"{daemon.admin_url}/status")
    health = json.loads(body)["health"] if code == 200 else {}
    return health.get("kind") == "ids_loading" and "Permission denied" in health["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_ids_of_another_user_are_told_and_hold_up_no_stop(kafka: Broker, tmp_path: Path) -> None:
    """The partition waits, and says why; SIGTERM ends with 0; once the rights are mended, all is delivered."""
    with new_scene(kafka, tmp_path) as scene:
        program = ("tests.support.unprivileged",)
        with Daemon(tmp_path, scene.config(dedup={"by": {"header": "id"}}), program=program) as daemon:
            daemon.wait_ready()
            send(scene, IDS)
            rows = scene.receiver.rows
            wait_until(lambda: len(rows()) == IDS, SOON_S, "all is delivered", detail=daemon.log_tail)
            daemon.stop()
            daemon.start()
            ids = daemon.state_dir / "ids"
            (file,) = wait_until(lambda: [*ids.rglob("*.ids")], SOON_S, "ids are in a file", detail=daemon.log_tail)
            daemon.stop()
            file.parent.chmod(0o700)
            os.chown(file.parent, NOBODY, NOBODY)
            send(scene, IDS)
            for stops in (True, False):
                daemon.start()
                wait_until(lambda: is_told(daemon), SOON_S, "it is told", detail=daemon.log_tail)
                if stops:
                    daemon.stop()
            assert len(rows()) == IDS
            os.chown(file.parent, os.geteuid(), os.getegid())
            wait_until(lambda: len(rows()) == 2 * IDS, SOON_S, "all is delivered", detail=daemon.log_tail)
            wait_until(
                lambda: daemon.status()["health"]["state"] == "healthy", SOON_S, "it heals", detail=daemon.status
            )
            daemon.stop()
