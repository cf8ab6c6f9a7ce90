"""Makes the source of the settings; the client is imported for it alone."""

from __future__ import annotations

from sidecar.config.model import Settings
from sidecar.spark.run.sources.interface import RunSource


def run_source(settings: Settings) -> RunSource:
    """The source of these settings."""
    if settings.source.rocketmq is not None:
        from sidecar.spark.run.sources.rocketmq import RocketMqRun

        return RocketMqRun(settings)
    from sidecar.spark.run.sources.kafka import KafkaRun

    return KafkaRun(settings)
