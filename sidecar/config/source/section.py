"""The section `source`: exactly one source. Imports no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from sidecar.config.base import OneOf, lazy
from sidecar.config.source.base import SourceSettings
from sidecar.config.source.kafka import KafkaSettings

if TYPE_CHECKING:
    from sidecar.config.source.rocketmq import RocketMqSettings
else:
    RocketMqSettings = lazy("source.rocketmq", "RocketMqSettings")


class SourceSection(OneOf):
    """Where messages come from."""

    kafka_: KafkaSettings | None = Field(default=None, alias="kafka", description="A Kafka cluster.")
    rocketmq: RocketMqSettings | None = Field(default=None, description="A RocketMQ cluster, 4.x or 5.x.")

    @property
    def kafka(self) -> KafkaSettings:
        """The Kafka section, for code that serves no other source."""
        assert self.kafka_ is not None
        return self.kafka_

    @property
    def start(self) -> str | int:
        """Where a new group starts: ``earliest``, ``latest``, or milliseconds since the epoch."""
        return self.kafka.start if self.rocketmq is None else self.rocketmq.start

    @property
    def start_timeout_s(self) -> float:
        """Limit of the wait for the cluster at the start."""
        return (self.kafka if self.rocketmq is None else self.rocketmq).start_timeout_ms / 1000

    @property
    def group_id(self) -> str:
        return self.chosen.consumer_group

    @property
    def chosen(self) -> SourceSettings:
        chosen: SourceSettings = self.only_one
        return chosen
