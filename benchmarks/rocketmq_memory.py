"""Memory of the daemon and its child, while RocketMQ bodies come that are large or unpack to much more than was sent.

Each case fills a topic of many queues. The receiver answers 503 until nothing more is read, and then takes everything:
printed is the most anonymous memory of either time, beside the bound of 1.3 x `memory.budget` + 60 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, Node, RocketMqNode
from tests.support.rocketmq_flow import source_of

MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
ANONYMOUS_MAX_BYTES = int(1.3 * BUDGET_BYTES) + 60 * MIB
QUEUES = 64
CLIENTS = ("remoting", "grpc", "native")
STEADY_S = 2.0
PATIENCE_S = 180.0


class Case(NamedTuple):
    """Bodies, all of one size."""

    body_mib: int
    bodies: int
    packed: str = "zlib"
    """Empty for bodies that do not pack."""

    def __str__(self) -> str:
        return f"{self.bodies} of {self.body_mib} MiB, {self.packed or 'do not pack'}"


CASES = [Case(16, 12), Case(4, 48), Case(1, 128, "")]


@contextmanager
def filled(node: Node, case: Case, queues: int = QUEUES) -> Iterator[str]:
    """The name of a topic with these bodies, in all its queues in turn."""
    topic = node.create_topic(unique("memory"), queues)
    body = b"x" * (case.body_mib * MIB) if case.packed else random.Random(1).randbytes(case.body_mib * MIB)
    for number in range(case.bodies):
        node.send(topic, [Message(body, tag="paid", queue=number % queues, compress=case.packed)], queues=queues)
    yield topic
    node.delete_topic(topic)


class Anonymous:
    """The most memory that no file is behind of a daemon and its children, measured by a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._is_over = threading.Event()
        self.most_bytes = 0
        """Since this was set to 0."""
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Anonymous:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            with contextlib.suppress(psutil.NoSuchProcess):
                own = self._process.cmdline()
                # A child that has not begun its own program yet has its parent's memory.
                children = [one for one in self._process.children() if one.cmdline() != own]
                found = [one.memory_info() for one in (self._process, *children)]
                self.most_bytes = max(self.most_bytes, sum(one.rss - one.shared for one in found))


class Found(NamedTuple):
    """The most memory of a run, in bytes."""

    stalled: int
    flowing: int
    seconds: float

    def __str__(self) -> str:
        beyond = "  BEYOND" if max(self.stalled, self.flowing) > ANONYMOUS_MAX_BYTES else ""
        return f"{self.stalled / MIB:4.0f} stalled, then {self.flowing / MIB:4.0f} in {self.seconds:.1f} s{beyond}"


def measure(node: RocketMqNode, client: str, topic: str, case: Case, folder: Path, **change: Any) -> Found:
    """Run a case over a client; its messages are all delivered at the end."""
    group = node.create_group(unique("memory"))
    with Receiver(count_only=True) as receiver:
        receiver.fail("status", status=503)
        config = {
            "source": {"rocketmq": {**source_of(client, node), "group": group, "topics": [topic]}},
            "memory": {"budget": f"{BUDGET_BYTES // MIB}MiB"},
            "sink": {"http": {"url": receiver.url, "timeout": "20s"}},
            "retry": {"backoff": "50ms", "backoff_max": "500ms"},
            **change,
        }
        with Daemon(folder, config, name=unique("memory")) as daemon, Anonymous(daemon.pid) as memory:
            daemon.wait_ready()
            _await_stall(daemon)
            stalled, memory.most_bytes = memory.most_bytes, 0
            receiver.faults.clear()
            begun_s = time.monotonic()
            wait_until(
                lambda: daemon.status()["delivered"] == case.bodies, PATIENCE_S, "all is delivered",
                detail=daemon.log_tail,
            )  # fmt: skip
            flowing, seconds = memory.most_bytes, time.monotonic() - begun_s
            daemon.stop()
    return Found(stalled, flowing, seconds)


def _await_stall(daemon: Daemon) -> None:
    """Until what is held grows no more."""
    held, since_s = 0, time.monotonic()
    until_s = since_s + PATIENCE_S
    while (not held or time.monotonic() - since_s < STEADY_S) and time.monotonic() < until_s:
        status = daemon.status()
        assert status["held_bytes"] <= status["budget_bytes"]
        if status["held_bytes"] > held:
            held, since_s = status["held_bytes"], time.monotonic()
        time.sleep(0.05)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="+", default=CLIENTS, choices=CLIENTS)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RocketMqNode(Path(name) / "node", proxy={}) as node:
        for case in CASES:
            with filled(node, case) as topic:
                for client in wanted.clients:
                    print(f"{case!s:26} {client:9} {measure(node, client, topic, case, Path(name))}", flush=True)


if __name__ == "__main__":
    main()
