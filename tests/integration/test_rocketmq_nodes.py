"""Checks on real nodes with all three clients at once, small here, larger in `make prove-rocketmq`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.audit import Finding
from tests.support.rocketmq import RocketMqNode
from tests.support.rocketmq_brokers import promoted, read_from_slave, rebalances
from tests.support.rocketmq_flow import source_of
from tests.support.rocketmq_made_again import kept_offsets
from tests.support.rocketmq_proxies import restarts
from tests.support.rocketmq_trio import CLIENTS, clock, name_servers, transactions


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy, of these tests alone."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


def are_exact(found: list[Finding]) -> bool:
    """Whether nothing was lost or came twice that is not promised."""
    assert all(one.exact for one in found), found
    return True


@pytest.mark.proof
def test_transactions(node: RocketMqNode, tmp_path: Path) -> None:
    """Committed messages arrive once, through a kill; those rolled back or left alone never do."""
    assert are_exact(transactions(node, tmp_path, 200, 1))


@pytest.mark.proof
def test_what_a_broker_skipped_is_told(node: RocketMqNode, tmp_path: Path) -> None:
    """Over gRPC, of a topic made again whose queues begin at old offsets: an error for each, with the count."""
    assert kept_offsets(node, source_of("grpc", node), tmp_path, 1).exact


@pytest.mark.proof
def test_a_proxy_apart_from_its_broker(node: RocketMqNode, tmp_path: Path) -> None:
    """In cluster mode, killed and stopped in mid-flow: each message once."""
    assert restarts(node, tmp_path, 800, 1).exact


@pytest.mark.proof
def test_name_servers_in_turn(tmp_path: Path) -> None:
    """Of two name servers one is always there: messages flow."""
    assert are_exact(name_servers(tmp_path, 200, 1))


@pytest.mark.proof
@pytest.mark.parametrize("ahead_s", [600, -600])
def test_a_clock_that_is_wrong(node: RocketMqNode, tmp_path: Path, ahead_s: int) -> None:
    """The broker's clock is no clock that decides."""
    assert are_exact(clock(node, tmp_path, 800, 1, ahead_s))


@pytest.mark.proof
def test_a_slave_takes_over(tmp_path: Path) -> None:
    """For a while, and for good."""
    assert are_exact([read_from_slave(tmp_path, 2), promoted(tmp_path, 2)])


@pytest.mark.proof
@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_that_is_killed_during_a_rebalance(node: RocketMqNode, tmp_path: Path, client: str) -> None:
    """The other broker's messages come once; of its own none is lost."""
    assert rebalances(node, client, tmp_path, 1).exact
