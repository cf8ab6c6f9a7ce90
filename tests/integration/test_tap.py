"""`sidecar tap` beside a real daemon and a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.process import Daemon, spawn, wait_until
from tests.support.scene import Scene


@contextmanager
def tapped(daemon: Daemon, folder: Path, *options: str) -> Iterator[Path]:
    """The file that has what a tap shows."""
    shown = folder / "shown"
    with shown.open("wb") as file:
        process: subprocess.Popen[bytes] = spawn(
            [sys.executable, "-u", "-m", "sidecar", "tap", "-c", str(daemon.config_path), "--json", *options], file
        )
        try:
            yield shown
        finally:
            process.kill()
            process.wait()


def found(shown: Path) -> list[dict[str, Any]]:
    """The rows."""
    return [json.loads(line) for line in shown.read_text().splitlines()]


def test_every_outcome_is_shown(scene: Scene, tmp_path: Path) -> None:
    """Delivered, filtered with its tags, a duplicate by id, a dead letter with its reason; each with its place."""
    tags = {"from": {"header": "tag"}, "subscribe": "a || b"}
    with scene.daemon(tags=tags, dedup={"by": {"header": "tag"}}) as daemon:
        daemon.wait_ready()
        scene.receiver.fail("refuse", status=400, marker="poison")
        with tapped(daemon, tmp_path) as shown:
            wait_until(lambda: daemon.metrics() and _is_tapped(daemon, shown, scene), 30, "the tap is open")
            scene.send([b"first"], tag="a")
            scene.send([b"unwanted"], tag="c")
            scene.send([b"twin"], tag="a")
            scene.send([b"poison"], tag="b")
            wait_until(
                lambda: {"delivered", "filtered", "duplicate", "dead"} <= {row["outcome"] for row in found(shown)},
                30, "all are shown", detail=shown.read_text,
            )  # fmt: skip
        rows = {(row["outcome"], row["offset"]): row for row in found(shown)}
    dead = next(row for row in rows.values() if row["outcome"] == "dead")
    assert dead["reason"].startswith("HTTP 400")
    assert dead["group"] == "b"
    assert all(row["topic"] == scene.topic and row["partition"] == 0 for row in rows.values())
    assert all("value" not in row for row in rows.values())


def _is_tapped(daemon: Daemon, shown: Path, scene: Scene) -> bool:
    """Send what is filtered until it is seen: the tap begins when it begins."""
    scene.send([b"probe"], tag="probe")
    return any(row["tags"] == ["probe"] for row in found(shown) if row["outcome"] == "filtered")
