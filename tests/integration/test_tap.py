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


def test_a_delayed_message_has_its_own_offset(scene: Scene, tmp_path: Path) -> None:
    """Delivered or refused, it is shown with its offset in the topic, and an orderly stop is no error in the log."""
    tags = {"from": {"header": "tag"}, "subscribe": "a"}
    with scene.daemon(tags=tags, delay={"store": "local", "topics": {scene.topic: "1s"}}) as daemon:
        daemon.wait_ready()
        scene.receiver.fail("refuse", status=400, marker="poison")
        with tapped(daemon, tmp_path) as shown:
            wait_until(lambda: _is_tapped(daemon, shown, scene), 30, "the tap is open")
            late, poison = (offset for _, _, offset, _ in scene.send([b"late", b"poison"], tag="a"))
            ended = {("delivered", late), ("dead", poison)}
            wait_until(
                lambda: ended <= {(row["outcome"], row["offset"]) for row in found(shown)}, 30, "both are shown",
                detail=shown.read_text,
            )  # fmt: skip
        daemon.stop()
        assert "error" not in {event["level"] for event in daemon.events("health.changed")}


def _is_tapped(daemon: Daemon, shown: Path, scene: Scene) -> bool:
    """Send what is filtered until it is seen: the tap begins when it begins."""
    scene.send([b"probe"], tag="probe")
    return any(row["tags"] == ["probe"] for row in found(shown) if row["outcome"] == "filtered")
