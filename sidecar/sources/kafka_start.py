"""Where an assigned partition goes on: what is committed, what the log still holds, what the state knows."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import confluent_kafka as ck

from sidecar.core.carried import Carried
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.offset_map import Decoded, Identity, Origin, decode

REQUEST_TIMEOUT_S = 10.0
TRUNCATION_PATIENCE_S = 2.0
"""A new leader may tell an old high watermark for a moment."""

Tell = Callable[[str, str, Mapping[str, object]], None]

_REASONS = {
    Origin.NONE: "the offset was set by an operator or another program",
    Origin.FOREIGN: "the metadata beside the offset is not ours",
    Origin.OTHER_RULES: "tags, groups, ids or format were changed in the configuration",
}


class Starts:
    """Decides starts.

    Args:
        consumer: The group's consumer, used on its own thread.
        cluster_id: The cluster, as it tells.
        group_id: The consumer group.
        topics: What it subscribes to, names and patterns.
        start: Of a new group: ``earliest``, ``latest`` or milliseconds since the epoch.
        rules: 4 bytes, a hash of what decides where a message goes.
        known: What the state file knows of a partition.
        tell: Writes a log event.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        cluster_id: str,
        group_id: str,
        topics: Sequence[str],
        start: str | int,
        rules: bytes,
        known: Callable[[TopicPartition], PartitionSnapshot | None],
        tell: Tell,
    ) -> None:
        self._consumer = consumer
        self._cluster_id = cluster_id
        self._group_id = group_id
        self._topics = topics
        self._start = start
        self._rules = rules
        self._known = known
        self._tell = tell
        self._topic_ids: dict[TopicPartition, str] = {}
        """Under which this process had a partition before."""

    def find(self, tps: Sequence[TopicPartition], topic_ids: Mapping[str, str]) -> list[Assignment]:
        """Where each of these partitions goes on.

        Raises:
            KafkaException: The broker did not answer.
        """
        asked = [ck.TopicPartition(tp.topic, tp.partition) for tp in tps]
        found = []
        for tp, at in zip(tps, self._consumer.committed(asked, timeout=REQUEST_TIMEOUT_S), strict=True):
            if at.error is not None:
                raise ck.KafkaException(at.error)
            topic_id = topic_ids.get(tp.topic, "")
            found.append(self._one(tp, at.offset, at.metadata, topic_id))
            self._topic_ids[tp] = topic_id
        return found

    def _recreated(self, tp: TopicPartition, topic_id: str) -> bool:
        snapshot = self._known(tp)
        before = self._topic_ids.get(tp) or (snapshot.topic_id if snapshot is not None else "")
        return bool(before and topic_id) and before != topic_id

    def _one(self, tp: TopicPartition, offset: int, metadata: str | None, topic_id: str) -> Assignment:
        low, high = self._bounds(tp)
        fields = {"topic": tp.topic, "partition": tp.partition, "committed": offset, "log_start": low, "log_end": high}
        recreated = self._recreated(tp, topic_id)
        if offset < 0 and not recreated:
            return self._without_commit(tp, topic_id, low, high)
        known = Identity(self._cluster_id, self._group_id, topic_id, 0)
        told = decode(metadata, offset, known, self._rules)
        if told.origin is Origin.OTHER_TOPIC or (recreated and told.origin is not Origin.OURS):
            self._tell("topic.recreated", "warning", fields | {"action": "reading the new topic from its start"})
            return self._fresh(tp, low, topic_id)
        if told.origin is not Origin.OURS or told.carried is None:
            self._tell("partition.reset", "warning", fields | {"reason": _REASONS[told.origin], "action": "new window"})
            return self._fresh(tp, self._within(tp, offset, low, high), topic_id)
        if told.carried.seen > high:
            high = self._patiently(tp, told.carried.seen)
        if told.carried.seen > high:
            self._tell("partition.truncated", "error", fields | {"seen": told.carried.seen})
            return self._fresh(tp, min(offset, high), topic_id)
        if low > offset:
            expired = low - offset
            self._tell(
                "offset.expired", "error", fields | {"expired": expired, "action": "going on at the log's start"}
            )
        return self._resumed(tp, told, topic_id, low)

    def _fresh(self, tp: TopicPartition, offset: int, topic_id: str, *, resumed: bool = False) -> Assignment:
        incarnation = secrets.randbits(64)
        scope = Identity(self._cluster_id, self._group_id, topic_id, incarnation).scope
        return Assignment(tp, scope, Carried(offset, offset), topic_id, incarnation, resumed, read_from=offset)

    def _resumed(self, tp: TopicPartition, told: Decoded, topic_id: str, low: int) -> Assignment:
        assert told.carried is not None
        scope = Identity(self._cluster_id, self._group_id, topic_id, told.incarnation).scope
        read_from = max(told.carried.watermark, low)
        return Assignment(tp, scope, told.carried, topic_id, told.incarnation, resumed=True, read_from=read_from)

    def _within(self, tp: TopicPartition, offset: int, low: int, high: int) -> int:
        if low <= offset <= high:
            return offset
        fields = {"topic": tp.topic, "partition": tp.partition, "committed": offset, "log_start": low, "log_end": high}
        self._tell("offset.expired" if offset < low else "partition.truncated", "error", fields)
        return min(max(offset, low), high)

    def _without_commit(self, tp: TopicPartition, topic_id: str, low: int, high: int) -> Assignment:
        snapshot = self._known(tp)
        if snapshot is not None and topic_id and snapshot.topic_id == topic_id:
            at = min(max(snapshot.watermark, low), high)
            fields = {"topic": tp.topic, "partition": tp.partition, "offset": at}
            self._tell("commit.expired", "warning", fields | {"action": "going on from the state folder"})
            return self._fresh(tp, at, topic_id, resumed=True)
        return self._fresh(tp, self._beginning(tp, low, high), topic_id)

    def _beginning(self, tp: TopicPartition, low: int, high: int) -> int:
        if self._start == "earliest" or not self._group_is_new():
            return low
        if self._start == "latest":
            return high
        return self._at_time(tp, int(self._start), high)

    def _group_is_new(self) -> bool:
        """Else the topic or the partition is new, and nothing of it may be skipped."""
        known = self._consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        wanted = [name for name in known if any(_matches(topic, name) for topic in self._topics)]
        asked = [ck.TopicPartition(name, partition) for name in wanted for partition in known[name].partitions]
        return all(at.offset < 0 for at in self._consumer.committed(asked, timeout=REQUEST_TIMEOUT_S))

    def _at_time(self, tp: TopicPartition, at_ms: int, high: int) -> int:
        asked = [ck.TopicPartition(tp.topic, tp.partition, at_ms)]
        (found,) = self._consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
        if found.error is not None:
            raise ck.KafkaException(found.error)
        return int(found.offset) if found.offset >= 0 else high

    def _bounds(self, tp: TopicPartition) -> tuple[int, int]:
        asked = ck.TopicPartition(tp.topic, tp.partition)
        bounds = self._consumer.get_watermark_offsets(asked, timeout=REQUEST_TIMEOUT_S, cached=False)
        if bounds is None:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, f"no bounds of {tp.topic}[{tp.partition}]"))
        return bounds

    def _patiently(self, tp: TopicPartition, seen: int) -> int:
        deadline = time.monotonic() + TRUNCATION_PATIENCE_S
        while True:
            high = self._bounds(tp)[1]
            if high >= seen or time.monotonic() > deadline:
                return high
            time.sleep(0.1)


def _matches(topic: str, name: str) -> bool:
    return re.search(topic, name) is not None if topic.startswith("^") else topic == name
