"""`sidecar explain` against a real Kafka, beside a real daemon: each answer for a message that has that fate."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from sidecar.cli import main
from tests.support.kafka import Outgoing, produce
from tests.support.process import Daemon, wait_until
from tests.support.scene import Scene


def explained(daemon: Daemon, topic: str, offset: int) -> dict[str, Any]:
    """The answer."""
    command = ["explain", "-c", str(daemon.config_path), f"{topic}:0:{offset}", "--json"]
    result = CliRunner().invoke(main, command, prog_name="sidecar")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_each_fate_is_told(scene: Scene) -> None:
    """Settled, filtered, a dead letter, being sent with its attempts, open, and not produced."""
    with scene.daemon(tags={"from": {"header": "tag"}, "exclude": "lost"}, batch={"linger": "100ms"}) as daemon:
        daemon.wait_ready()
        scene.receiver.fail("refuse", status=400, marker="poison")
        scene.send([b"fine"])  # 0
        scene.send([b"unwanted"], tag="lost")  # 1
        scene.send([b"poison"])  # 2
        wait_until(lambda: daemon.status()["dead_lettered"] == 1, 20, "a dead letter", detail=daemon.log_tail)
        scene.receiver.fail("status", status=503, group="stuck")
        scene.send([b"stuck"], tag="stuck")  # 3
        wait_until(lambda: daemon.status()["retrying"], 20, "the group fails", detail=daemon.log_tail)

        def told(offset: int) -> dict[str, Any]:
            return explained(daemon, scene.topic, offset)

        wait_until(lambda: told(3)["outcome"] == "fixed", 20, "the part is committed", detail=daemon.log_tail)
        assert (told(0)["outcome"], told(0)["group"]) == ("settled", "a")
        assert (told(1)["outcome"], told(1)["tags"]) == ("filtered", ["lost"])
        letter = told(2)
        assert (letter["outcome"], letter["group"]) == ("dead letter", "a")
        assert letter["why"].startswith("HTTP 400")
        assert letter["letter"] == 1
        stuck = told(3)
        assert (stuck["group"], stuck["part"]) == ("stuck", [3, 3])
        assert stuck["failing"]["reason"].startswith("HTTP 503")
        assert told(4)["outcome"] == "not produced"


def test_what_is_open_unread_or_gone_is_told(scene: Scene) -> None:
    """A batch that waits for more, a message that came after the daemon stopped, and one that retention took."""
    with scene.daemon(batch={"linger": "10m"}) as daemon:
        daemon.wait_ready()
        scene.send([b"one"])
        told = partial(explained, daemon, scene.topic)
        wait_until(lambda: told(0)["outcome"] == "open", 20, "it is open", detail=daemon.log_tail)
        daemon.kill9()
        scene.send([b"two"])
        assert told(1)["outcome"] == "unread"
        admin = AdminClient({"bootstrap.servers": scene.broker.bootstrap})
        (asked,) = admin.delete_records([ck.TopicPartition(scene.topic, 0, 1)]).values()
        asked.result(10)
        assert told(0)["outcome"] == "gone"


def test_a_sink_that_joins_groups_is_known(scene: Scene, tmp_path: Path) -> None:
    """With a landing zone the state has one group for all: a message that is open is told so, with its tag group."""
    config = scene.config(tags={"from": {"header": "tag"}}, batch={"linger": "10m"})
    with Daemon(tmp_path, config | {"sink": {"spark": {"landing": str(tmp_path / "zone")}}}) as daemon:
        daemon.wait_ready()
        scene.send([b"one"], tag="paid")
        told = partial(explained, daemon, scene.topic)
        wait_until(lambda: told(0)["outcome"] == "open", 20, "it is open", detail=daemon.log_tail)
        assert told(0)["group"] == "paid"


def test_a_delayed_message_is_asked_for(scene: Scene) -> None:
    """Held until it is due; and once it is released, it is not said to be held."""
    due = int(time.time() * 1_000) + 3_600_000
    with scene.daemon(delay={"store": "local"}) as daemon:
        daemon.wait_ready()
        header = [("tag", b"a"), ("sidecar-deliver-at", b"%d" % due)]
        produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"later", None, header)])
        wait_until(lambda: daemon.status()["delayed"] == 1, 20, "it is held", detail=daemon.log_tail)
        told = partial(explained, daemon, scene.topic, 0)
        wait_until(lambda: told()["outcome"] == "held", 20, "that is committed", detail=daemon.log_tail)
        assert told()["due_ms"] == due
        released = ["delay", "release", "-c", str(daemon.config_path), f"{scene.topic}:0:0", "--due", str(due)]
        assert CliRunner().invoke(main, released, prog_name="sidecar").exit_code == 0
        wait_until(lambda: daemon.status()["delivered"] == 1, 20, "it is delivered", detail=daemon.log_tail)
        assert (told()["outcome"], "no longer held" in told()["why"]) == ("delayed", True)


def test_a_parked_message_is_found_in_the_store(scene: Scene) -> None:
    """Of the log and of delayed messages, beside the daemon and without it; once delivered, it is settled."""
    scene.receiver.fail("status", status=503, group="stuck")
    with scene.daemon(delay={"store": "local"}, retry={"park_after": "1s"}) as daemon:
        daemon.wait_ready()
        scene.send([b"now"], tag="stuck")
        due = time.time_ns() // 1_000_000 + 5_000
        header = [("tag", b"stuck"), ("sidecar-deliver-at", b"%d" % due)]
        produce(scene.broker.bootstrap, scene.topic, [Outgoing(0, b"later", None, header)])
        told = partial(explained, daemon, scene.topic)
        wait_until(lambda: told(0)["outcome"] == "parked", 30, "it is told", detail=lambda: told(0))
        wait_until(lambda: told(1)["outcome"] == "parked", 30, "it is told", detail=lambda: told(1))
        answer = told(0)
        assert (answer["part"], answer["attempts"] > 0, answer["failing"]["group"]) == ([0, 0], True, "stuck")
        assert (told(1)["part"], told(1)["failing"]["group"]) == (None, "stuck")
        daemon.kill9()
        assert [told(0)["outcome"], told(1)["outcome"]] == ["parked", "parked"]
        scene.receiver.faults.clear()
        daemon.start()
        wait_until(lambda: told(0)["outcome"] == "settled", 30, "it is delivered", detail=lambda: told(0))
