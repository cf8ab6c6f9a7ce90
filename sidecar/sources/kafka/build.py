"""Makes the source on Kafka. Decides nothing."""

from __future__ import annotations

from sidecar.config.source.kafka import KafkaSource as Settings
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.source import KafkaSource


def build(settings: Settings, context: SourceContext) -> KafkaSource:
    """The source of these settings."""
    return KafkaSource(settings, context.state, context.rules, context.queue_bytes, context.place)
