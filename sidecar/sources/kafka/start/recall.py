"""Start of a partition whose commit may be older than the state folder, or whose log may have been replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException

from sidecar.core.lineage import Basis, Committed, Fingerprint, Recalled, recall
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.base import Tell
from sidecar.sources.kafka.start.memory import CommitMemory, Memories, RememberedState
from sidecar.sources.kafka.start.offsets import LogBounds
from sidecar.state.offset_map import Identity
from sidecar.state.rules import Rules

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
    """Decides between the broker's state and the folder's.

    Args:
        digest_at: Reads a message of the log again.
    """

    def __init__(self, memories: Memories, rules: Rules, digest_at: DigestAt, tell: Tell) -> None:
        self._memories = memories
        self._rules = rules
        self._digest_at = digest_at
        self._tell = tell
        self._short_since_s: dict[TopicPartition, float] = {}

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget since when the logs of these partitions have been too short."""
        for tp in tps:
            self._short_since_s.pop(tp, None)

    def remembers(self, tp: TopicPartition, known: Identity) -> RememberedState | None:
        """The folder's row of a partition, of any incarnation."""
        return self._memories.find(tp, known, self._rules.digest)

    def supersede(self, rows: Mapping[TopicPartition, CommitMemory]) -> None:
        """Replace the folder's rows by commits from which the partitions go on; returns when they are synced."""
        if rows:
            self._memories.supersede(rows)

    def recall(
        self, tp: TopicPartition, committed: Committed | None, known: Identity, bounds: LogBounds
    ) -> tuple[Recalled, RememberedState | None]:
        """The state to continue from, and the folder's row of its incarnation.

        Args:
            committed: The committed state, None if there is none.
            known: The identity in the commit, or in the folder's row if nothing is committed.

        Raises:
            KafkaException: The log seems to be too short, or cannot be read; retriable.
        """
        memory = self.remembers(tp, known)
        if memory is not None and memory.incarnation != known.incarnation:
            memory = None
        remembered = memory.state if memory is not None else None
        try:
            recalled = recall(
                committed,
                remembered,
                _CheckedLog(tp, *bounds, self._digest_at, self._confirm_end),
                is_outdated=self._memories.is_outdated(tp),
            )
        except UnavailableError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(error))) from error
        if recalled.fresh:
            self._tell_truncated(tp, recalled, bounds)
        elif committed is not None and remembered is not None and recalled.whose is Basis.UNKNOWN:
            self._tell_unknown(tp, committed, remembered.state)
        elif remembered is not None and recalled.compared and recalled.whose is not Basis.BROKER:
            self._tell_behind(tp, committed, remembered.state, recalled)
        return recalled, memory

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
            action = {"action": "going on from the state folder"}
            self._tell("commit.expired", "warning", {**tp.fields(), "offset": memory.watermark, **action})
            return
        fields = {**tp.fields(), "committed": committed.state.watermark, "remembered": memory.watermark}
        if recalled.agreed is not None and not recalled.settled_below:
            action = {
                "action": "the broker's commit is older than the state folder, another member went on from it, and "
                "may have read again what this one had held or parked: going on from the commit; messages may be "
                "delivered again"
            }
            self._tell("commit.behind", "error", fields | action)
            return
        if recalled.agreed is not None:
            action = {"action": "the broker's commit is older than the state folder: going on from the folder"}
            self._tell("commit.behind", "warning", fields | action)
            return
        action = {
            "action": "the broker's commit is older than the state folder, and no message by which to check the folder "
            "is in the log any more: going on from the commit; messages may be delivered again"
        }
        self._tell("commit.behind", "error", fields | action)

    def _tell_unknown(self, tp: TopicPartition, committed: Committed, memory: PartitionState) -> None:
        action = (
            "other owners have committed since, more than a commit names: going on from the commit, without the state "
            "folder"
        )
        fields = {"committed": committed.state.watermark, "remembered": memory.watermark, "action": action}
        self._tell("folder.outdated", "info", tp.fields() | fields)

    def _tell_truncated(self, tp: TopicPartition, recalled: Recalled, bounds: LogBounds) -> None:
        start = min(max(recalled.state.watermark, bounds.low), bounds.high)
        fields = {**tp.fields(), "log_start": bounds.low, "log_end": bounds.high, "offset": start}
        action = (
            "the log has lost messages that were read, and others may stand at their offsets: delivering from offset"
        )
        self._tell("partition.truncated", "error", fields | {"action": action})
