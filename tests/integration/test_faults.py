"""A receiver that misbehaves: nothing is lost, nothing comes twice, memory stays within its budget, and it heals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import Broker, MakeTopic, unique
from tests.support.process import Daemon, free_ports, wait_until
from tests.support.receiver import Receiver
from tests.support.scene import Scene, rss_bytes

HEALS_WITHIN_S = 1.0 + 0.5 + 12.0
"""The configured timeout and longest backoff, and what a busy machine adds."""


@pytest.fixture
def scene(kafka: Broker, make_topic: MakeTopic, tmp_path: Path) -> Iterator[Scene]:
    """A topic of two partitions and a receiver that remembers names."""
    with Receiver() as receiver:
        yield Scene(kafka, tmp_path, receiver, make_topic(2), unique("group"))


OUTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "500": ("status", {"status": 500}),
    "503": ("status", {"status": 503}),
    "429 with Retry-After": ("status", {"status": 429, "headers": {"Retry-After": "1"}}),
    "hangs": ("hang", {}),
    "closes after the headers": ("truncate", {}),
    "drips its answer": ("drip", {}),
    "closes before an answer": ("close", {}),
    "closes after it stored": ("lost", {}),
    "sends 1 GB": ("giant", {}),
    "redirects": ("status", {"status": 307, "headers": {"Location": "http://127.0.0.1:1/"}}),
    "401": ("status", {"status": 401}),
    "404": ("status", {"status": 404}),
}


@pytest.fixture(scope="module")
def long_lived(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Daemon]]:
    """A receiver and one daemon that outlives fault after fault."""
    topic = kafka.create_topic(unique("faults"), 2)
    with Receiver() as receiver:
        scene = Scene(kafka, tmp_path_factory.mktemp("faults"), receiver, topic, unique("group"))
        with scene.daemon() as daemon:
            daemon.wait_ready()
            yield scene, daemon


@pytest.fixture
def long_scene(long_lived: tuple[Scene, Daemon]) -> Iterator[tuple[Scene, Daemon]]:
    """The same, with a receiver that is well again after each test."""
    yield long_lived
    long_lived[0].receiver.faults.clear()


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_loses_and_repeats_nothing(long_scene: tuple[Scene, Daemon], name: str) -> None:
    """While the receiver fails nothing is dead-lettered; soon after, all has arrived, each message once."""
    scene, daemon = long_scene
    kind, how = OUTAGES[name]
    struck = "status" if kind == "status" else kind
    before = scene.receiver.stats[struck]
    scene.receiver.fail(kind, **how)
    scene.send((b"%s %d" % (name.encode(), i) for i in range(200)), partition=0)
    scene.send((b"other %d" % i for i in range(50)), partition=1, tag="b")
    wait_until(lambda: scene.receiver.stats[struck] >= before + 2, 15, "the fault struck", detail=daemon.log_tail)
    scene.receiver.faults.clear()
    healed = time.monotonic()
    status = scene.await_all(daemon)
    assert time.monotonic() - healed < HEALS_WITHIN_S
    assert status["dead_lettered"] == status["dead_letters_stored"] == 0


def stopped(daemon: Daemon, word: str) -> Callable[[], bool]:
    """Whether the daemon says that it reads nothing, for this reason."""
    return lambda: word in daemon.status()["intake_stopped"]


def test_a_refusal_of_all_requests_stops_the_intake(long_scene: tuple[Scene, Daemon]) -> None:
    """With a 401 the intake stops, `/readyz` and the problems say so, and it goes on once that is mended."""
    scene, daemon = long_scene
    scene.receiver.fail("status", status=401, body="who are you")
    scene.send([b"first"])
    status = wait_until(lambda: daemon.status() if stopped(daemon, "halted")() else None, 10, "the intake stopped")
    assert status
    assert not status["ready"]
    assert any("who are you" in problem for problem in status["problems"])
    scene.send([b"later"] * 10)
    position = status["partitions"][0]["position"]
    retried = scene.receiver.stats["status"] + 2
    wait_until(lambda: scene.receiver.stats["status"] >= retried, 10, "it is tried again meanwhile")
    assert daemon.status()["partitions"][0]["position"] == position
    scene.receiver.faults.clear()
    status = scene.await_all(daemon)
    assert status["ready"]
    assert status["intake_stopped"] == status["problems"] == []


def test_retry_after_is_waited_for(long_scene: tuple[Scene, Daemon]) -> None:
    """A 429 with `Retry-After: 2` is not tried again before two seconds are over."""
    scene, daemon = long_scene
    scene.receiver.fail("status", status=429, headers={"Retry-After": "2"}, times=1)
    begun, before = time.monotonic(), scene.receiver.stats["status"]
    scene.send([b"patience"])
    wait_until(lambda: scene.receiver.stats["status"] > before, 10, "it was told to wait")
    scene.await_all(daemon)
    assert 2 <= time.monotonic() - begun < 2 + HEALS_WITHIN_S


def test_all_groups_wait_together(long_scene: tuple[Scene, Daemon]) -> None:
    """A receiver that asks twelve groups to wait for two seconds is tested with one request in that time."""
    scene, daemon = long_scene
    before = scene.receiver.stats["status"]
    scene.receiver.fail("status", status=429, headers={"Retry-After": "2"})
    for number in range(12):
        scene.send([b"busy"], tag=f"busy {number}")
    wait_until(lambda: daemon.events("receiver.paused"), 10, "it waits", detail=daemon.log_tail)
    time.sleep(5)
    requests = scene.receiver.stats["status"] - before
    scene.receiver.faults.clear()
    scene.await_all(daemon)
    assert requests <= 5 + 3, "the first ones, and one in each window"


def test_the_size_of_a_body_is_learned(scene: Scene) -> None:
    """A receiver that takes 20 KB refuses few requests, the status shows the size, and nothing is dead-lettered."""
    scene.receiver.fail("status", status=413, over_bytes=20_000)
    with scene.daemon() as daemon:
        daemon.wait_ready()
        for _ in range(5):
            scene.send(b"%d " % i * 40 for i in range(4_000))
        status = scene.await_all(daemon)
        assert scene.receiver.stats["status"] <= 15
        assert 15_000 < status["pace"]["body_bytes"] <= 20_000
        assert status["dead_lettered"] == 0


def test_more_requests_at_a_time_are_tried(scene: Scene) -> None:
    """A receiver that is as fast with more of them gets more than at first."""
    scene.receiver.fail("slow", delay_ms=100)
    with scene.daemon(batch={"max_messages": 1}, sink={"http": {"concurrency": "auto"}}) as daemon:
        daemon.wait_ready()
        scene.send(b"%d" % i for i in range(400))
        scene.await_all(daemon)
        assert daemon.status()["pace"]["concurrency"] > 8


def test_a_rate_is_learned(scene: Scene) -> None:
    """A receiver that takes 20 requests a second refuses few, and gets most of what it takes."""
    scene.receiver.fail("status", status=429, per_second=20)
    with scene.daemon(batch={"max_messages": 1}, sink={"http": {"rate": {"requests": "auto"}}}) as daemon:
        daemon.wait_ready()
        scene.send(b"%d" % i for i in range(200))
        begun = time.monotonic()
        scene.await_all(daemon)
        assert time.monotonic() - begun < 20, "10 s would be the limit"
        assert scene.receiver.stats["status"] <= 60, "most of them at first"
        assert 10 <= daemon.status()["pace"]["requests_per_second"] <= 40


def test_a_rate_that_is_set_is_kept(scene: Scene) -> None:
    """40 requests at 20 a second take a second after the first 20."""
    with scene.daemon(batch={"max_messages": 1}, sink={"http": {"rate": {"requests": "20/s"}}}) as daemon:
        daemon.wait_ready()
        scene.send(b"%d" % i for i in range(60))
        scene.await_all(daemon)
        at_ms = sorted(part["at_ms"] for part in scene.receiver.parts())
        assert at_ms[-1] - at_ms[0] >= 1_500


def test_a_failing_group_delays_no_other(long_scene: tuple[Scene, Daemon]) -> None:
    """While group `a` fails for ever, what is sent to group `b` arrives within a second or two."""
    scene, daemon = long_scene
    scene.receiver.fail("hang", group="a")
    stuck = scene.send([b"stuck %d" % i for i in range(100)], tag="a")
    wait_until(lambda: scene.receiver.stats["hang"] >= 1, 10, "group a fails")
    for round_ in range(3):
        sent = scene.send([b"free %d" % round_] * 100, tag="b")
        wait_until(lambda sent=sent: set(sent) <= set(scene.receiver.rows()), 15, "group b is not delayed")  # type: ignore[misc]
    wait_until(lambda: [one["group"] for one in daemon.status()["retrying"]] == ["a"], 10, "the status names it")
    assert not set(stuck) & set(scene.receiver.rows())
    scene.receiver.faults.clear()
    scene.await_all(daemon)


def test_retries_of_a_207_come_once(long_scene: tuple[Scene, Daemon]) -> None:
    """Rows that a 207 asks for again are sent again alone, until they are taken; the others are not repeated."""
    scene, daemon = long_scene
    scene.receiver.fail("refuse", status=207, marker="again", retry=True, times=2)
    scene.send([b"again %d" % i if i % 50 == 7 else b"good %d" % i for i in range(200)])
    status = scene.await_all(daemon)
    assert scene.receiver.stats["refuse"] >= 2
    assert status["dead_lettered"] == 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"status": 207, "retry": False}, "marked"),
        ({"status": 400, "body": "no poison"}, "HTTP 400: no poison"),
        ({"status": 413}, "too_large"),
    ],
    ids=["207", "400", "413"],
)
def test_poison_is_dead_lettered_alone(long_scene: tuple[Scene, Daemon], how: dict[str, Any], reason: str) -> None:
    """Of 500 messages the one that the receiver refuses is dead-lettered with its reason, 499 arrive once."""
    scene, daemon = long_scene
    dead_lettered = len(daemon.events("message.dead_lettered"))
    scene.receiver.fail("refuse", marker="poison", **how)
    requests = scene.receiver.stats["requests"]
    rows = scene.send([b"poison" if i == 123 else b"good %d" % i for i in range(500)])
    scene.expected.remove(rows[123])
    scene.await_all(daemon)
    scene.receiver.faults.clear()
    (letter,) = daemon.events("message.dead_lettered")[dead_lettered:]
    assert (letter["offset"], letter["reason"]) == (rows[123][2], reason)
    assert scene.receiver.stats["requests"] - requests <= 2 * 9 + 10


def test_a_receiver_that_refuses_everything_does_not_empty_the_topic(scene: Scene) -> None:
    """After about a hundred refusals the intake stops and says so; the rest arrives once the receiver is mended."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.receiver.fail("status", status=400)
        scene.send(b"%d" % i for i in range(3_000))
        wait_until(stopped(daemon, "refused"), 30, "the guard stopped the intake", detail=daemon.log_tail)
        struck = scene.receiver.stats["status"]
        wait_until(lambda: scene.receiver.stats["status"] >= struck + 3, 10, "it is tried again meanwhile")
        status = daemon.status()
        assert 50 <= status["dead_lettered"] <= 110
        assert any("refused" in problem for problem in status["problems"])
        scene.receiver.faults.clear()
        wait_until(lambda: daemon.status()["lag"] == 0, 15, "it heals", detail=daemon.log_tail)
        status = daemon.status()
        assert status["dead_lettered"] <= 110
        assert status["delivered"] + status["dead_lettered"] == 3_000
        assert len(scene.receiver.rows()) == len(set(scene.receiver.rows())) == status["delivered"]
        assert status["intake_stopped"] == []


