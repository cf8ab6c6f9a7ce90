"""Start offset of an assigned partition, from the commit, the log's bounds and the state folder."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple, Self, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from sidecar import threads
from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.json_text import loads
from sidecar.core.lineage import (
    TOKEN_BITS,
    Basis,
    Committed,
    Fingerprint,
    Lineage,
    Recalled,
    Remembered,
    inherited,
    recall,
)
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import SidecarError, UnavailableError
from sidecar.sources.base import Assignment, SettledWindow, Tell
from sidecar.sources.kafka.offsets import LogBounds, Offsets
from sidecar.sources.kafka.topics import TopicIds
from sidecar.state.interface import PartitionSnapshot, ProgressKey, Rules, State
from sidecar.state.offset_map import Identity, Origin, decode

TRUNCATION_PATIENCE_S = 2.0
"""A new leader may report an old high watermark for a moment."""

DigestAt = Callable[[TopicPartition, int], int | None]
"""The digest of the message at an offset, None if it is gone; raises `UnavailableError`."""


class _CheckedLog(NamedTuple):
    """`lineage.Log` of a partition."""

    tp: TopicPartition
    low: int
    high: int
    digest_at: DigestAt
    confirm: Callable[[TopicPartition, int, int], None]

    def has(self, mark: Fingerprint) -> bool | None:
        digest = self.digest_at(self.tp, mark.offset)
        return None if digest is None else digest == mark.digest

    def confirm_end(self, seen: int) -> None:
        self.confirm(self.tp, seen, self.high)


class Recall:
    """Decides between the broker's state and the folder's."""

    def __init__(self, memories: Memories, rules: Rules, digest_at: DigestAt, tell: Tell) -> None:
        self.memories = memories
        self._rules = rules
        self._digest_at = digest_at
        self._tell = tell
        self._short_since_s: dict[TopicPartition, float] = {}

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Forget the times since when the logs of these partitions have been too short."""
        for tp in tps:
            self._short_since_s.pop(tp, None)

    def recall(
        self, tp: TopicPartition, committed: Committed | None, known: Identity, bounds: LogBounds
    ) -> tuple[Recalled, Remembered | None]:
        """The state to continue from, and the folder's row of its incarnation.

        Args:
            committed: The committed state, None if there is none.
            known: The identity in the commit, or in the folder's row if nothing is committed.

        Raises:
            KafkaException: The log seems to be too short, or cannot be read; retriable.
        """
        incarnation, remembered = self.memories.find(tp, known, self._rules.digest) or (0, None)
        if incarnation != known.incarnation:
            remembered = None
        log = _CheckedLog(tp, *bounds, self._digest_at, self._confirm_end)
        try:
            recalled = recall(committed, remembered, log, is_outdated=self.memories.is_outdated(tp))
        except UnavailableError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(error))) from error
        if recalled.fresh:
            self._tell_truncated(tp, recalled, bounds)
        elif committed is not None and remembered is not None and recalled.whose is Basis.UNKNOWN:
            self._tell_unknown(tp, committed, remembered.state)
        elif remembered is not None and recalled.compared and recalled.whose is not Basis.BROKER:
            self._tell_behind(tp, committed, remembered.state, recalled)
        return recalled, remembered

    def _confirm_end(self, tp: TopicPartition, seen: int, high: int) -> None:
        """Raise for 2 s, so that the end is requested again, before a log counts as truncated."""
        since_s = self._short_since_s.setdefault(tp, time.monotonic())
        if time.monotonic() - since_s < TRUNCATION_PATIENCE_S:
            text = f"the log ends at {high}, {seen} was read before"
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, text))

    def _tell_behind(
        self, tp: TopicPartition, committed: Committed | None, memory: PartitionState, recalled: Recalled
    ) -> None:
        if committed is None:
            expired, known = "commit.expired", {**tp.fields(), "offset": recalled.state.watermark}
            if recalled.whose is Basis.FOLDER:
                self._tell(expired, "warning", known | {"action": "going on from the state folder"})
            else:
                later = (
                    "another member went on since the state folder's newest commit, and may have removed parked parts"
                )
                again = "reading from the log's start; messages may be delivered again"
                self._tell(expired, "error", known | {"action": f"{later}: {again}"})
            return
        older, level = "the broker's commit is older than the state folder", "error"
        again = "going on from the commit; messages may be delivered again"
        if recalled.agreed is None:
            action = f"{older}, and the log no longer has a message by which to check the folder: {again}"
        elif recalled.settled_below:
            level, action = "warning", f"{older}: going on from the folder"
        else:
            read_again = "may have read again what this one had held or parked"
            action = f"{older}, another member went on from it, and {read_again}: {again}"
        fields = {"committed": committed.state.watermark, "remembered": memory.watermark, "action": action}
        self._tell("commit.behind", level, tp.fields() | fields)

    def _tell_unknown(self, tp: TopicPartition, committed: Committed, memory: PartitionState) -> None:
        since = "other owners have committed since, more than a commit names"
        action = f"{since}: going on from the commit, without the state folder"
        fields = {"committed": committed.state.watermark, "remembered": memory.watermark, "action": action}
        self._tell("folder.outdated", "info", tp.fields() | fields)

    def _tell_truncated(self, tp: TopicPartition, recalled: Recalled, bounds: LogBounds) -> None:
        start = min(max(recalled.state.watermark, bounds.low), bounds.high)
        fields = {**tp.fields(), "log_start": bounds.low, "log_end": bounds.high, "offset": start}
        lost = "the log has lost messages that were read, and others may stand at their offsets"
        action = f"{lost}: delivering from offset"
        self._tell("partition.truncated", "error", fields | {"action": action})


