"""Each fault of the table of health, given to real daemons: the problem that is told first names its cause."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sidecar.ops.health import KINDS
from tests.scenarios.delayed import HEADER
from tests.support.kafka import Outgoing, produce, unique
from tests.support.kafka_relay import FETCH, OFFSET_COMMIT, KafkaRelay, relayed
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Node
from tests.support.rocketmq_flow import Bodies, configuration
from tests.support.scene import Scene, merged

TOLD_S = 60.0
"""Limit for a problem to be told: 10 s, beside many daemons on a loaded machine."""
IDS = {"by": {"header": "id"}}
LOCAL = {"store": "local"}
SMALL = {"memory": {"budget": "8MiB"}, "batch": {"max_bytes": "64KiB"}}
NARROW = {"batch": {"span_max": 1_000, "max_messages": 100}}
PATIENT: dict[str, Any] = {"http": {"timeout": "5m"}}


class Place(NamedTuple):
    """What a fault may befall."""

    scene: Scene
    daemon: Daemon
    relay: KafkaRelay

    def send(self, value: bytes = b"x") -> None:
        """A message, and one that is due in 2 s if they may be held."""
        due = b"%d" % (time.time_ns() // 1_000_000 + 2_000)
        headers = [("tag", b"a"), ("id", unique("id").encode())]
        sent = [Outgoing(0, value, None, headers)]
        if "delay" in self.daemon.config:
            sent.append(Outgoing(0, value, None, [*headers, (HEADER, due)]))
        produce(self.scene.broker.bootstrap, self.scene.topic, sent)

    def await_health(self) -> None:
        """Wait until it has no problem any more but what is told for 5 minutes."""

        def well() -> bool:
            return self.daemon.status()["health"]["kind"] in ("", "dead_letters")

        wait_until(well, TOLD_S, "it heals", detail=self.daemon.status)


def full(place: Place) -> None:
    """No file can grow any more."""
    resource.prlimit(place.daemon.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def poison(place: Place) -> None:
    """A message that the receiver refuses."""
    place.scene.receiver.fail("refuse", status=400, marker="poison")
    place.send(b"poison")


def poison_and_full(place: Place) -> None:
    """The same, and no dead letter can be stored."""
    full(place)
    poison(place)


def failing(kind: str, **how: Any) -> Callable[[Place], None]:
    """The receiver has a fault; the messages that come are more than a narrow `span_max` or a small `memory.budget`."""

    def begin(place: Place) -> None:
        place.scene.receiver.fail(kind, **how)
        place.send()
        size = 10_000 if "memory" in place.daemon.config else 10
        sent = [Outgoing(0, bytes(size), None, [("tag", b"b")]) for _ in range(1_200)]
        produce(place.scene.broker.bootstrap, place.scene.topic, sent)

    return begin


def held_back(request: int, seconds: float) -> Callable[[Place], None]:
    """Requests of this kind reach the broker late, or never."""
    return lambda place: place.relay.delays_s.update({(place.scene.group.encode(), request): seconds})


def removed(name: str) -> Callable[[Place], None]:
    """A part of the state folder is removed."""
    return lambda place: shutil.rmtree(place.daemon.state_dir / name)


class Fault(NamedTuple):
    """A fault of a table's row.

    Args:
        kind: The problem that is told first.
        begin: Makes it.
        words: What the reason says.
        config: What is configured otherwise.
        relayed: Whether the daemon reaches the broker through the relay.
        more: The problems that are told after it: what fails by itself too.
    """

    kind: str
    begin: Callable[[Place], None]
    words: str
    config: dict[str, Any] = {}
    relayed: bool = False
    more: tuple[str, ...] = ()

    @property
    def steps(self) -> list[str]:
        """The next steps that are told, the first one first."""
        return [KINDS[kind].next_step for kind in (self.kind, *self.more)]

    def is_told(self, status: dict[str, Any]) -> bool:
        """Whether it is told first, then what fails by itself too, and no more."""
        return status["health"]["kind"] == self.kind and steps(status) == self.steps


def steps(status: dict[str, Any]) -> list[str]:
    """The next steps of a status, each once: some groups fail for one reason."""
    return list(dict.fromkeys(text.partition(" Next: ")[2] for text in status["problems"]))


SQLITE = {"dedup": {**IDS, "ledger": {"sqlite": {}}}}
FAULTS = {
    "full disk": Fault("state", full, "state.db"),
    "full disk, ids": Fault("ids", full, "message ids cannot be stored", {"dedup": IDS}),
    "full disk, ledger": Fault("ledger", full, "ledger.db", SQLITE, more=("state",)),
    "full disk, delayed": Fault("store", full, "delay: File too large", {"delay": LOCAL}),
    "full disk, delayed with ids": Fault("ids", full, "cannot be stored", {"delay": LOCAL, "dedup": IDS}),
    "removed folder": Fault("state_lost", removed("."), "was removed or moved"),
    "removed folder, delayed": Fault("state_lost", removed("."), "was removed or moved", {"delay": LOCAL}),
    "removed folder of delayed": Fault("store", removed("delay"), "was moved or removed", {"delay": LOCAL}),
    "full disk, dead letters": Fault("dead_letters_store", poison_and_full, "cannot be stored", more=("state",)),
    "dead letters": Fault("dead_letters", poison, "dead letters were added"),
    "commits without an answer": Fault("commit", held_back(OFFSET_COMMIT, inf), "no answer", relayed=True),
    "slow commits": Fault("commit_slow", held_back(OFFSET_COMMIT, 7.0), "have waited for a commit", relayed=True),
    "fetches without an answer": Fault("unread", held_back(FETCH, inf), "no message arrived", relayed=True),
    "receiver fails": Fault("group", failing("status"), "group a fails"),
    "receiver fails, memory full": Fault("group", failing("status"), "group a fails", SMALL, more=("memory",)),
    "receiver fails, span used up": Fault(
        "group", failing("status", group="a"), "group a fails", NARROW, more=("span",)
    ),
    "receiver hangs": Fault("waiting", failing("hang"), "have waited for an answer", {"sink": PATIENT}),
    "receiver hangs, memory full": Fault(
        "waiting", failing("hang"), "have waited for an answer", {"sink": PATIENT, **SMALL}, more=("memory",)
    ),
    "receiver hangs, span used up": Fault(
        "waiting", failing("hang", group="a"), "group a have waited", {"sink": PATIENT, **NARROW}, more=("span",)
    ),
    "receiver refuses": Fault("halted", failing("status", status=401), "HTTP 401"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The status of each daemon when its fault was told; all begin at once. Full disks end, and their problems do."""
    folder = tmp_path_factory.mktemp("causes")
    with ExitStack() as stack:
        broker, behind, relay = stack.enter_context(relayed(folder / "broker"))
        places = {}
        for name, fault in FAULTS.items():
            receiver = stack.enter_context(Receiver())
            own = folder / name
            own.mkdir()
            topic = broker.create_topic(unique("causes"))
            scene = Scene(behind if fault.relayed else broker, own, receiver, topic, unique("group"))
            config = merged(fault.config, {"source": {"kafka": {"properties": {"client.id": scene.group}}}})
            places[name] = Place(scene, stack.enter_context(scene.daemon(**config)), relay)
        for place in places.values():
            place.daemon.wait_ready()
            place.scene.broker = broker
            place.send()
        for place in places.values():
            wait_until(place.scene.receiver.rows, 30, "it delivers", detail=place.daemon.log_tail)
        for name, place in places.items():
            FAULTS[name].begin(place)
        found: dict[str, dict[str, Any]] = {}
        waiting = set(places)
        until = time.monotonic() + TOLD_S
        while waiting and time.monotonic() < until:
            for name in sorted(waiting):
                places[name].send()
                found[name] = places[name].daemon.status()
            waiting = {name for name in waiting if not FAULTS[name].is_told(found[name])}
            time.sleep(0.5)
        for name, place in places.items():
            if FAULTS[name].begin is full and found[name]["problems"]:
                resource.prlimit(place.daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                place.await_health()
        yield found


def test_a_full_disk_is_told_by_its_cause_with_rocketmq(rocketmq: Node, tmp_path: Path) -> None:
    """The progress of queues is in the state file: no broker is blamed when that cannot be written."""
    bodies = Bodies(rocketmq)
    with Receiver() as receiver:
        source = {"client": "remoting", "name_servers": rocketmq.name_server}
        with Daemon(tmp_path, configuration(source, bodies, receiver.url)) as daemon:
            bodies.send(10)
            wait_until(lambda: bodies.has_arrived(receiver), TOLD_S, "all arrive", detail=daemon.log_tail)
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            bodies.send(10)
            wait_until(lambda: daemon.status()["health"]["kind"] == "store", TOLD_S, "it is told", detail=daemon.status)
            assert len(daemon.status()["problems"]) == 1


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_by_its_cause(told: dict[str, dict[str, Any]], name: str) -> None:
    """The first problem has kind, reason and next step of the fault, and no other is told that it explains."""
    health = told[name]["health"]
    assert FAULTS[name].is_told(told[name]), told[name]["problems"]
    assert FAULTS[name].words in health["reason"]
