"""What planning asks of a cluster about its logs, and offsets of several partitions as JSON. Knows no client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

from sidecar.core.records import TopicPartition

Places: TypeAlias = dict[str, dict[str, int]]
"""Offsets by topic and `TopicPartition.queue`; for Kafka, this is the JSON form of Spark's connector."""


class Bounds(Protocol):
    """Bounds of a log."""

    @property
    def low(self) -> int:
        """Its first offset."""
        ...

    @property
    def high(self) -> int:
        """The offset of its next message."""
        ...


class Between(NamedTuple):
    """See `Bounds`."""

    low: int
    high: int


class Logs(Protocol):
    """Asks a cluster about the logs that are read."""

    def bounds(self) -> Mapping[TopicPartition, Bounds]:
        """The bounds of all logs.

        Raises:
            SidecarError: The cluster does not answer, refuses, or lacks a topic.
        """
        ...

    def at_time(self, bounds: Mapping[TopicPartition, Bounds], at_ms: int) -> Mapping[TopicPartition, int]:
        """The first offset of each log that is not older; its end if there is none."""
        ...

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        """The id of each topic; empty where the cluster has none."""
        ...

    def is_read(self, topic: str) -> bool:
        """Whether the settings name this topic."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


def firsts_of(logs: Logs, bounds: Mapping[TopicPartition, Bounds], start: str | int) -> dict[TopicPartition, int]:
    """Where a new query begins in each log.

    Args:
        bounds: The bounds of the logs.
        start: ``earliest``, ``latest``, or milliseconds since the epoch.
    """
    if isinstance(start, int):
        return dict(logs.at_time(bounds, start))
    return {tp: found.low if start == "earliest" else found.high for tp, found in bounds.items()}


def by_topic(offsets: Mapping[TopicPartition, int]) -> Places:
    """These offsets as JSON."""
    places: Places = {}
    for tp, offset in sorted(offsets.items()):
        places.setdefault(tp.topic, {})[tp.queue] = offset
    return places


def by_partition(places: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The offsets in JSON that `by_topic` made."""
    return dict(_each(places))


def _each(places: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[TopicPartition, int]]:
    for topic, by_queue in places.items():
        for queue, offset in by_queue.items():
            broker, _, number = queue.rpartition(":")
            yield TopicPartition(topic, int(number), unquote(broker)), int(offset)