class CommitMemory(NamedTuple):
    """The kept row of a partition.

    Args:
        topic_id: The topic's id, empty if the broker has none.
        ancestors: See `Lineage`; pairs of token and number.
        fingerprints: See `Lineage`; pairs of offset and digest.
    """

    watermark: int
    text: str
    topic_id: str
    ancestors: list[tuple[int, int]]
    fingerprints: list[Fingerprint]

    @classmethod
    def of(cls, watermark: int, text: str, topic_id: str, lineage: Lineage) -> Self:
        return cls(watermark, text, topic_id, list(lineage.ancestors.items()), list(lineage.fingerprints))

    @classmethod
    def load(cls, text: str) -> Self | None:
        """Parse a row from text; None if it is invalid."""
        try:
            watermark, metadata, topic_id, ancestors, fingerprints = loads(text)
            marks = [Fingerprint(int(offset), int(digest)) for offset, digest in fingerprints]
            return cls(int(watermark), str(metadata), str(topic_id), [(int(a), int(b)) for a, b in ancestors], marks)
        except (ValueError, TypeError, OverflowError):  # the last for a number that is infinite
            return None


class Memories:
    """Keeps the newest row of each partition."""

    def __init__(self, state: State, tell: Tell) -> None:
        self._state = state
        self._tell = tell
        loaded = {key.tp: CommitMemory.load(text) for key, text in state.load_progress().items()}
        self._known = {tp: memory for tp, memory in loaded.items() if memory is not None}
        self._outdated: set[TopicPartition] = set()
        self._lock = threading.Lock()
        self._unsaved: dict[TopicPartition, CommitMemory] = {}
        self._disk = threads.Pool("memory")
        self._failing = False

    def find(self, tp: TopicPartition, known: Identity, rules: bytes) -> tuple[int, Remembered] | None:
        """Incarnation and state of the row that applies: of the same group, topic and rules; None if there is none."""
        memory = self._known.get(tp)
        if memory is None or memory.topic_id != known.topic_id:
            return None
        decoded = decode(memory.text, memory.watermark, known, rules)
        if decoded.state is None or decoded.stamp is None:
            return None
        state = Remembered(decoded.state, decoded.stamp, dict(memory.ancestors), tuple(memory.fingerprints))
        return decoded.incarnation, state

    def distrust(self, tp: TopicPartition) -> None:
        self._outdated.add(tp)

    def is_outdated(self, tp: TopicPartition) -> bool:
        return tp in self._outdated

    def keep(self, rows: Mapping[TopicPartition, CommitMemory]) -> None:
        """Keep the rows of an acknowledged commit; further rows may come while they are written."""
        if not self._take(rows):  # a write under way has already taken its rows, and a later commit may never come
            threads.watch(self._disk.submit(self._write), "memory")

    def supersede(self, rows: Mapping[TopicPartition, CommitMemory]) -> None:
        """Keep the rows of other members' commits, synced: the stores may then forget messages that these void."""
        self._take(rows)
        self._disk.submit(self._write, durable=True).result()

    def _take(self, rows: Mapping[TopicPartition, CommitMemory]) -> bool:
        """Take rows to be written; return whether a write that will include them was already requested."""
        self._known.update(rows)
        self._outdated.difference_update(rows)
        with self._lock:
            is_asked_for = bool(self._unsaved)
            self._unsaved.update(rows)
        return is_asked_for

    def _write(self, *, durable: bool = False) -> None:
        """Write on a separate thread. If it fails, the partition's next commit repairs that."""
        with self._lock:
            rows, self._unsaved = self._unsaved, {}
        try:
            texts = {ProgressKey.of(tp): json.dumps(memory) for tp, memory in rows.items()}
            self._state.save_progress(texts, durable=durable)
        except SidecarError as error:
            self._tell("memory.not_saved", "warning", {"reason": str(error)})
            self._failing = True
        else:
            if self._failing:
                self._tell("memory.saved", "info", {})
            self._failing = False

    def close(self) -> None:
        self._disk.shutdown()


_REASONS = {
    Origin.NONE: "the offset was set by an operator or another program",
    Origin.FOREIGN: "the metadata beside the offset is not ours",
    Origin.OTHER_RULES: "tags, groups, ids or format were changed in the configuration",
}


