"""The whole daemon on RocketMQ at any size: small here, large in `make prove-rocketmq`."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.rocketmq import flow, retried
from tests.support.rocketmq import Node


def test_bodies_of_any_kind_and_size(rocketmq: Node, tmp_path: Path) -> None:
    """NUL, binary, 1 MiB and nearly 4 MiB: each wanted message comes once, byte for byte."""
    assert flow(rocketmq, tmp_path, 2_000, giants=200).exact


def test_retried_messages_are_no_duplicates(rocketmq: Node, tmp_path: Path) -> None:
    """Each message that is handed back comes once more, from the retry topic."""
    assert retried(rocketmq, tmp_path, 20).exact
