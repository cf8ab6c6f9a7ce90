"""Builds the snapshot of the daemon that status, health and metrics show. Changes nothing."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from sidecar import threads
from sidecar.core.books import Books
from sidecar.core.delivery.stages import Stage
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import TopicPartition, group_label
from sidecar.daemon.reload import ConfigReload
from sidecar.daemon.status.blocking import blocking
from sidecar.daemon.status.chronicle import Chronicle
from sidecar.daemon.status.problems import Problems
from sidecar.daemon.status.waiting import waiting
from sidecar.daemon.supervisor import Supervisor
from sidecar.errors import StateError
from sidecar.ops.health import Problem, in_order
from sidecar.ops.snapshot import (
    COMMIT_RESULTS,
    LEDGER_KINDS,
    RETRYING_MAX,
    Activity,
    LaneStatus,
    PartitionStatus,
    RetryingGroup,
    StatusSnapshot,
    Waiting,
)
from sidecar.runtime.build import known_groups
from sidecar.runtime.lane import refusal
from sidecar.runtime.ledger_worker import NoLedger
from sidecar.sinks.base import Maintains
from sidecar.state.interface import State
from sidecar.version import VERSION

LIVE_WITHIN_S = 30.0
_NO_TRANSACTIONS = dict.fromkeys(product(LEDGER_KINDS, COMMIT_RESULTS), 0)
WAITING_EVERY_S = 2.0
"""Interval at which all open groups are looked through."""
CLOSE_AFTER_S = 4.0
"""Time for which a revoked partition stays listed: a reload leaves no gap, and its last counts can be read."""


class StatusKeeper:
    """Keeps the latest snapshot: `refresh` on the main thread, `latest` from any.

    Args:
        supervisor: The supervisor of the daemon.
        budget_bytes: What held messages may take of `memory.budget`.
        reload: Has the settings in force.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        ledger: NoLedger,
        state: State,
        group_id: str,
        budget_bytes: int,
        reload: ConfigReload,
    ) -> None:
        self._supervisor = supervisor
        self._ledger = ledger
        self._state = state
        self._group_id = group_id
        self._budget_bytes = budget_bytes
        self._reload = reload
        self._chronicle = Chronicle()
        self._problems = Problems(supervisor, ledger, self._chronicle)
        self._started = datetime.now(UTC)
        self._dead_letters = 0
        self._went_s: dict[TopicPartition, float] = {}
        """The time at which each listed partition was first seen revoked, monotonic."""
        self._waiting, self._waiting_at_s = Waiting(), 0.0
        self._latest = self._build()

    def latest(self) -> StatusSnapshot:
        """The last snapshot; `live` and `reload` are those of now, so that a hanging loop is seen."""
        now_s = time.monotonic()
        late_s = now_s - self._supervisor.progressed_s
        if late_s < 0:  # the loop has not begun, so there is no refresh
            return replace(self._latest, problems=tuple(self._supervisor.record.problems(now_s, storing_letters=False)))
        if failure := threads.failure():
            problem = Problem("loop", f"{failure}: the process ends")
            return replace(self._latest, live=False, problems=(problem, *self._latest.problems))
        if late_s < LIVE_WITHIN_S:
            return replace(self._latest, reload=self._reload.status)
        problem = Problem("loop", f"the main loop has made no progress for {LIVE_WITHIN_S:.0f} s")
        return replace(self._latest, live=False, problems=(problem, *self._latest.problems))

    def refresh(self) -> None:
        """Take a new snapshot, and log a change of health."""
        self._latest = self._build()
        now_s = time.monotonic()
        self._chronicle.health(self._latest.problems, now_s)
        self._chronicle.outage(self._supervisor.pipeline.delivery, now_s)

    def _build(self) -> StatusSnapshot:
        pipeline, now_s = self._supervisor.pipeline, time.monotonic()
        self._close_books(pipeline, now_s)
        partitions = tuple(self._partition(pipeline, tp) for tp in sorted({tp.source for tp in pipeline.books}))
        books = (pipeline.books.closed, *pipeline.books.values())
        totals = Books(*map(sum, zip(*(account.counts() for account in books), strict=True)))
        retrying = self._retrying(pipeline)
        problems = self._problems.find(partitions, totals, retrying, now_s)
        lags = [partition.lag for partition in partitions if partition.lag is not None]
        delivery = pipeline.delivery
        return StatusSnapshot(
            group_id=self._group_id,
            started_at=self._started.isoformat(timespec="milliseconds"),
            version=VERSION,
            live=True,
            totals=totals,
            lag=sum(lags) if lags else None,
            partitions=partitions,
            intake_stopped=tuple(pipeline.gate.stops),
            problems=in_order(problems),
            held_bytes=pipeline.gate.held_bytes,
            budget_bytes=self._budget_bytes,
            ids=self._supervisor.ids.status(now_s),
            retries_waiting=delivery.outbox.count(Stage.WAITING),
            retrying=tuple(retrying),
            blocking=tuple(blocking(pipeline)),
            dead_letters=self._count_dead_letters(),
            delay=self._supervisor.delays.status(),
            lane=self._lane(),
            waiting=self._find_waiting(pipeline, now_s),
            activity=self._activity(pipeline),
        )

    def _lane(self) -> LaneStatus | None:
        source = self._supervisor.source
        reason = source.no_lane
        if reason is None:
            return None
        # A reload may bring what it does not do.
        if not reason and (refused := refusal(self._reload.settings)):
            reason = f"the fast lane does not do {refused}"
        return LaneStatus(not reason, reason, source.lane_bytes)

    def _find_waiting(self, pipeline: Pipeline, now_s: float) -> Waiting:
        if now_s >= self._waiting_at_s:
            self._waiting, self._waiting_at_s = waiting(pipeline.partitions), now_s + WAITING_EVERY_S
        return self._waiting

    def _close_books(self, pipeline: Pipeline, now_s: float) -> None:
        gone = pipeline.books.keys() - pipeline.partitions.keys()
        self._went_s = {tp: self._went_s.get(tp, now_s) for tp in gone}
        pipeline.books.close([tp for tp, went_s in self._went_s.items() if now_s >= went_s + CLOSE_AFTER_S])

    def _count_dead_letters(self) -> int:
        """Count dead letters; return the last count if the file cannot be read: status must not end the daemon."""
        with suppress(StateError):
            self._dead_letters = self._state.letters.count()
        return self._dead_letters

    def _partition(self, pipeline: Pipeline, tp: TopicPartition) -> PartitionStatus:
        counts, owned = pipeline.books.of(tp).counts(), pipeline.partitions.get(tp)
        if owned is None:
            return PartitionStatus.of(tp, counts)
        end, watermark = self._supervisor.source.end(tp), owned.watermark
        lag = max(0, end - watermark) if end is not None else None
        return PartitionStatus.of(tp, counts, watermark, owned.reach.position, lag)

    def _retrying(self, pipeline: Pipeline) -> list[RetryingGroup]:
        now_ms, now = time.monotonic() * 1000, datetime.now(UTC)
        failing = pipeline.delivery.outbox.groups.all_failing()

        def stamp(at_ms: float) -> str:
            return (now + timedelta(milliseconds=at_ms - now_ms)).isoformat(timespec="milliseconds")

        return [
            RetryingGroup(g.name, g.attempts, stamp(g.failing_since_ms or 0.0), g.reason, stamp(g.next_try_ms))
            for g in failing[:RETRYING_MAX]
        ]

    def _activity(self, pipeline: Pipeline) -> Activity:
        record, sink = self._supervisor.record, self._supervisor.senders.sink
        return Activity(
            batches=pipeline.delivery.outbox.ended.counts(),
            sends=pipeline.delivery.sends.counts(),
            cuts=dict(pipeline.cutter.cuts),
            groups=tuple(map(group_label, known_groups(self._reload.settings))),
            commits=dict(record.commits.counts),
            rebalances=dict(record.rebalances),
            snapshots=dict(record.snapshots),
            ledger={**_NO_TRANSACTIONS, **self._ledger.transactions} if self._ledger.is_there else {},
            twins_waiting=pipeline.delivery.claims.askings.waiting if pipeline.delivery.claims else 0,
            tags_refused=dict(pipeline.intake.refused),
            maintenance=dict(sink.maintained) if isinstance(sink, Maintains) else {},
            send_seconds=record.send_seconds.read(),
            commit_seconds=record.commits.seconds.read(),
            delivered=pipeline.delivery.delivered.read(),
        )


def status_line(now: StatusSnapshot) -> str:
    """The line that `systemctl status` shows: the books in short, and the health."""
    books, lag = now.totals, "unknown" if now.lag is None else f"{now.lag:,}"
    line = f"{books.consumed:,} consumed, {books.delivered:,} delivered, {books.in_flight:,} in flight, lag {lag}"
    return f"{line}; {now.health}"
