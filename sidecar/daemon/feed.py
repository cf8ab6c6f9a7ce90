"""Passes partitions and messages from the source to the core: a partition once its message ids are loaded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import inf

import structlog

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon.delays.absent import NoDelays
from sidecar.daemon.snapshots import Snapshots
from sidecar.daemon.taken import NoIdKeeper, TakenPartition
from sidecar.sources.base import Assignment, ReadPast, Remembers, SettledWindow, Source
from sidecar.state.interface import Damage, PartitionSnapshot

log = structlog.get_logger()

BUSY_POLL_S, DUE_POLL_S = 0.005, 0.001


class Feed:
    """Passes partitions and messages from the source to the core; only for the main thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        ids: NoIdKeeper,
        snapshots: Snapshots,
        delays: NoDelays,
        *,
        has_ledger: bool,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._ids = ids
        self._snapshots = snapshots
        self._delays = delays
        self._takeovers = delays.takeovers
        self._has_ledger = has_ledger
        self._paused: frozenset[TopicPartition] = frozenset()
        """Partitions that the core wants paused."""

    def take_partitions(self, assignments: Sequence[Assignment]) -> None:
        """Take assigned partitions: the core gets them at once, or when their ids are loaded."""
        known = self._snapshots.load() if assignments else {}
        pairs = [(assignment, known.get(assignment.tp)) for assignment in assignments]
        self._begin([pair for pair in pairs if self._ids.take_partition(*pair, self._loaded)])
        if self._loading:
            self._pause()

    def _loaded(self, taken: TakenPartition) -> None:
        self._begin([(taken.assignment, taken.known)])
        self._go_on(taken)

    def _restored(self, taken: TakenPartition) -> None:
        self._give([(taken.assignment, taken.known)])

    def _go_on(self, taken: TakenPartition) -> None:
        self._pause()
        for item in taken.come:
            self._read(item)

    def _begin(self, assignments: Iterable[tuple[Assignment, PartitionSnapshot | None]]) -> None:
        self._give([each for each in assignments if self._takeovers.begin_takeover(*each, self._restored) is None])

    def _give(self, assignments: Iterable[tuple[Assignment, PartitionSnapshot | None]]) -> None:
        is_stale = False
        for assignment, known in assignments:
            self._snapshots.assignments[assignment.tp] = assignment
            self._paused -= {assignment.tp}
            self._pipeline.assign(assignment.tp, assignment.scope, assignment.state, assignment.lineage)
            is_stale |= self._load_positions(assignment, known)
            self._delays.owned.take_partition(assignment)
        if is_stale:
            self._snapshots.now()

    def _load_positions(self, assignment: Assignment, known: PartitionSnapshot | None) -> bool:
        """Load the offsets settled by an earlier process; above the watermark a ledger knows them.

        Returns:
            Whether the folder's window must be written again before the next commit: its incarnation ends here, or a
            part of it is not trusted.
        """
        settled = SettledWindow(assignment.incarnation, assignment.state.watermark)
        if assignment.settled is not None and not self._has_ledger:
            settled = assignment.settled
        same = known is not None and (known.topic_id, known.incarnation) == (assignment.topic_id, settled.incarnation)
        is_distrusted = False
        if known is not None and same and assignment.resumed:
            try:
                is_distrusted = self._pipeline.load_settled(assignment.tp, known.bitmaps, settled.below)
            except ValueError as error:  # as it was written, and of another form
                where = f"{known.tp.topic}:{known.tp.queue}"
                log.error("state.damaged", **Damage("partition", where, str(error), "dropped")._asdict())
                is_distrusted = True
        return is_distrusted or settled.incarnation != assignment.incarnation

    def flow(self, paused: frozenset[TopicPartition]) -> None:
        """Read from all partitions that the core has, except these."""
        self._paused = frozenset(tp for tp in paused if not tp.delayed)
        self._pause()

    def _pause(self) -> None:
        loading = self._loading
        self._source.pause(self._paused | loading | self._pipeline.copies_of(loading))

    def poll(self) -> None:
        """Pass new messages to the core, and those that are due; calls the source's listener meanwhile."""
        for taken in self._takeovers.proved():
            self._go_on(taken)
        for tp, reason in self._takeovers.stale().items():
            log.warning("partition.reloaded", **tp.fields(), reason=reason)
            if tp in self._takeovers.outdated and isinstance(self._source, Remembers):
                self._source.distrust(tp)
            self._source.reload(tp)
        due_s = self._delays.poll(time.monotonic() * 1000, time.time_ns() // 1_000_000)
        # Not 0: a due message that cannot be read must not make the loop spin.
        patience_s = min(self._patience_s(), max(DUE_POLL_S, due_s))
        for item in self._source.poll(patience_s):
            self._read(item)

    @property
    def is_loading(self) -> bool:
        """Whether there are partitions that the core does not have yet, or may not read."""
        return bool(self._loading)

    @property
    def _loading(self) -> frozenset[TopicPartition]:
        """The partitions that the core does not have yet, or may not read."""
        return frozenset(self._ids.loading) | frozenset(self._takeovers.loading)

    def _read(self, item: Run | ReadPast) -> None:
        waiting = self._ids.loading.get(item.tp) or self._takeovers.loading.get(item.tp)
        if waiting is not None:
            waiting.come.append(item)
        elif isinstance(item, Run):
            self._pipeline.read(item, time.monotonic() * 1000)
        else:
            self._pipeline.read_past(item.tp, item.position, time.monotonic() * 1000)

    def _patience_s(self) -> float:
        patience_s = self._pipeline.patience_ms(time.monotonic() * 1000) / 1000
        if self._takeovers.is_adopting:
            return min(BUSY_POLL_S, max(DUE_POLL_S, patience_s))
        return self._source.idle_poll_s if patience_s == inf else max(DUE_POLL_S, patience_s)
