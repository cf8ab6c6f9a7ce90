"""Commits and reloads of partitions. At most one commit is outstanding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from sidecar.core.effects import Commit, CommitItem, Reload
from sidecar.core.intake.known import NoIdentities
from sidecar.core.partition.outstanding import BegunCommit
from sidecar.core.partition.partition import Ownership, Ownerships, Partition
from sidecar.core.pipeline.commit_order import SettledIds
from sidecar.core.records import TopicPartition

COMMIT_SPACING_MS = 20
"""Minimum time between the starts of two commits."""
DUE_SPACING_MS = 0.5
"""For each partition of a commit with due messages, `COMMIT_SPACING_MS` at most: each takes some CPU time."""
COMMIT_RETRY_MS = 100


class Commits:
    """Begins commits, and reports their ends to the partitions.

    A partition that was given up meanwhile is not committed, and gets no report of its commit's end: its successor
    continues from an older state, which must not be overtaken.

    Args:
        identities: Have windows, whose generations the journal distinguishes.
    """

    def __init__(self, owned: Ownerships, identities: NoIdentities) -> None:
        self.begun_ms = 0.0
        """When the last commit began."""
        self._owned = owned
        self._identities = identities
        self._dirty: dict[TopicPartition, float] = {}
        self._reloads: dict[TopicPartition, str] = {}
        self.outstanding: dict[TopicPartition, tuple[Partition, BegunCommit]] = {}
        """What the commit under way makes durable; empty if there is none."""
        self._next_at_ms = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is to be committed or read again, and no commit is under way."""
        return not (self._dirty or self.outstanding or self._reloads)

    def may_begin(self, now_ms: float) -> bool:
        """Whether a commit that is due may begin."""
        return not self.outstanding and now_ms >= self._next_at_ms

    def touch(self, tp: TopicPartition, due_ms: float) -> None:
        """Schedule a commit at `due_ms` for a partition whose state changed."""
        if due_ms < self._dirty.get(tp, inf):
            self._dirty[tp] = due_ms

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop a partition that is no longer owned."""
        self._reloads.pop(tp, None)
        self._dirty.pop(tp, None)

    def reload(self, tp: TopicPartition, reason: str) -> None:
        """Request that a forgotten partition be read again from its committed state."""
        self._reloads[tp] = reason

    def due(self, now_ms: float, *, hurry: bool) -> list[Reload | Commit]:
        """The reloads, and the commit that is due by now; `ended` must follow it.

        None during a commit, so that no older state overtakes the state read back. Reloads come before the next commit:
        otherwise they would wait for its end as well.

        Args:
            now_ms: Monotonic time.
            hurry: Whether the commit does not wait for its due time.
        """
        if self.outstanding:
            return []
        effects: list[Reload | Commit] = [Reload(tp, reason) for tp, reason in self._reloads.items()]
        self._reloads.clear()
        if not self._dirty or now_ms < self._next_at_ms or (min(self._dirty.values()) > now_ms and not hurry):
            return effects
        # The listener commits fenced partitions once more, when no part of them is being sent.
        items = self.begin_commit([tp for tp in self._dirty if tp not in self._owned.fenced])
        if not items:
            return effects
        spacing_ms = DUE_SPACING_MS * len(items) if any(item.tp.delayed for item in items) else COMMIT_SPACING_MS
        self.begun_ms = now_ms
        self._next_at_ms = now_ms + min(COMMIT_SPACING_MS, spacing_ms)
        return [*effects, Commit(items)]

    def begin_commit(self, tps: Iterable[TopicPartition]) -> list[CommitItem]:
        """Begin a commit of these partitions; `ended` must follow. Empty if nothing changed."""
        items = [item for tp in list(tps) if (item := self._begin(tp)) is not None]
        begun = {item.tp for item in items}
        unproven = [tp.source for tp in begun if tp.delayed and tp.source not in begun and self._is_shared(tp.source)]
        return items + [item for tp in unproven if (item := self._begin(tp, proves=True)) is not None]

    def _is_shared(self, tp: TopicPartition) -> bool:
        """Whether owners share the store of delayed messages: its states count only with a commit of the source."""
        return bool(self._owned[tp].holding.stores.epoch)

    def _begin(self, tp: TopicPartition, *, proves: bool = False) -> CommitItem | None:
        if tp.delayed and tp.source not in self._owned:  # it is about to be forgotten, too
            return None
        self._dirty.pop(tp, None)  # later changes touch it again
        partition = self._owned.get(tp)
        if partition is None:
            return None
        begun = partition.dues.begin_commit(partition.state(), partition.promises.intents, proves=proves)
        if begun is None:
            return None
        self.outstanding[tp] = partition, begun
        return CommitItem(
            tp, partition.scope, begun.state, self._identities.generation(tp) if begun.ids else 0, begun.ids or None,
            begun.marks, begun.stamp, begun.lineage, puts=partition.holding.busy,
        )  # fmt: skip

    def held_ids(self) -> Iterator[SettledIds]:
        """Remove and return the ids of messages that the store of delayed messages has, of all partitions.

        The outstanding commit may settle these messages, which were on the way to the store when it began.
        """
        for tp, partition in self._owned.items():
            if ids := partition.dues.take_held_ids():
                yield SettledIds(tp, partition.scope, self._identities.generation(tp), ids)

    def ended(self, results: Mapping[TopicPartition, bool], now_ms: float) -> None:
        """End the outstanding commit; partitions missing in `results` failed and are retried."""
        sent, self.outstanding = self.outstanding, {}
        for tp, (partition, begun) in sent.items():
            if partition.ownership is Ownership.LOST:
                continue
            if not results.get(tp):
                self.touch(tp, now_ms + COMMIT_RETRY_MS)
            elif partition.acknowledged(begun):
                self.touch(tp, now_ms)
