"""Requests committed offsets and log bounds: many partitions in few requests, in bounded time. Decides nothing."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.records import TopicPartition

_EARLIEST, _LATEST = -2, -1
"""Kafka's special timestamps."""


class LogBounds(NamedTuple):
    """A log's first offset, and the offset of its next message; without aborted and open transactions."""

    low: int
    high: int


class Offsets:
    """Asks the broker. All methods raise `KafkaException` if it does not answer, or the time given to `within` is over.

    Args:
        consumer: The group's consumer, used on its own thread.
    """

    def __init__(self, consumer: ck.Consumer) -> None:
        self._consumer = consumer
        self._deadline_s = 0.0

    def within(self, patience_s: float) -> None:
        """Limit the total time of all requests from now on."""
        self._deadline_s = time.monotonic() + patience_s

    def left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
        return left_s

    def committed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, ck.TopicPartition]:
        """The group's committed offsets, each with its metadata or its error."""
        asked = [ck.TopicPartition(*tp[:2]) for tp in tps]
        return dict(zip(tps, self._consumer.committed(asked, timeout=self.left_s()), strict=True))

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """All partitions of these topics, given as names and patterns."""
        known = self._consumer.list_topics(timeout=self.left_s()).topics
        ours = [name for name in known if any(is_meant(topic, name) for topic in topics)]
        return [TopicPartition(name, partition) for name in ours for partition in known[name].partitions]

    def nothing_committed(self, topics: Sequence[str]) -> bool:
        """Whether the group has committed no offset of these topics."""
        return all(committed.offset < 0 for committed in self.committed(self.partitions(topics)).values())

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, LogBounds | KafkaError]:
        """The bounds of these logs, or the error: a leader that is down affects only its own partitions."""
        bounds: dict[TopicPartition, LogBounds | KafkaError] = {}
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for tp, leader in self._leaders(tps).items():
            if leader < 0:
                bounds[tp] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "it has no leader")
            else:
                led[leader].append(tp)
        for number, these in enumerate(led.values()):
            try:
                share_s = self.left_s() / (len(led) - number) / 2
                low, high = (self._times(dict.fromkeys(these, time), share_s) for time in (_EARLIEST, _LATEST))
                bounds |= {tp: _bounds(low[tp], high[tp]) for tp in these}
            except KafkaException as error:
                bounds |= dict.fromkeys(these, error.args[0])
        return bounds

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        """The offset of the first message that is not older; None if there is none."""
        answer = self._times({tp: at_ms}, self.left_s())[tp]
        if answer.error is not None:
            raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else None

    def _leaders(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The leaders; requested first, because a partition without one would delay the answers about all others."""
        names = {tp.topic for tp in tps}
        single = {"topic": next(iter(names))} if len(names) == 1 else {}
        known = self._consumer.list_topics(timeout=self.left_s(), **single).topics
        leaders = {}
        for tp in tps:
            partition = known[tp.topic].partitions.get(tp.partition) if tp.topic in known else None
            leaders[tp] = partition.leader if partition is not None else -1
        return leaders

    def _times(self, wanted: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, ck.TopicPartition]:
        asked = [ck.TopicPartition(*tp[:2], time) for tp, time in wanted.items()]
        answers = self._consumer.offsets_for_times(asked, timeout=timeout_s)
        return {TopicPartition(answer.topic, answer.partition): answer for answer in answers}


def is_meant(topic: str, name: str) -> bool:
    """Whether a name or pattern of `source.kafka.topics` matches this topic."""
    return re.search(topic, name) is not None if topic.startswith("^") else topic == name


def _bounds(low: ck.TopicPartition, high: ck.TopicPartition) -> LogBounds | KafkaError:
    error = low.error or high.error
    if error is None and min(low.offset, high.offset) < 0:
        error = KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, "its leader does not tell the log's bounds")
    return error or LogBounds(low.offset, high.offset)
