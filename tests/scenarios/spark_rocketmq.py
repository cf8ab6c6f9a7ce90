"""Drivers and executors of `sidecar spark run` killed while it reads RocketMQ."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.spark_kills import Scene, kill_drivers, kill_executors
from tests.support.audit import Finding
from tests.support.rocketmq import Node
from tests.support.spark.deliveries import POISON_EVERY
from tests.support.spark.rocketmq import QueueReceiver, http_config, source, waiting

OF = "RocketMQ"


def drivers(node: Node, folder: Path, messages: int, times: int, *, seed: int = 1) -> Finding:
    """See `spark_kills.drivers`."""
    return kill_drivers(_scene(node, messages, times, seed), folder, times, "client", OF)


def executors(node: Node, folder: Path, messages: int, times: int, *, seed: int = 1) -> Finding:
    """See `spark_kills.executors`."""
    return kill_executors(_scene(node, messages, times, seed), folder, times, "client", OF)


def _scene(node: Node, messages: int, times: int, seed: int) -> Scene:
    topic, expected = waiting(node, messages, seed=seed, poison_every=POISON_EVERY)
    receiver = QueueReceiver(expected)
    return Scene(expected, receiver, http_config(source(node, topic), receiver.url), times, seed)
