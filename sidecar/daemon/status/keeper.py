"""Builds the snapshot of the daemon that status, health and metrics show. Changes nothing."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from sidecar import threads
from sidecar.core.books import OpenMessages
from sidecar.core.pipeline.status import PartitionCounts, PipelineStatus
from sidecar.core.records import group_label
from sidecar.daemon.reload import ConfigReload
from sidecar.daemon.status.chronicle import Chronicle
from sidecar.daemon.status.problems import Problems
from sidecar.daemon.supervisor import Supervisor
from sidecar.errors import StateError
from sidecar.ops.health import Problem, in_order, problem
from sidecar.ops.snapshot import (
    COMMIT_RESULTS,
    LEDGER_KINDS,
    RETRYING_MAX,
    Activity,
    BlockingGroup,
    LaneStatus,
    PartitionStatus,
    RetryingGroup,
    StatusSnapshot,
)
from sidecar.runtime.build import known_groups
from sidecar.runtime.lane import refusal
from sidecar.sinks.base import Maintains
from sidecar.state.interface import State
from sidecar.version import VERSION

LIVE_WITHIN_S = 30.0
_NO_TRANSACTIONS = dict.fromkeys(product(LEDGER_KINDS, COMMIT_RESULTS), 0)
WAITING_EVERY_S = 2.0
"""Interval at which all open groups are examined."""


class StatusKeeper:
    """Keeps the latest snapshot: `refresh` on the main thread, `latest` from any."""

    def __init__(
        self, supervisor: Supervisor, state: State, group_id: str, budget_bytes: int, reload: ConfigReload
    ) -> None:
        self._supervisor = supervisor
        self._state = state
        self._group_id = group_id
        self._budget_bytes = budget_bytes
        self._reload = reload
        self._chronicle = Chronicle()
        self._problems = Problems(supervisor, self._chronicle)
        self._started = datetime.now(UTC)
        self._dead_letters = 0
        self._waiting, self._waiting_at_s = OpenMessages(), 0.0
        now_s = time.monotonic()
        self._latest = self._build(self._look(now_s), now_s)

    def latest(self) -> StatusSnapshot:
        """The last snapshot; `live` and `reload` are those of now, so that a hanging loop is seen."""
        now_s = time.monotonic()
        late_s = now_s - self._supervisor.record.progressed_s
        if late_s < 0:  # the loop has not begun, so there is no refresh
            return replace(self._latest, problems=tuple(self._supervisor.record.problems(now_s, storing_letters=False)))
        if failure := threads.failure():
            return self._hangs(problem("loop", "thread", reason=failure))
        if late_s < LIVE_WITHIN_S:
            return replace(self._latest, reload=self._reload.status)
        return self._hangs(problem("loop", seconds=LIVE_WITHIN_S))

    def _hangs(self, why: Problem) -> StatusSnapshot:
        return replace(self._latest, live=False, problems=(why, *self._latest.problems))

    def refresh(self) -> None:
        now_s = time.monotonic()
        now = self._look(now_s)
        self._latest = self._build(now, now_s)
        self._chronicle.health(self._latest.problems, now_s)
        self._chronicle.outage(now, now_s)

    def _look(self, now_s: float) -> PipelineStatus:
        self._supervisor.pipeline.close_books(now_s * 1000)
        return self._supervisor.pipeline.status()

    def _build(self, now: PipelineStatus, now_s: float) -> StatusSnapshot:
        partitions = tuple(map(self._partition, now.partitions))
        retrying = _retrying(now, now_s)
        problems = self._problems.find(now, partitions, retrying, now_s)
        lags = [partition.lag for partition in partitions if partition.lag is not None]
        return StatusSnapshot(
            group_id=self._group_id,
            started_at=self._started.isoformat(timespec="milliseconds"),
            version=VERSION,
            live=True,
            totals=now.totals,
            lag=sum(lags) if lags else None,
            partitions=partitions,
            intake_stopped=tuple(now.stops),
            problems=in_order(problems),
            held_bytes=now.held_bytes,
            budget_bytes=self._budget_bytes,
            ids=self._supervisor.ids.status(now_s, now.unusable_ids.messages),
            retries_waiting=now.retries_waiting,
            retrying=tuple(retrying),
            blocking=tuple(BlockingGroup(tp.topic, tp.partition, group, tp.broker) for tp, group in now.blocking),
            dead_letters=self._count_dead_letters(),
            delay=self._supervisor.delays.status(),
            lane=self._lane(),
            pace=now.pace,
            waiting=self._find_waiting(now_s),
            activity=self._activity(now),
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

    def _find_waiting(self, now_s: float) -> OpenMessages:
        if now_s >= self._waiting_at_s:
            self._waiting, self._waiting_at_s = self._supervisor.pipeline.open_messages(), now_s + WAITING_EVERY_S
        return self._waiting

    def _count_dead_letters(self) -> int:
        """Count dead letters; return the last count if the file cannot be read: status must not end the daemon."""
        with suppress(StateError):
            self._dead_letters = self._state.letters.count()
        return self._dead_letters

    def _partition(self, now: PartitionCounts) -> PartitionStatus:
        if now.watermark is None or now.position is None:
            return PartitionStatus.of(now.tp, now.counts)
        end = self._supervisor.source.end_of(now.tp)
        lag = max(0, end - now.watermark) if end is not None else None
        return PartitionStatus.of(now.tp, now.counts, now.watermark, now.position, lag)

    def _activity(self, now: PipelineStatus) -> Activity:
        record, sink = self._supervisor.record, self._supervisor.senders.sink
        ledger = self._supervisor.ledger
        return Activity(
            batches=now.batches,
            sends=now.sends,
            cuts=now.cuts,
            groups=tuple(map(group_label, known_groups(self._reload.settings))),
            commits=dict(record.commits.counts),
            rebalances=dict(record.rebalances),
            snapshots=dict(record.snapshots),
            ledger={**_NO_TRANSACTIONS, **ledger.transactions} if ledger.is_there else {},
            twins_waiting=now.twins_waiting,
            tags_refused=now.tags_refused,
            maintenance=dict(sink.maintained) if isinstance(sink, Maintains) else {},
            send_seconds=record.send_seconds.read(),
            commit_seconds=record.commits.seconds.read(),
            delivered=now.delivered,
        )


def _retrying(now: PipelineStatus, now_s: float) -> list[RetryingGroup]:
    wall = datetime.now(UTC)

    def stamp(at_ms: float) -> str:
        return (wall + timedelta(milliseconds=at_ms - now_s * 1000)).isoformat(timespec="milliseconds")

    return [
        RetryingGroup(each.name, each.attempts, stamp(each.since_ms), each.reason, stamp(each.next_try_ms))
        for each in now.failing[:RETRYING_MAX]
    ]


def status_line(now: StatusSnapshot) -> str:
    """The line that `systemctl status` shows: the books in short, and the health."""
    books, lag = now.totals, "unknown" if now.lag is None else f"{now.lag:,}"
    line = f"{books.consumed:,} consumed, {books.delivered:,} delivered, {books.in_flight:,} in flight, lag {lag}"
    return f"{line}; {now.health}"
