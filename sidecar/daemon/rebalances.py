"""Handles the source's events: partitions come and go, commits end. Waits for disk and answers within a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition
from sidecar.daemon.committer import Committer
from sidecar.daemon.delays.absent import NoDelays
from sidecar.daemon.feed import Feed
from sidecar.daemon.record import LoopRecord
from sidecar.daemon.snapshots import Snapshots
from sidecar.daemon.taken import NoIdKeeper
from sidecar.sources.base import Assignment

REVOKE_DRAIN_S = 3.0
"""Longest time that a rebalance waits for answers of batches that are being sent; the session lasts 9 s."""

log = structlog.get_logger()


class RebalanceListener:
    """A `sources.base.Listener`; only for the main thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        record: LoopRecord,
        committer: Committer,
        ids: NoIdKeeper,
        feed: Feed,
        snapshots: Snapshots,
        take_inbox: Callable[[float], None],
        delays: NoDelays,
    ) -> None:
        self._pipeline = pipeline
        self._record = record
        self._committer = committer
        self._ids = ids
        self._feed = feed
        self._snapshots = snapshots
        self._take_inbox = take_inbox
        self._delays = delays
        self._reloading: set[TopicPartition] = set()

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self._record.assigned()
        here = {assignment.tp for assignment in assignments}
        if not here or here - self._reloading:
            self._record.rebalances["assigned"] += 1
        self._reloading -= here
        for assignment in assignments:
            if not assignment.resumed:
                self._committer.start_over(assignment.tp)
        self._delays.assigned(assignments)
        self._feed.take_partitions(assignments)
        names = [f"{assignment.tp}@{assignment.state.watermark}" for assignment in assignments]
        log.info("partitions.assigned", partitions=names[:50], count=len(names))

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """Stop reading these partitions, which will all be revoked soon, and settle the messages that were read."""
        self._pipeline.leave(tps)
        return self._pipeline.has_settled(tps)

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        self._record.rebalances["revoked"] += 1
        self._reloading.clear()
        both = self._delays.owned.with_stores(tps)
        self._pipeline.fence(both)
        deadline_s = time.monotonic() + REVOKE_DRAIN_S
        while self._pipeline.is_sending(both) and time.monotonic() < deadline_s:
            self._take_inbox(0.05)
        self._committer.now(both, self._take_inbox)
        self._forget(tps, "partitions.revoked")

    def lost(self, tps: Collection[TopicPartition]) -> None:
        self._record.rebalances["lost"] += 1
        self._reloading.clear()
        self._forget(tps, "partitions.lost")

    def reloading(self, tp: TopicPartition) -> None:
        self._record.rebalances["reloaded"] += 1
        self._reloading.add(tp)
        self._forget([tp], "partitions.lost")

    def settle(self) -> None:
        """Commit and snapshot settled messages before the process ends."""
        self._committer.now(list(self._pipeline.owned), self._take_inbox)
        self._snapshots.now()

    def _forget(self, tps: Collection[TopicPartition], event: str) -> None:
        released = self._pipeline.in_flight(tps)
        both = self._delays.owned.with_stores(tps)
        self._pipeline.forget_partitions(both)
        self._ids.forget_partitions(tps)
        self._committer.forget_partitions(both)
        self._delays.forget_partitions(tps)
        for tp in tps:
            self._snapshots.assignments.pop(tp, None)
        log.info(event, partitions=[str(tp) for tp in tps][:50], count=len(tps), released=released)

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        self._committer.committed(results, elapsed_s)

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        if name == "commit.failed":
            self._record.commits.failed(str(fields["reason"]), fields)
        else:
            getattr(log, level)(name, **fields)

    def waiting(self, what: str) -> None:
        self._record.waits_for = what
