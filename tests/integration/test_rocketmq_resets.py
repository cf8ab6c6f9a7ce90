"""Offsets that an operator resets while the daemon is stopped: each is obeyed, or `status` says that it was not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.rocketmq_resets import resets
from tests.support.rocketmq import RocketMqNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RocketMqNode]:
    """A node of this test alone."""
    with RocketMqNode(tmp_path / "node") as node:
        yield node


def test_a_reset_while_the_daemon_is_stopped(node: RocketMqNode, tmp_path: Path) -> None:
    """After a kill or a planned stop, of the broker too: obeyed, or told as a problem, and nothing else comes twice."""
    rounds = [("after a burst", "is killed"), ("in mid-flow", "runs on"), ("planned", "runs on")]
    assert resets(node, tmp_path, rounds).exact
