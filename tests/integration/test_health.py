"""What does not go on is told, with reason and next step; what a person reads of an outage is little."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.health import KINDS
from tests.scenarios.health import FROZEN_S, outages, state
from tests.support.kafka import KafkaBroker
from tests.support.process import Daemon, free_ports, http_get, wait_until
from tests.support.scene import Scene, new_scene


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be frozen."""
    with KafkaBroker(tmp_path_factory.mktemp("own") / "broker") as broker:
        yield broker


@pytest.fixture
def scene(broker: KafkaBroker, tmp_path: Path) -> Iterator[Scene]:
    """A topic and a receiver."""
    with new_scene(broker, tmp_path) as scene:
        yield scene


@pytest.mark.proof
def test_outages_are_told_in_their_seconds(broker: KafkaBroker, tmp_path: Path) -> None:
    """A receiver that fails makes the daemon *degraded*, a frozen broker *stopped*; both heal, and nothing is lost."""
    assert outages(broker, tmp_path, 1).exact


def answers(daemon: Daemon) -> tuple[Any, ...]:
    """Its health, and what probe, page and metrics answer meanwhile; nothing if the health was another one then."""
    health = daemon.status()["health"]
    ready, page = http_get(f"{daemon.admin_url}/readyz"), http_get(f"{daemon.admin_url}/")[1].decode()
    found = health, ready, page, daemon.metrics()
    return found if daemon.status()["health"] == health else ()


def test_a_frozen_broker_is_told_in_all_places(scene: Scene, broker: KafkaBroker) -> None:
    """Frozen for 25 s, nothing goes out: page, status, `/readyz`, metric and log say so alike; then it heals."""
    with scene.daemon() as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        broker.freeze()
        try:
            wait_until(lambda: state(daemon) == "stopped", FROZEN_S, "it is told", detail=daemon.status)
            health, (code, ready), page, metrics = wait_until(
                lambda: answers(daemon), FROZEN_S, "the answers are of one health", detail=daemon.status
            )
            assert health["next_step"] == KINDS[health["kind"]].next_step
            shown = f"stopped: {health['reason']}. Next: {health['next_step']}"
            assert (code, ready.decode().splitlines()[0]) == (503, shown)
            assert all(html.escape(health[key]) in page for key in ("state", "reason", "next_step"))
            assert f'reason="{health["kind"]}",state="stopped"}} 1.0' in metrics
            told = daemon.events("health.changed")[-1]
            assert {name: told[name] for name in ("state", "reason", "next_step")}.items() <= health.items()
        finally:
            broker.thaw()
        wait_until(lambda: state(daemon) == "healthy", 60, "it heals", detail=daemon.status)
        scene.send([b"later"])
        scene.await_all(daemon)


def test_probes_tell_the_word_and_nothing_else(scene: Scene) -> None:
    """`admin.probes` of a running daemon answers the two probes with its health, and knows no other path."""
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    with scene.daemon(admin={"probes": probes}) as daemon:
        scene.send([b"first"])
        scene.await_all(daemon)
        assert [http_get(f"http://{probes}/{path}") for path in ("livez", "readyz")] == [(200, b"healthy\n")] * 2
        assert {http_get(f"http://{probes}/{path}")[0] for path in ("", "status", "metrics")} == {404}
        daemon.stop()
        assert http_get(f"http://{probes}/livez")[0] == 0


def test_an_outage_of_three_groups_is_few_lines(scene: Scene) -> None:
    """One line when a group begins to fail and one when it recovers, however often it was tried in between."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.receiver.fail("status", status=500)
        for tag in ("a", "b", "c"):
            scene.send([b"x"], tag=tag)
        wait_until(lambda: scene.receiver.stats["status"] >= 30, 30, "it was tried often", detail=daemon.log_tail)
        scene.receiver.faults.clear()
        scene.await_all(daemon)
        wait_until(lambda: len(daemon.events("group.recovered")) == 3, 5, "they recovered", detail=daemon.log_tail)
        lines = [event for event in daemon.events() if event["level"] != "info"]
        assert sorted(event["event"] for event in lines) == ["group.failed"] * 3 + ["health.changed"]
        assert {event["group"] for event in daemon.events("group.failed")} == {"a", "b", "c"}


def test_a_start_tells_where_it_can_be_asked_and_what_it_waits_for(scene: Scene) -> None:
    """At a missing topic the address is told at once, and after 2 s what is waited for; `/readyz` says the same."""
    kafka = {"topics": [f"{scene.topic}-missing"], "start_timeout": "5s"}
    with scene.daemon(source={"kafka": kafka}) as daemon:
        (starting,) = wait_until(lambda: daemon.events("daemon.starting"), 10, "it starts", detail=daemon.log_tail)
        assert starting["admin"] == daemon.admin_url
        (waiting,) = wait_until(lambda: daemon.events("daemon.waiting"), 10, "it waits", detail=daemon.log_tail)
        assert waiting["what"] == f"the topic {scene.topic}-missing in Kafka at {scene.broker.bootstrap}"
        code, ready = http_get(f"{daemon.admin_url}/readyz")
        assert (code, ready.decode().partition(". Next")[0]) == (503, f"starting: waits for {waiting['what']}")
        assert http_get(f"{daemon.admin_url}/livez")[0] == 200
        daemon.wait(69, 15)


def test_a_start_at_a_broker_that_is_away_says_so(tmp_path: Path) -> None:
    """What the client says of the broker is what the start waits for."""
    (port,) = free_ports(1)
    kafka = {"bootstrap_servers": f"127.0.0.1:{port}", "group_id": "g", "topics": ["t"], "start_timeout": "6s"}
    with Daemon(tmp_path, {"source": {"kafka": kafka}, "sink": {"console": {}}}) as daemon:
        (waiting,) = wait_until(lambda: daemon.events("daemon.waiting"), 10, "it waits", detail=daemon.log_tail)
        assert waiting["what"].startswith(f"Kafka at 127.0.0.1:{port}")
        refused = f"starting: waits for Kafka at 127.0.0.1:{port}: ".encode()
        wait_until(lambda: http_get(f"{daemon.admin_url}/readyz")[1].startswith(refused), 4, "it says why")
        daemon.wait(69, 15)
