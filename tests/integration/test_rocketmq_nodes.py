"""Checks on real nodes with all three clients at once, small here, larger in `make prove-rocketmq`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.audit import Finding
from tests.support.rocketmq import RocketMqNode
from tests.support.rocketmq_flow import source_of
from tests.support.rocketmq_made_again import kept_offsets
from tests.support.rocketmq_trio import name_servers, transactions


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy, of these tests alone."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


def are_exact(found: list[Finding]) -> bool:
    """Whether nothing was lost or came twice that is not promised."""
    assert all(one.exact for one in found), found
    return True


def test_transactions(node: RocketMqNode, tmp_path: Path) -> None:
    """Committed messages arrive once, through a kill; those rolled back or left alone never do."""
    assert are_exact(transactions(node, tmp_path, 200, 1))


def test_what_a_broker_skipped_is_told(node: RocketMqNode, tmp_path: Path) -> None:
    """Over gRPC, of a topic made again whose queues begin at old offsets: an error for each, with the count."""
    assert kept_offsets(node, source_of("grpc", node), tmp_path, 1).exact


@pytest.mark.slow
def test_name_servers_in_turn(tmp_path: Path) -> None:
    """Of two name servers one is always there: messages flow."""
    assert are_exact(name_servers(tmp_path, 200, 1))
