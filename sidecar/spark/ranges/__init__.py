"""Shared parts of all readers of offset ranges on Spark: brokers, messages of a range, data that outlives a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.config.model import Settings
    from sidecar.spark.ranges.broker import BrokerRanges


def broker_of(settings: Settings, lane_refusal: str, *, retried: bool) -> BrokerRanges:
    """The broker of these settings; its client is imported for it alone.

    Args:
        lane_refusal: The reason why the lane cannot read its messages; empty if it can. Kafka only.
        retried: Whether messages that the consumer group handed back are read too. RocketMQ only.
    """
    letters, row_format = settings.dead_letters, settings.sink.chosen.row_format
    if settings.source.rocketmq is not None:
        from sidecar.runtime.build import pushed_expression
        from sidecar.spark.ranges.rocketmq import RocketMqRanges

        return RocketMqRanges(letters, row_format, settings.source.rocketmq, pushed_expression(settings), retried)
    from sidecar.spark.ranges.kafka import KafkaRanges

    return KafkaRanges(letters, row_format, settings.source.kafka, lane_refusal)
