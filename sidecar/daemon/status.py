"""What the daemon tells of itself: builds the snapshot that status, health and metrics show. Changes nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sidecar.core.books import BOOKS, Books
from sidecar.core.pipeline import Pipeline
from sidecar.core.progress import Partition
from sidecar.core.records import TopicPartition, group_label
from sidecar.daemon.supervisor import Supervisor
from sidecar.ops.snapshot import (
    RETRYING_MAX,
    Activity,
    BlockingGroup,
    PartitionStatus,
    RetryingGroup,
    StatusSnapshot,
)
from sidecar.state.interface import State
from sidecar.version import version

LIVE_WITHIN_S = 30.0
WIDE_SPAN = 10_000
"""Offsets between watermark and position from which on a partition names the group that holds it."""


class StatusKeeper:
    """Keeps the latest snapshot: `refresh` on the main thread, `latest` from any.

    Args:
        supervisor: Whose state is told.
        state: Counts the dead letters.
        group_id: The consumer group.
        budget_bytes: `memory.budget`.
    """

    def __init__(self, supervisor: Supervisor, state: State, group_id: str, budget_bytes: int) -> None:
        self._supervisor = supervisor
        self._state = state
        self._group_id = group_id
        self._budget_bytes = budget_bytes
        self._started = datetime.now(UTC)
        self._latest = self._build()

    def latest(self) -> StatusSnapshot:
        """The last snapshot; `live` is judged now, so that a loop that hangs is seen."""
        late_s = time.monotonic() - self._supervisor.progressed_s
        if late_s < LIVE_WITHIN_S:
            return self._latest
        problem = f"the main loop has made no progress for {late_s:.0f} s: restart the daemon, and report it"
        return replace(self._latest, live=False, problems=(problem, *self._latest.problems))

    def refresh(self) -> None:
        """Take a new snapshot."""
        self._latest = self._build()

    def _build(self) -> StatusSnapshot:
        pipeline = self._supervisor.pipeline
        partitions = tuple(self._partition(pipeline, tp) for tp in sorted(pipeline.books))
        totals = Books()
        for books in pipeline.books.values():
            totals += books
        lags = [one.lag for one in partitions if one.lag is not None]
        delivery = pipeline.delivery
        return StatusSnapshot(
            group_id=self._group_id,
            started_at=self._started.isoformat(timespec="milliseconds"),
            version=version(),
            live=True,
            ready=self._ready(pipeline),
            totals=totals,
            lag=sum(lags) if lags else None,
            partitions=partitions,
            intake_stopped=tuple(pipeline.stops),
            problems=tuple(self._problems(pipeline)),
            held_bytes=delivery.held_bytes,
            budget_bytes=self._budget_bytes,
            retries_waiting=delivery.waiting,
            retrying=tuple(self._retrying(pipeline)),
            blocking=tuple(_blocking(pipeline)),
            dead_letters=self._state.count_dead_letters(),
            activity=self._activity(pipeline),
        )

    def _ready(self, pipeline: Pipeline) -> bool:
        able = self._supervisor.ledger is None or not self._supervisor.ledger.problem
        return self._supervisor.assigned_once and not pipeline.draining and not pipeline.delivery.halted and able

    def _partition(self, pipeline: Pipeline, tp: TopicPartition) -> PartitionStatus:
        books, owned = pipeline.books[tp], pipeline.partitions.get(tp)
        status = PartitionStatus(**{name: getattr(books, name) for name in BOOKS}, **tp.fields())
        if owned is None:
            return status
        end = self._supervisor.source.end(tp)
        lag = max(0, end - owned.watermark) if end is not None else None
        return replace(status, watermark=owned.watermark, position=owned.position, lag=lag)

    def _retrying(self, pipeline: Pipeline) -> list[RetryingGroup]:
        now_ms, now = time.monotonic() * 1000, datetime.now(UTC)
        failing = [group for group in pipeline.delivery.groups.values() if group.failing_since_ms is not None]

        def stamp(at_ms: float) -> str:
            return (now + timedelta(milliseconds=at_ms - now_ms)).isoformat(timespec="milliseconds")

        return [
            RetryingGroup(g.name, g.attempts, stamp(g.failing_since_ms or 0.0), g.reason, stamp(g.next_try_ms))
            for g in failing[:RETRYING_MAX]
        ]

    def _problems(self, pipeline: Pipeline) -> list[str]:
        source = self._supervisor.source
        found = [f"nothing is read: {reason}" for reason in pipeline.stops.values()]
        found += [f"{source.name}: {text}" for text in source.problems().values()]
        if self._supervisor.ledger is not None and self._supervisor.ledger.problem:
            found.append(f"nothing is sent: the ledger cannot be used: {self._supervisor.ledger.problem}")
        for group in self._retrying(pipeline)[:5]:
            found.append(f"group {group_label(group.group)} fails since {group.since}: {group.reason}")
        for tp in sorted(pipeline.paused if not pipeline.stops else ()):
            found.append(f"{tp} waits: its oldest unsettled message is batch.span_max behind")
        return found

    def _activity(self, pipeline: Pipeline) -> Activity:
        supervisor = self._supervisor
        return Activity(
            batches=pipeline.delivery.batches.counts(),
            sends=pipeline.delivery.sends.counts(),
            cuts=dict(pipeline.cuts),
            commits=dict(supervisor.commits),
            rebalances=dict(supervisor.rebalances),
            snapshots=dict(supervisor.snapshots),
            ledger=dict(supervisor.ledger.transactions) if supervisor.ledger else {},
            twins_waiting=pipeline.delivery.claims.waiting if pipeline.delivery.claims else 0,
            send_seconds=supervisor.send_seconds.timings(),
            commit_seconds=supervisor.commit_seconds.timings(),
        )


def status_line(now: StatusSnapshot) -> str:
    """What `systemctl status` shows: the books in short, and what is wrong."""
    books, lag = now.totals, "unknown" if now.lag is None else f"{now.lag:,}"
    line = f"{books.consumed:,} consumed, {books.delivered:,} delivered, {books.in_flight:,} in flight, lag {lag}"
    return "; ".join([line, *now.problems[:1]])


def _blocking(pipeline: Pipeline) -> list[BlockingGroup]:
    """For each partition with a wide span, the group that holds its watermark."""
    found = []
    for tp, partition in sorted(pipeline.partitions.items()):
        group = _holder(partition) if partition.span > WIDE_SPAN else None
        if group is not None:
            found.append(BlockingGroup(**tp.fields(), group=group))
    return found


def _holder(partition: Partition) -> str | None:
    firsts = [(lane.live[0].first, lane.group) for lane in partition.lanes.values() if lane.live]
    return min(firsts)[1] if firsts else None
