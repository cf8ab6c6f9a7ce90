"""Where an assigned partition goes on: what is committed, what the log still holds, what the state knows."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source import KafkaSource as KafkaSettings
from sidecar.core.carried import Carried
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment, Tell
from sidecar.sources.kafka_offsets import Bounds, Offsets
from sidecar.sources.kafka_topics import TopicIds
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.offset_map import Decoded, Identity, Origin, decode

TRUNCATION_PATIENCE_S = 2.0
"""A new leader may tell an old high watermark for a moment."""


_REASONS = {
    Origin.NONE: "the offset was set by an operator or another program",
    Origin.FOREIGN: "the metadata beside the offset is not ours",
    Origin.OTHER_RULES: "tags, groups, ids or format were changed in the configuration",
}


class Found(NamedTuple):
    """Where partitions go on, and of the others why it could not be told."""

    starts: list[Assignment]
    failed: dict[TopicPartition, KafkaError]


class Starts:
    """Decides starts.

    Args:
        offsets: Asks the broker.
        topic_ids: Asks for ids of topics.
        settings: `source.kafka`.
        cluster_id: The cluster, as it tells.
        rules: 4 bytes, a hash of what decides where a message goes.
        known: What the state file knows of a partition.
        tell: Writes a log event.
    """

    def __init__(
        self,
        offsets: Offsets,
        topic_ids: TopicIds,
        settings: KafkaSettings,
        cluster_id: str,
        rules: bytes,
        known: Callable[[TopicPartition], PartitionSnapshot | None],
        tell: Tell,
    ) -> None:
        self._offsets = offsets
        self._ids = topic_ids
        self._settings = settings
        self._cluster_id = cluster_id
        self._rules = rules
        self._known = known
        self._tell = tell
        self._topic_ids: dict[TopicPartition, str] = {}
        """Under which this process had a partition before."""
        self._of_new_group: set[TopicPartition] = set()
        """Asked for when nothing was committed yet: what others of them commit meanwhile does not change that."""
        self._short_since_s: dict[TopicPartition, float] = {}
        self._asked: Sequence[TopicPartition] = ()
        self._group_is_new: bool | None = None
        """Asked at most once for all partitions of one question."""

    def find(self, tps: Sequence[TopicPartition], patience_s: float) -> Found:
        """Where each of these partitions goes on, as far as the broker tells it in that time; never raises for it."""
        self._offsets.within(patience_s)
        try:
            ids = self._ids.find({tp.topic for tp in tps}, self._offsets.left_s())
            committed, bounds = self._offsets.committed(tps), self._offsets.bounds(tps)
        except KafkaException as error:
            return Found([], dict.fromkeys(tps, error.args[0]))
        found = Found([], {})
        self._asked, self._group_is_new = tps, None
        for tp in tps:
            at, between, topic_id = committed[tp], bounds[tp], ids.get(tp.topic, "")
            reason = topic_id if isinstance(topic_id, KafkaError) else at.error
            if reason is not None:
                found.failed[tp] = reason
            elif isinstance(between, KafkaError):
                found.failed[tp] = between
            else:
                self._add(found, tp, at.offset, at.metadata, str(topic_id), between)
        return found

    def _add(
        self, found: Found, tp: TopicPartition, offset: int, metadata: str | None, topic_id: str, bounds: Bounds
    ) -> None:
        try:
            found.starts.append(self._one(tp, offset, metadata, topic_id, bounds))
        except KafkaException as error:
            found.failed[tp] = error.args[0]
            return
        self._topic_ids[tp] = topic_id
        self.forget([tp])

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """What was met while these were asked for in vain matters no more."""
        self._of_new_group.difference_update(tps)
        for tp in tps:
            self._short_since_s.pop(tp, None)

    def _recreated(self, tp: TopicPartition, topic_id: str) -> bool:
        snapshot = self._known(tp)
        before = self._topic_ids.get(tp) or (snapshot.topic_id if snapshot is not None else "")
        return bool(before and topic_id) and before != topic_id

    def _one(self, tp: TopicPartition, offset: int, metadata: str | None, topic_id: str, bounds: Bounds) -> Assignment:
        low, high = bounds
        fields = {"topic": tp.topic, "partition": tp.partition, "committed": offset, "log_start": low, "log_end": high}
        recreated = self._recreated(tp, topic_id)
        if offset < 0 and not recreated:
            return self._without_commit(tp, topic_id, low, high)
        known = Identity(self._cluster_id, self._settings.group_id, topic_id, 0)
        told = decode(metadata, offset, known, self._rules)
        if told.origin is Origin.OTHER_TOPIC or (recreated and told.origin is not Origin.OURS):
            self._tell("topic.recreated", "warning", fields | {"action": "reading the new topic from its start"})
            return self._fresh(tp, low, topic_id)
        if told.origin is not Origin.OURS or told.carried is None:
            self._tell("partition.reset", "warning", fields | {"reason": _REASONS[told.origin], "action": "new window"})
            return self._fresh(tp, self._within(tp, offset, low, high), topic_id)
        if told.carried.seen > high:
            self._be_sure(tp, told.carried.seen, high)
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
        scope = Identity(self._cluster_id, self._settings.group_id, topic_id, incarnation).scope
        return Assignment(tp, scope, Carried(offset, offset), topic_id, incarnation, resumed, read_from=offset)

    def _resumed(self, tp: TopicPartition, told: Decoded, topic_id: str, low: int) -> Assignment:
        assert told.carried is not None
        scope = Identity(self._cluster_id, self._settings.group_id, topic_id, told.incarnation).scope
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
        start = self._settings.start
        if start == "earliest" or not self._in_new_group(tp):
            return low
        if start == "latest":
            return high
        at = self._offsets.at_time(tp, int(start))
        return high if at is None else at

    def _in_new_group(self, tp: TopicPartition) -> bool:
        """Else the topic or the partition is new, and nothing of it may be skipped."""
        if tp in self._of_new_group:
            return True
        if self._group_is_new is None:
            self._group_is_new = self._offsets.nothing_committed(self._settings.topics)
            self._of_new_group.update(self._asked if self._group_is_new else ())
        return self._group_is_new

    def _be_sure(self, tp: TopicPartition, seen: int, high: int) -> None:
        """Asked again for 2 s, before a log counts as truncated."""
        since_s = self._short_since_s.setdefault(tp, time.monotonic())
        if time.monotonic() - since_s < TRUNCATION_PATIENCE_S:
            text = f"the log ends at {high}, {seen} was read before"
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, text))
