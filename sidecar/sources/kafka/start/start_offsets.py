"""Start offset of an assigned partition, from the commit, the log's bounds and the state folder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source.kafka import KafkaSource as KafkaSettings
from sidecar.core.lineage import TOKEN_BITS, Basis, Committed, Lineage, Recalled, inherited
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment, SettledWindow, Tell
from sidecar.sources.kafka.start.memory import CommitMemory, RememberedState
from sidecar.sources.kafka.start.offsets import LogBounds, Offsets
from sidecar.sources.kafka.start.recall import Recall
from sidecar.sources.kafka.topics import TopicIds
from sidecar.state.interface import PartitionSnapshot
from sidecar.state.offset_map import Identity, Origin, decode
from sidecar.state.rules import Rules

_REASONS = {
    Origin.NONE: "the offset was set by an operator or another program",
    Origin.FOREIGN: "the metadata beside the offset is not ours",
    Origin.OTHER_RULES: "tags, groups, ids or format were changed in the configuration",
}


class KafkaStarts(NamedTuple):
    """Start offsets of partitions, and for the others the reason why they are unknown."""

    assignments: list[Assignment]
    failed: dict[TopicPartition, KafkaError]


class KafkaStartOffsets:
    """Determines start offsets.

    Args:
        offsets: Queries offsets from the broker.
        cluster_id: The id that the cluster reports.
        known: Returns the state file's snapshot of a partition.
        recall: Decides between broker and state folder.
    """

    def __init__(
        self,
        offsets: Offsets,
        topic_ids: TopicIds,
        settings: KafkaSettings,
        cluster_id: str,
        rules: Rules,
        known: Callable[[TopicPartition], PartitionSnapshot | None],
        recall: Recall,
        tell: Tell,
    ) -> None:
        self._offsets = offsets
        self._ids = topic_ids
        self._settings = settings
        self._cluster_id = cluster_id
        self._rules = rules
        self._known = known
        self._recall = recall
        self._tell = tell
        self._topic_ids: dict[TopicPartition, str] = {}
        """Topic ids under which this process had partitions before."""
        self._of_new_group: set[TopicPartition] = set()
        """Partitions requested when nothing was committed: later commits of other partitions do not change that."""
        self._asked: Sequence[TopicPartition] = ()
        self._group_is_new: bool | None = None
        """Determined at most once per call of `find`."""
        self._superseding: dict[TopicPartition, CommitMemory] = {}
        """Commits that take the place of the folder's older rows, until the end of `find`."""

    def find(self, tps: Sequence[TopicPartition], patience_s: float) -> KafkaStarts:
        """Find the start offsets that the broker reports within this time; a broker that is down is no error."""
        self._offsets.within(patience_s)
        try:
            ids = self._ids.find({tp.topic for tp in tps}, self._offsets.left_s())
            committed, bounds = self._offsets.committed(tps), self._offsets.bounds(tps)
        except KafkaException as error:
            return KafkaStarts([], dict.fromkeys(tps, error.args[0]))
        result = KafkaStarts([], {})
        self._asked, self._group_is_new = tps, None
        for tp in tps:
            commit, between, topic_id = committed[tp], bounds[tp], ids.get(tp.topic, "")
            reason = topic_id if isinstance(topic_id, KafkaError) else commit.error
            if reason is not None:
                result.failed[tp] = reason
            elif isinstance(between, KafkaError):
                result.failed[tp] = between
            else:
                self._add(result, tp, commit.offset, commit.metadata, str(topic_id), between)
        self._recall.supersede(self._superseding)
        self._superseding = {}
        return result

    def identity(self, assignment: Assignment) -> Identity:
        """The identity that is committed with the partition's state."""
        return Identity(self._cluster_id, self._settings.group_id, assignment.topic_id, assignment.incarnation)

    def _add(
        self,
        result: KafkaStarts,
        tp: TopicPartition,
        offset: int,
        metadata: str | None,
        topic_id: str,
        bounds: LogBounds,
    ) -> None:
        try:
            result.assignments.append(self._one(tp, offset, metadata, topic_id, bounds))
        except KafkaException as error:
            result.failed[tp] = error.args[0]
            return
        self._topic_ids[tp] = topic_id
        self.forget([tp])

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop the notes of earlier failed attempts on these partitions."""
        self._of_new_group.difference_update(tps)
        self._recall.forget(tps)

    def _recreated(self, tp: TopicPartition, topic_id: str) -> bool:
        snapshot = self._known(tp)
        before = self._topic_ids.get(tp) or (snapshot.topic_id if snapshot is not None else "")
        return bool(before and topic_id) and before != topic_id

    def _one(
        self, tp: TopicPartition, offset: int, metadata: str | None, topic_id: str, bounds: LogBounds
    ) -> Assignment:
        low, high = bounds
        fields = {"topic": tp.topic, "partition": tp.partition, "committed": offset, "log_start": low, "log_end": high}
        recreated = self._recreated(tp, topic_id)
        if offset < 0 and not recreated:
            return self._without_commit(tp, topic_id, bounds)
        known = Identity(self._cluster_id, self._settings.group_id, topic_id, 0)
        decoded = decode(metadata, offset, known, self._rules.digest)
        if decoded.origin is Origin.OTHER_TOPIC or (recreated and decoded.origin is not Origin.OURS):
            self._tell("topic.recreated", "warning", fields | {"action": "reading the new topic from its start"})
            return self._fresh(tp, low, topic_id)
        if decoded.origin is not Origin.OURS or decoded.state is None:
            reason = _REASONS[decoded.origin]
            self._tell("partition.reset", "warning", fields | {"reason": reason, "action": "new window"})
            return self._fresh(tp, self._within(tp, offset, low, high), topic_id)
        committed = Committed(decoded.state, decoded.stamp, decoded.parent, decoded.ancestors)
        known = replace(known, incarnation=decoded.incarnation)
        recalled, memory = self._recall.recall(tp, committed, known, bounds)
        assignment = self._resumed(tp, known, committed, recalled, memory, bounds)
        if memory is not None and recalled.state is committed.state and memory.state.stamp != committed.stamp:
            self._superseding[tp] = CommitMemory.of(offset, metadata or "", topic_id, assignment.lineage)
        return assignment

    def _fresh(self, tp: TopicPartition, offset: int, topic_id: str, *, resumed: bool = False) -> Assignment:
        incarnation, lineage = secrets.randbits(64), Lineage(secrets.randbits(TOKEN_BITS))
        scope = Identity(self._cluster_id, self._settings.group_id, topic_id, incarnation).scope
        return Assignment(tp, scope, PartitionState(offset, offset), topic_id, incarnation, resumed, offset, lineage)

    def _resumed(
        self,
        tp: TopicPartition,
        before: Identity,
        committed: Committed | None,
        recalled: Recalled,
        memory: RememberedState | None,
        bounds: LogBounds,
    ) -> Assignment:
        state, below = recalled.state, recalled.settled_below
        identity = before
        if recalled.fresh:
            start = min(max(state.watermark, bounds.low), bounds.high)
            state, identity = PartitionState(start, start), replace(before, incarnation=secrets.randbits(64))
        elif bounds.low > state.watermark:
            self._tell_expired(tp, state.watermark, bounds)
        remembered = memory.state if memory is not None else None
        lineage = Lineage(
            secrets.randbits(TOKEN_BITS),
            committed.stamp if committed is not None else None,
            inherited(committed, remembered),
            tuple(mark for mark in remembered.fingerprints if mark.offset < below) if remembered is not None else (),
            durable=recalled.is_committed,
        )
        read_from, settled = max(state.watermark, bounds.low), SettledWindow(before.incarnation, below)
        return Assignment(
            tp, identity.scope, state, identity.topic_id, identity.incarnation, True, read_from, lineage, settled,  # noqa: FBT003
            is_remembered=recalled.whose is Basis.FOLDER and committed is not None,
        )  # fmt: skip

    def _tell_expired(self, tp: TopicPartition, offset: int, bounds: LogBounds) -> None:
        fields = tp.fields() | {"committed": offset, "log_start": bounds.low, "log_end": bounds.high}
        action = "going on at the log's start"
        self._tell("offset.expired", "error", fields | {"expired": bounds.low - offset, "action": action})

    def _within(self, tp: TopicPartition, offset: int, low: int, high: int) -> int:
        if offset < low:
            self._tell_expired(tp, offset, LogBounds(low, high))
        elif offset > high:
            fields = tp.fields() | {"committed": offset, "log_start": low, "log_end": high}
            self._tell("partition.truncated", "error", fields)
        return min(max(offset, low), high)

    def _without_commit(self, tp: TopicPartition, topic_id: str, bounds: LogBounds) -> Assignment:
        low, high = bounds
        known = Identity(self._cluster_id, self._settings.group_id, topic_id, 0)
        memory = self._recall.remembers(tp, known)
        if memory is not None:
            known = replace(known, incarnation=memory.incarnation)
            return self._resumed(tp, known, None, *self._recall.recall(tp, None, known, bounds), bounds)
        snapshot = self._known(tp)
        if snapshot is not None and topic_id and snapshot.topic_id == topic_id:  # from a version without memories
            start = min(max(snapshot.watermark, low), high)
            fields = {"topic": tp.topic, "partition": tp.partition, "offset": start}
            self._tell("commit.expired", "warning", fields | {"action": "going on from the state folder"})
            return self._fresh(tp, start, topic_id, resumed=True)
        return self._fresh(tp, self._beginning(tp, low, high), topic_id)

    def _beginning(self, tp: TopicPartition, low: int, high: int) -> int:
        start = self._settings.start
        if start == "earliest" or not self._in_new_group(tp):
            return low
        if start == "latest":
            return high
        offset = self._offsets.at_time(tp, int(start))
        return high if offset is None else offset

    def _in_new_group(self, tp: TopicPartition) -> bool:
        """Whether the group is new; else the topic or partition is new, and must be read from its first message."""
        if tp in self._of_new_group:
            return True
        if self._group_is_new is None:
            self._group_is_new = self._offsets.nothing_committed(self._settings.topics)
            self._of_new_group.update(self._asked if self._group_is_new else ())
        return self._group_is_new
