"""Creates the Kafka source, and chooses the reader: the client, or the fast lane. Decides nothing else."""

from __future__ import annotations

from sidecar.config.source.kafka import KafkaSettings as Settings
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.config import lane_for
from sidecar.sources.kafka.source import KafkaSource


def build(settings: Settings, context: SourceContext) -> KafkaSource:
    """Create the source from its settings; raises `ConfigError` if `lane` is `on`, and the fast lane cannot be used."""
    lane = lane_for(settings.lane, context.lane_refusal, context.queue_bytes)
    if not isinstance(lane, str):
        context.tell("lane.used", "info", {})
    elif settings.lane != "off":
        context.tell("lane.not_used", "info", {"reason": lane})
    return KafkaSource(settings, context, lane)
