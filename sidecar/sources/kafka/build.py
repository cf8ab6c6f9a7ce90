"""Creates the Kafka source. Decides nothing."""

from __future__ import annotations

from sidecar.config.source.kafka import KafkaSource as Settings
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.source import KafkaSource


def build(settings: Settings, context: SourceContext) -> KafkaSource:
    """Create the source from its settings."""
    return KafkaSource(settings, context.state, context.rules, context.queue_bytes, context.place)
