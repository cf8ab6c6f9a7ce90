"""Packed bodies that unpack to much more than may be held, over each client: the daemon's memory stays bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, Bodies, configuration, source_of

QUEUES, BODY_BYTES, EACH = 64, 4 << 20, 2
BUDGET_BYTES = 64 << 20
RESIDENT_MAX_BYTES = int(1.3 * BUDGET_BYTES) + (75 << 20)
STEADY_S = 3.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


@pytest.mark.parametrize("client", ["remoting", "grpc", "native"])
def test_much_that_came_packed_is_held_within_the_budget(node: RocketMqNode, tmp_path: Path, client: str) -> None:
    """Every queue has messages of 4 MiB that came as 4 KiB, and nobody takes them: what is held stays within bounds."""
    bodies = Bodies(node)
    node.create_topic(bodies.topic, QUEUES)
    text = b"x" * BODY_BYTES
    for queue in range(QUEUES):
        node.send(
            bodies.topic, [Message(text, tag="paid", queue=queue, compress="zlib") for _ in range(EACH)], queues=QUEUES
        )
    with Receiver(count_only=True) as receiver:
        receiver.fail("status", status=503)
        with Daemon(tmp_path, configuration(source_of(client, node), bodies, receiver.url)) as daemon:
            daemon.wait_ready()
            resident = _most_while_stalled(daemon)
            assert resident <= RESIDENT_MAX_BYTES, f"{resident >> 20} MiB"
            receiver.faults.clear()
            wait_until(
                lambda: daemon.status()["delivered"] == QUEUES * EACH, PATIENCE_S, "all is delivered",
                detail=daemon.log_tail,
            )  # fmt: skip
            daemon.stop()


def _most_while_stalled(daemon: Daemon) -> int:
    """The most that daemon and child have, until what is held grows no more."""
    process, most, held, since_s = psutil.Process(daemon.pid), 0, 0, time.monotonic()
    until_s = since_s + PATIENCE_S
    while (not held or time.monotonic() - since_s < STEADY_S) and time.monotonic() < until_s:
        status = daemon.status()
        assert status["held_bytes"] <= status["budget_bytes"]
        most = max(most, sum(one.memory_info().rss for one in (process, *process.children())))
        if status["held_bytes"] > held:
            held, since_s = status["held_bytes"], time.monotonic()
        time.sleep(0.02)
    return most
