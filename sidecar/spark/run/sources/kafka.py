"""Kafka for the pipeline on Spark. Decides nothing about messages."""

from __future__ import annotations

from contextlib import ExitStack, closing

from sidecar.config.model import Settings
from sidecar.core.records import TopicPartition
from sidecar.runtime.dead_letters import DeadLetterStore, Keeper, open_dead_letters
from sidecar.runtime.lane import refusal_on_spark
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.fetch import KafkaFetcher
from sidecar.sources.kafka.lane import FastLane, LaneColumns, lane_for
from sidecar.spark.ranges import broker
from sidecar.spark.ranges.fetch import QUEUE_KBYTES, fetch
from sidecar.spark.ranges.logs import Places
from sidecar.spark.run.executor.by_lane import fetch_by_lane
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.sources import topics
from sidecar.spark.run.sources.interface import Found, Single


class KafkaRun:
    """See `RunSource`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kafka = settings.source.kafka

    def await_cluster(self) -> str:
        """See `RunSource`.

        Raises:
            ConfigError: The fast lane is demanded, and cannot be used here.
        """
        if self._kafka.lane == "on":
            lane_for("on", refusal_on_spark(self._settings), 0)
        return broker.await_cluster(self._kafka)

    def refuse_members(self) -> None:
        """See `RunSource`."""
        broker.refuse_members(self._kafka)

    def group_offsets(self) -> Places | None:
        """See `RunSource`."""
        return broker.group_offsets(self._kafka)

    def claim(self, cluster_id: str, folder: RunFolder, topic: str, *, anew: bool = False) -> str:
        """See `RunSource`: the topic's id."""
        return topics.claim(self._kafka, cluster_id, folder, topic, anew=anew)

    def read(self, folder: RunFolder, tp: TopicPartition, start: int, end: int) -> Found:  # noqa: ARG002
        """See `RunSource`."""
        kafka = self._kafka
        lane = lane_for(kafka.lane, refusal_on_spark(self._settings), QUEUE_KBYTES << 10)
        if isinstance(lane, FastLane):
            return Found(LaneColumns(), fetch_by_lane(kafka, lane, tp, start, end), "", lane)
        return Found(KafkaColumns(), fetch(kafka, tp, start, end), None if kafka.lane == "off" else lane)

    def single(self, stack: ExitStack) -> Single:
        """See `RunSource`."""
        return Single(KafkaColumns(), self._fetcher(stack).message)

    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        """See `RunSource`."""
        return open_dead_letters(self._settings, keeper, self._fetcher(stack).fetch)

    def _fetcher(self, stack: ExitStack) -> KafkaFetcher:
        return stack.enter_context(closing(KafkaFetcher(client_config(self._kafka))))
