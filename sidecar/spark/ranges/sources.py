"""The logs of a configured source, and patience with its cluster. The client is imported for the source alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sidecar.errors import UnavailableError
from sidecar.spark.ranges.logs import Logs

if TYPE_CHECKING:
    from sidecar.config.source.section import Source

T = TypeVar("T")

RETRY_S = 0.5
PATIENCE_S = 30.0
"""How long planning waits for a cluster that does not answer."""


def logs_of(source: Source, *, retried: bool = False) -> Logs:
    """The logs of a source.

    Args:
        retried: Whether messages that the consumer group handed back are read too; RocketMQ only.
    """
    if source.rocketmq is not None:
        from sidecar.spark.ranges.rocketmq import RocketMqLogs

        return RocketMqLogs(source.rocketmq, retried=retried)
    from sidecar.spark.ranges.kafka import KafkaLogs

    return KafkaLogs(source.kafka)


def patiently(plan: Callable[[], T], patience_s: float | None = None) -> T:
    """The result of a plan that asks a cluster, made anew while the cluster does not answer.

    Args:
        plan: Asks all that it needs, so that one time limit holds for all of it.
        patience_s: The limit; None for 30 s.

    Raises:
        UnavailableError: The cluster does not answer for so long, or lacks a topic.
        SidecarError: It refuses.
    """
    deadline_s = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return plan()
        except UnavailableError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(RETRY_S)
