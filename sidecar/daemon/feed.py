"""Gives the core what the source has: a partition once its message ids are there, and then what was read of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Run
from sidecar.daemon.ids import IdKeeper, IdsSorted
from sidecar.daemon.snapshots import Snapshots
from sidecar.sources.base import Assignment, ReadPast, Settled, Source
from sidecar.state.interface import PartitionSnapshot

BUSY_POLL_S, OPEN_POLL_S = 0.005, 0.02


class Feed:
    """Between source and core; only for the main thread.

    Args:
        pipeline: The core.
        source: Where messages come from.
        ids: Restores message ids.
        snapshots: Have what was settled in an earlier life.
        has_ledger: Whether a ledger tells what is settled above the watermark.
    """

    def __init__(
        self, pipeline: Pipeline, source: Source, ids: IdKeeper, snapshots: Snapshots, *, has_ledger: bool
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._ids = ids
        self._snapshots = snapshots
        self._has_ledger = has_ledger

    def take(self, found: Sequence[Assignment]) -> None:
        """These partitions are ours: the core has them at once, or when their ids are there."""
        known = self._snapshots.load() if found else {}
        self._begin([(one, known.get(one.tp)) for one in found if self._ids.take(one, known.get(one.tp))])
        if self._ids.loading:
            self.pause()

    def sorted(self, told: IdsSorted) -> None:
        """The ids of a partition are there, or could not be had."""
        if (taken := self._ids.sorted(told)) is not None:
            self._begin([(taken.one, taken.known)])
            self.pause()
            for found in taken.come:
                self._read(found)

    def _begin(self, found: Iterable[tuple[Assignment, PartitionSnapshot | None]]) -> None:
        is_stale = False
        for one, known in found:
            self._snapshots.assignments[one.tp] = one
            self._pipeline.assign(one.tp, one.scope, one.state, one.lineage)
            is_stale |= self._load_positions(one, known)
        if is_stale:
            self._snapshots.now()

    def _load_positions(self, one: Assignment, known: PartitionSnapshot | None) -> bool:
        """What was settled in an earlier life is seen already; above the watermark a ledger tells it.

        Returns:
            Whether the folder's window must be written anew before anything is committed: it is of an incarnation that
            ends here, or some of it is not to be trusted.
        """
        settled = Settled(one.incarnation, one.state.watermark)
        if one.settled is not None and not self._has_ledger:
            settled = one.settled
        same = known is not None and (known.topic_id, known.incarnation) == (one.topic_id, settled.incarnation)
        is_distrusted = False
        if known is not None and same and one.resumed:
            partition = self._pipeline.partitions[one.tp]
            is_distrusted = self._pipeline.intake.positions.load(partition, known.bitmaps, settled.below)
        return is_distrusted or settled.incarnation != one.incarnation

    def pause(self) -> None:
        """Read on only from partitions that the core has, and wants more of."""
        loading = self._ids.loading.keys()
        self._source.pause(self._pipeline.gate.paused | loading | self._pipeline.origins.copies_of(loading))

    def poll(self) -> None:
        """Give the core what has come; serves the source's listener meanwhile."""
        for found in self._source.poll(self._patience_s()):
            self._read(found)

    def _read(self, found: Run | ReadPast) -> None:
        if found.tp in self._ids.loading:
            self._ids.loading[found.tp].come.append(found)
        elif isinstance(found, Run):
            self._pipeline.read(found, time.monotonic() * 1000)
        else:
            self._pipeline.read_past(found.tp, found.position, time.monotonic() * 1000)

    def _patience_s(self) -> float:
        if self._pipeline.delivery.outbox.groups or self._pipeline.commits.outstanding:
            return BUSY_POLL_S
        return self._source.idle_poll_s if self._pipeline.idle else OPEN_POLL_S
