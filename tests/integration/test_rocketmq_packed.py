"""Bodies that are large, or unpack to much more than was sent, over each client: the daemon's memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rocketmq_memory import ANONYMOUS_MAX_BYTES, CLIENTS, MIB, QUEUES, Case, filled, measure
from tests.support.rocketmq import RocketMqNode

PACKED = Case(16, 8)
PLAIN = Case(1, QUEUES, "")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


@pytest.fixture(scope="module", params=[PACKED, PLAIN], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """What is sent."""
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def topic(node: RocketMqNode, case: Case) -> Iterator[str]:
    """A topic of 64 queues with the bodies of the case."""
    with filled(node, case) as topic:
        yield topic


@pytest.mark.parametrize("client", ["remoting", *(pytest.param(one, marks=pytest.mark.proof) for one in CLIENTS[1:])])
def test_memory_is_within_the_rule(node: RocketMqNode, topic: str, case: Case, tmp_path: Path, client: str) -> None:
    """At most 1.3 of the budget and 60 MiB, with the child process: while nobody takes anything, and while it flows."""
    found = measure(node, client, topic, case, tmp_path)
    assert found.stalled <= ANONYMOUS_MAX_BYTES, f"stalled: {found}"
    assert found.flowing <= ANONYMOUS_MAX_BYTES, f"flowing: {found}; {ANONYMOUS_MAX_BYTES / MIB:.0f} are promised"