KafkaStarts: TypeAlias = tuple[list[Assignment], dict[TopicPartition, KafkaError]]
"""Start offsets of partitions, and for the others the reason why they are unknown."""


class KafkaStartOffsets:
    """Determines start offsets."""

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
        """Partitions that were requested when the group had no commit; later commits of others change nothing."""
        self._is_new: Callable[[], bool] = bool
        """Whether the group has no commit; the broker is asked once in a `find`."""
        self._superseding: dict[TopicPartition, CommitMemory] = {}
        """Commits that take the place of the folder's older rows, until the end of `find`."""

    def find(self, tps: Sequence[TopicPartition], patience_s: float) -> KafkaStarts:
        """Find the start offsets that the broker reports within this time; a broker that is down is not an error."""
        self._offsets.within(patience_s)
        try:
            ids = self._ids.find({tp.topic for tp in tps}, self._offsets.left_s())
            committed, bounds = self._offsets.committed(tps), self._offsets.bounds(tps)
        except KafkaException as error:
            return [], dict.fromkeys(tps, error.args[0])
        assignments: list[Assignment] = []
        failed: dict[TopicPartition, KafkaError] = {}
        self._is_new = cache(partial(self._note_if_new, tps))
        for tp in tps:
            commit, between, topic_id = committed[tp], bounds[tp], ids.get(tp.topic, "")
            reason = topic_id if isinstance(topic_id, KafkaError) else commit.error
            if reason is not None:
                failed[tp] = reason
            elif isinstance(between, KafkaError):
                failed[tp] = between
            else:
                try:
                    assignments.append(self._one(tp, commit.offset, commit.metadata, str(topic_id), between))
                    self._topic_ids[tp] = str(topic_id)
                    self.forget_partitions([tp])
                except KafkaException as error:
                    failed[tp] = error.args[0]
        if self._superseding:
            self._recall.memories.supersede(self._superseding)
        self._superseding = {}
        return assignments, failed

    def identity(self, assignment: Assignment) -> Identity:
        return Identity(self._cluster_id, self._settings.group_id, assignment.topic_id, assignment.incarnation)

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop the notes of earlier failed attempts on these partitions."""
        self._of_new_group.difference_update(tps)
        self._recall.forget_partitions(tps)

    def _recreated(self, tp: TopicPartition, topic_id: str) -> bool:
        snapshot = self._known(tp)
        before = self._topic_ids.get(tp) or (snapshot.topic_id if snapshot is not None else "")
        return bool(before and topic_id) and before != topic_id

    def _one(
        self, tp: TopicPartition, offset: int, metadata: str | None, topic_id: str, bounds: LogBounds
    ) -> Assignment:
        low, high = bounds
        fields = tp.fields() | {"committed": offset, "log_start": low, "log_end": high}
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
        recalled, remembered = self._recall.recall(tp, committed, known, bounds)
        assignment = self._resumed(tp, known, committed, recalled, remembered, bounds)
        if remembered is not None and recalled.state is committed.state and remembered.stamp != committed.stamp:
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
        remembered: Remembered | None,
        bounds: LogBounds,
    ) -> Assignment:
        state, below = recalled.state, recalled.settled_below
        identity = before
        if recalled.fresh:
            start = min(max(state.watermark, bounds.low), bounds.high)
            state, identity = PartitionState(start, start), replace(before, incarnation=secrets.randbits(64))
        elif bounds.low > state.watermark:
            self._tell_expired(tp, state.watermark, bounds)
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
            is_remembered=recalled.whose is Basis.FOLDER,
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
        if (memory := self._recall.memories.find(tp, known, self._rules.digest)) is not None:
            known = replace(known, incarnation=memory[0])
            return self._resumed(tp, known, None, *self._recall.recall(tp, None, known, bounds), bounds)
        snapshot = self._known(tp)
        if snapshot is not None and topic_id and snapshot.topic_id == topic_id:  # the memory is of other rules
            start = min(max(snapshot.watermark, low), high)
            fields = tp.fields() | {"offset": start, "action": "going on from the state folder"}
            self._tell("commit.expired", "warning", fields)
            return self._fresh(tp, start, topic_id, resumed=True)
        return self._fresh(tp, self._beginning(tp, low, high), topic_id)

    def _is_of_new_group(self, tp: TopicPartition) -> bool:
        """Whether the group is new; else the topic or partition is new, and must be read from its first message."""
        return tp in self._of_new_group or self._is_new()

    def _note_if_new(self, tps: Sequence[TopicPartition]) -> bool:
        is_new = self._offsets.nothing_committed(self._settings.topics)
        self._of_new_group.update(tps if is_new else ())
        return is_new

    def _beginning(self, tp: TopicPartition, low: int, high: int) -> int:
        start = self._settings.start
        if start == "earliest" or not self._is_of_new_group(tp):
            return low
        if start == "latest":
            return high
        offset = self._offsets.at_time(tp, int(start))
        return high if offset is None else offset
