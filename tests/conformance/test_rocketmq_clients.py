"""The clients of RocketMQ: whatever the whole daemon reads with, each wanted message comes once, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import rocketmq_flow as flows
from tests.support.process import Daemon
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import Bodies


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


@pytest.fixture(params=["remoting", "grpc", "native"])
def source(request: pytest.FixtureRequest, node: RocketMqNode) -> dict[str, Any]:
    """The source section without topic and group."""
    return flows.source_of(request.param, node)


def test_messages_of_all_kinds_arrive_once(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """3,000 in 8 queues, NUL, binary and 4 MB among them, 5 tags of 8; 100 more by each package's producer."""
    assert flows.flow(node, source, tmp_path, 3_000, share=100).exact


@pytest.mark.proof
def test_a_kill_loses_nothing_and_repeats_nothing(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Killed in mid-flow, its state kept: what was in flight comes again under its old names, and once."""
    assert flows.kills(node, source, tmp_path, 3_000, 1).exact


def test_packed_bodies_come_whole(node: RocketMqNode, source: dict[str, Any], tmp_path: Path) -> None:
    """Packed by whatever a producer can pack with, or not at all."""
    bodies = Bodies(node)
    kinds = ("zlib", "zlib of 4.x", "lz4", "zstd", "")
    sent = [Message(b"packed by " + how.encode() + bytes(5_000), tag="paid", compress=how) for how in kinds]
    with Receiver() as receiver:
        with Daemon(tmp_path, flows.configuration(source, bodies, receiver.url)) as daemon:
            bodies.send_these(sent)
            flows.await_all(daemon, bodies, receiver)
            daemon.stop()
        assert bodies.tally(receiver).exact
