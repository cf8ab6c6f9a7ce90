"""Creates the Kafka source, and chooses who reads: the client, or the fast lane. Decides nothing else."""

from __future__ import annotations

from sidecar.config.source.kafka import KafkaSource as Settings
from sidecar.errors import ConfigError
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.lane.lane import Lane, load
from sidecar.sources.kafka.source import KafkaSource


def build(settings: Settings, context: SourceContext) -> KafkaSource:
    """Create the source from its settings.

    Raises:
        ConfigError: `lane` is `on`, and the fast lane cannot be used.
    """
    lane = "source.kafka.lane is off" if settings.lane == "off" else _lane(settings, context)
    return KafkaSource(settings, context.state, context.rules, context.queue_bytes, context.place, lane)


def _lane(settings: Settings, context: SourceContext) -> Lane | str:
    try:
        if context.lane_refusal:
            raise ConfigError(f"the fast lane does not do {context.lane_refusal}", hint="set source.kafka.lane: off")
        lane = Lane(load(), context.queue_bytes)
    except ConfigError as error:
        if settings.lane == "on":
            raise
        context.tell("lane.not_used", "info", {"reason": str(error)})
        return str(error)
    context.tell("lane.used", "info", {})
    return lane
