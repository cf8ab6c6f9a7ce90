"""The daemon's status at one instant, and the counters for it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sidecar.core.books import BOOKS, LOOKS, Books, Counts, DeliveryCounts, Distribution, Histogram, OpenMessages
from sidecar.core.delivery.pace import PaceStatus
from sidecar.core.records import TopicPartition, Verdict, group_label
from sidecar.ops.health import Health, Problem, judge

CUT_REASONS = ("count", "bytes", "linger", "memory", "span", "groups", "handover", "shutdown")
BATCH_RESULTS = ("delivered", "partial", "dead_lettered", "split", "released", "duplicate")
SEND_VERDICTS = tuple(verdict.value for verdict in Verdict)
COMMIT_RESULTS = ("ok", "failed")
REBALANCE_KINDS = ("assigned", "revoked", "lost", "reloaded")
LEDGER_KINDS = ("claim", "settle", "prune")
STOP_REASONS = ("draining", "memory", "halted", "refused", "state_lost", "delay_full")
TAP_OUTCOMES = ("delivered", "filtered", "duplicate", "dead")
RETRYING_MAX = 20
SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class PartitionStatus(Books):
    """A partition and its books; `lag` is in messages, None while the broker has not reported its end."""

    topic: str = ""
    partition: int = 0
    watermark: int = 0
    position: int = 0
    lag: int | None = None
    broker: str = ""
    query: str = ""
    """The query that reads it; Spark only, where there may be several."""
    expired: int | None = None
    """Offsets that expired before they were read; None if nothing counts them, as without Spark."""

    @classmethod
    def of(
        cls, tp: TopicPartition, counts: Counts, watermark: int = 0, position: int = 0, lag: int | None = None
    ) -> Self:
        return cls(*counts, tp.topic, tp.partition, watermark, position, lag, tp.broker)

    def to_json(self) -> dict[str, Any]:
        """Has the place first, and the books after it."""
        row: dict[str, Any] = {**TopicPartition(self.topic, self.partition, self.broker).fields()}
        if self.query:
            row["query"] = self.query
        row |= {name: getattr(self, name) for name in ("watermark", "position", "lag")}
        row |= {name: getattr(self, name) for name in BOOKS}
        return row if self.expired is None else row | {"expired": self.expired}


@dataclass(frozen=True, slots=True)
class RetryingGroup:
    """A group that waits for its next attempt; times are ISO 8601 in UTC."""

    group: str
    attempts: int
    since: str
    reason: str
    next_try: str


@dataclass(frozen=True, slots=True)
class BlockingGroup:
    """A group with an unsettled message that holds a partition's watermark."""

    topic: str
    partition: int
    group: str
    broker: str = ""


@dataclass(frozen=True, slots=True)
class IdsStatus:
    """The remembered message ids of all partitions."""

    remembered: int = 0
    memory_bytes: int = 0
    """Bytes in memory, without those in files."""
    file_bytes: int = 0
    """Bytes in mapped files."""
    oldest_seconds: float = 0.0
    """Time since the first remembered id came."""
    rotations: int = 0
    """Generations forgotten since the start."""
    loading: int = 0
    """Partitions that are not read yet, because their ids are being loaded."""
    unusable: int = 0
    """Messages since the start whose id cannot be compared, and which count as having none."""


DUE_WITHIN = {
    "1h": "in this hour, or overdue",
    "6h": "in the next 6 hours",
    "1d": "in the next day",
    "7d": "in the next 7 days",
    "30d": "in the next 30 days",
    "later": "later",
}
"""Times until delayed messages are due, each without those before it, in hours of the clock."""