def test_the_lag_goes_on_while_reading_is_paused(scene: Scene) -> None:
    """With the intake stopped, what is produced meanwhile is in the lag within 10 s, of partitions never read too."""
    with scene.daemon() as daemon:
        daemon.wait_ready()
        scene.receiver.fail("status", status=401)
        scene.send([b"first"])
        wait_until(stopped(daemon, "halted"), 10, "the intake stopped")
        scene.send(b"%d" % i for i in range(300))
        scene.send((b"%d" % i for i in range(200)), partition=1)
        wait_until(lambda: daemon.status()["lag"] == 501, 12, "the lag has all of it", detail=daemon.status)
        scene.receiver.faults.clear()
        scene.await_all(daemon)


def test_an_outage_stays_within_the_memory_budget(scene: Scene) -> None:
    """48 messages of 1 MB wait behind a receiver that is down: what is held stays within 16 MiB, all told."""
    budget = 16 << 20
    with scene.daemon(memory={"budget": "16MiB"}, batch={"max_bytes": "1MiB"}) as daemon:
        scene.send([b"warm"])
        scene.await_all(daemon)
        at_rest = rss_bytes(daemon.pid)
        scene.receiver.fail("status", status=503)
        scene.send(bytes([i]) + b"\xff" * 1_000_000 for i in range(48))
        seen: list[int] = []

        def full() -> bool:
            status = daemon.status()
            seen.append(status["held_bytes"])
            return "memory" in status["intake_stopped"]

        wait_until(full, 15, "the budget is used up", detail=daemon.log_tail)
        struck = scene.receiver.stats["status"]
        wait_until(lambda: full() and scene.receiver.stats["status"] >= struck + 6, 15, "it goes on trying")
        scene.receiver.faults.clear()
        wait_until(lambda: full() or daemon.status()["lag"] == 0, 15, "it heals")
        scene.await_all(daemon, 30)
        assert 0.3 * budget < max(seen) <= budget
        assert rss_bytes(daemon.pid) - at_rest < 80 << 20


def test_a_receiver_that_is_down_at_the_start_is_waited_for(kafka: Broker, topic: str, tmp_path: Path) -> None:
    """Nothing listens at first: the daemon runs on, names the problem, and delivers when the receiver is there."""
    port = free_ports(1)[0]
    with Receiver(port) as receiver:
        scene = Scene(kafka, tmp_path, receiver, topic, unique("group"))
    with scene.daemon() as daemon:
        scene.send([b"early"] * 100)
        wait_until(lambda: daemon.running and daemon.events("group.failed"), 15, "it tries", detail=daemon.log_tail)
        daemon.wait_ready()
        wait_until(lambda: "refused" in str(daemon.status()["problems"]), 15, "the problem is told")
        with Receiver(port) as receiver:
            scene.receiver = receiver
            scene.await_all(daemon)
            assert len(scene.receiver.rows()) == 100
        daemon.stop()