@dataclass(frozen=True, slots=True)
class DelayStatus:
    """The delayed messages that this daemon holds."""

    held: int
    next_due: str | None
    """Due time of the next message, ISO 8601 in UTC; the beginning of its hour while that is not loaded."""
    disk_bytes: int
    due: Mapping[str, int]
    """Number of messages by the keys of `DUE_WITHIN`."""
    read: int = 0
    """Due messages since the start whose content was read; for the others, the mask of tags was sufficient."""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Whether Kafka's messages are sorted in the fast lane."""

    used: bool
    reason: str
    """The reason why it is not used."""
    memory_bytes: int
    """The lane's own memory; the client's share of the budget includes it."""


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The last time that the configuration was read again; keys are dotted, as in the file."""

    at: str
    """ISO 8601 in UTC."""
    outcome: str
    """`applied`, `waiting` or `refused`."""
    reason: str = ""
    """The reason of a refusal, or why keys still wait."""
    changed: tuple[str, ...] = ()
    """Keys that apply."""
    waiting: tuple[str, ...] = ()
    """Keys that apply when nothing is open."""
    restart: tuple[str, ...] = ()
    """Keys that apply after a restart."""

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts since the start, for metrics; the keys are (group's label, result or verdict).

    No field has a default: mypy fails unless both the daemon and the pipeline on Spark set a new field.
    """

    groups: tuple[str, ...]
    """Labels of the groups that are known before the first message."""
    batches: Mapping[tuple[str, str], int]
    sends: Mapping[tuple[str, str], int]
    cuts: Mapping[str, int]
    commits: Mapping[str, int]
    rebalances: Mapping[str, int]
    snapshots: Mapping[str, int]
    ledger: Mapping[tuple[str, str], int]
    """Transactions by kind and result."""
    twins_waiting: int
    maintenance: Mapping[tuple[str, str], int]
    """Runs of a table's maintenance by operation and result; empty if there is none."""
    tags_refused: Mapping[str, int]
    """Messages that were filtered, by the step that refused their tags: see `LOOKS`."""
    send_seconds: Distribution
    commit_seconds: Distribution
    delivered: DeliveryCounts


NO_SECONDS = Histogram(SECONDS_BOUNDS).read()
NO_ACTIVITY = Activity((), {}, {}, {}, {}, {}, {}, {}, 0, {}, {}, NO_SECONDS, NO_SECONDS, DeliveryCounts())


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """One instant of the daemon.

    `intake_stopped` has one word per reason; `problems` are the present problems, the worst first: only they determine
    the health.
    """

    group_id: str
    started_at: str
    version: str
    live: bool
    totals: Books = field(default_factory=Books)
    lag: int | None = None
    partitions: tuple[PartitionStatus, ...] = ()
    intake_stopped: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    held_bytes: int = 0
    budget_bytes: int = 0
    ids: IdsStatus = IdsStatus()
    retries_waiting: int = 0
    retrying: tuple[RetryingGroup, ...] = ()
    blocking: tuple[BlockingGroup, ...] = ()
    dead_letters: int = 0
    delay: DelayStatus | None = None
    lane: LaneStatus | None = None
    pace: PaceStatus | None = None
    """None on Spark, where each task has its own."""
    reload: ReloadStatus | None = None
    waiting: OpenMessages = field(default_factory=OpenMessages)
    activity: Activity = NO_ACTIVITY

    @property
    def health(self) -> Health:
        return judge(self.problems)

    @property
    def ready(self) -> bool:
        """Whether `/readyz` answers 200."""
        return self.health.ready

    def to_json(self) -> dict[str, Any]:
        """The object of ``status --json``: counters are since `started_at`, `lag` is in messages or null."""
        return {
            "group_id": self.group_id,
            "started_at": self.started_at,
            "version": self.version,
            "health": self.health._asdict(),
            "live": self.live,
            "ready": self.ready,
            **{name: getattr(self.totals, name) for name in BOOKS},
            "lag": self.lag,
            "intake_stopped": list(self.intake_stopped),
            "problems": list(map(str, self.problems)),
            "held_bytes": self.held_bytes,
            "budget_bytes": self.budget_bytes,
            "ids": asdict(self.ids),
            "retries_waiting": self.retries_waiting,
            "retrying": [asdict(group) | {"group": group_label(group.group)} for group in self.retrying[:RETRYING_MAX]],
            "blocking": [
                {**TopicPartition(row.topic, row.partition, row.broker).fields(), "group": group_label(row.group)}
                for row in self.blocking
            ],
            "tags_refused": dict.fromkeys(LOOKS, 0) | dict(self.activity.tags_refused),
            "dead_letters_stored": self.dead_letters,
            "delay": asdict(self.delay) if self.delay is not None else None,
            "lane": asdict(self.lane) if self.lane is not None else None,
            "pace": self.pace._asdict() if self.pace is not None else None,
            "reload": self.reload.to_json() if self.reload is not None else None,
            "partitions": [partition.to_json() for partition in self.partitions],
        }
