"""Finds the present problems of a daemon, and their begin. Changes nothing; `ops.health` rates them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Generic, TypeVar

from sidecar.core.books import Books
from sidecar.core.delivery.delivery import A_COMMIT
from sidecar.core.pipeline.status import PipelineStatus, SpentSpan, UnusableIds
from sidecar.core.records import TopicPartition, group_label
from sidecar.daemon.record import OVERDUE_S, TOLD_S
from sidecar.daemon.status.chronicle import Chronicle
from sidecar.daemon.supervisor import Supervisor
from sidecar.ops.health import STOPPED, Problem, causes, first_of, problem
from sidecar.ops.snapshot import PartitionStatus, RetryingGroup
from sidecar.sources.base import POPPED, SESSION

LOOK_EVERY_S = 1.0
"""Interval of checks of everything that waits."""
FULL_S = 5.0
"""Time after which full memory is a problem; shorter times are how a slow receiver slows the source."""
GROUPS_SHOWN_MAX = 5

T = TypeVar("T", bound=Hashable)

_KIND_OF = {SESSION: "membership", POPPED: "popped"}
"""Kinds of a source's problems; the others are a broker's."""


class Lasting(Generic[T]):
    """Start times of conditions that hold without a pause."""

    def __init__(self) -> None:
        self._since_s: dict[T, float] = {}

    def look(self, present: Iterable[T], now_s: float) -> None:
        """Set the present conditions; all others end."""
        self._since_s = {key: self._since_s.get(key, now_s) for key in present}

    def longer_than(self, seconds: float, now_s: float) -> list[T]:
        """The conditions that have held for longer."""
        return [key for key, since_s in self._since_s.items() if now_s - since_s >= seconds]


def _spent(span: SpentSpan) -> Problem:
    if span.group is None:
        return problem("commit_slow", tp=span.tp)
    return problem("span", tp=span.tp, group=group_label(span.group), does="fails" if span.fails else "waits")


class Problems:
    """Checks a daemon periodically, on its main thread."""

    def __init__(self, supervisor: Supervisor, chronicle: Chronicle) -> None:
        self._supervisor = supervisor
        self._chronicle = chronicle
        self._stops = Lasting[str]()
        self._unread = Lasting[tuple[TopicPartition, int]]()
        self._waiting = Lasting[tuple[str | None, float]]()
        self._waits: dict[tuple[str | None, float], Counter[str]] = {}
        """By waiting group and time, how often each reason was seen."""
        self._look_at_s = 0.0
        self._odd, self._odd_at_s = 0, 0.0
        self._lettered, self._lettered_at_s, self._lettered_at = 0, 0.0, ""

    def find(
        self,
        now: PipelineStatus,
        partitions: Iterable[PartitionStatus],
        retrying: Iterable[RetryingGroup],
        now_s: float,
    ) -> list[Problem]:
        """All problems at this monotonic time."""
        supervisor = self._supervisor
        problems = list(supervisor.record.problems(now_s, storing_letters=now.storing_letters))
        problems += supervisor.ids.problems(now_s)
        problems += self._intake(now, now_s, told=supervisor.delays.problem)
        problems += supervisor.delays.problems()
        source = supervisor.source
        for key, text in source.problems().items():
            problems.append(problem(_KIND_OF.get(key, "broker"), source=source.name, reason=text))
        if unavailable := supervisor.ledger.problem:
            problems.append(problem("ledger", reason=unavailable))
        for group in list(retrying)[:GROUPS_SHOWN_MAX]:
            label = group_label(group.group)
            problems.append(problem("group", group=label, since=group.since, reason=group.reason))
        problems += map(_spent, now.spent)
        problems += self._dead_letters(now.totals, now_s)
        problems += self._odd_ids(now.unusable_ids, now_s)
        if now.all_filtered is not None:
            problems.append(problem("all_filtered", tags=now.all_filtered))
        # Waits that a known stop causes are not a further problem.
        stopped = any(found.state == STOPPED for found in problems)
        self._look(now, () if stopped else partitions, now_s, stopped=stopped)
        return causes([*problems, *self._stuck(now_s)])

    def _intake(self, now: PipelineStatus, now_s: float, told: str) -> list[Problem]:
        stops = now.stops
        self._stops.look(stops, now_s)
        lasting = self._stops.longer_than(FULL_S, now_s)
        worth = [word for word in stops if word != "memory" or word in lasting]
        self._chronicle.intake(stops, worth, now_s)
        return [problem(word, reason=stops[word]) for word in worth if stops[word] != told]

    def _dead_letters(self, totals: Books, now_s: float) -> Iterator[Problem]:
        if totals.dead_lettered > self._lettered:
            self._lettered_at_s, self._lettered_at = now_s, datetime.now(UTC).isoformat(timespec="seconds")
        self._lettered = totals.dead_lettered
        if self._lettered_at and now_s - self._lettered_at_s < TOLD_S:
            yield problem("dead_letters", last=self._lettered_at)

    def _odd_ids(self, odd: UnusableIds, now_s: float) -> Iterator[Problem]:
        if odd.last is None:
            return
        if odd.messages > self._odd:
            self._chronicle.ids_unusable(odd.last, odd.why, odd.messages - self._odd, now_s)
            self._odd, self._odd_at_s = odd.messages, now_s
        if now_s - self._odd_at_s < TOLD_S:
            yield problem("ids_unusable", topic=odd.last.topic, reason=odd.why)

    def _look(self, now: PipelineStatus, partitions: Iterable[PartitionStatus], now_s: float, *, stopped: bool) -> None:
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        waits = () if stopped else self._supervisor.pipeline.held_up(now_s * 1000)
        held_up = {(group, since_ms): what for what, group, since_ms in waits}
        self._waiting.look(held_up, now_s)
        self._waits = {key: self._waits.get(key, Counter()) + Counter([what]) for key, what in held_up.items()}
        self._unread.look(
            [
                (tp, partition.position)
                for partition in partitions
                if partition.lag is not None
                and partition.watermark + partition.lag > partition.position
                and (tp := TopicPartition(partition.topic, partition.partition, partition.broker)) not in now.paused
            ],
            now_s,
        )

    def _stuck(self, now_s: float) -> Iterator[Problem]:
        # Messages that have arrived in the client, behind those of other partitions, are not a problem of the broker.
        unread = self._unread.longer_than(OVERDUE_S, self._supervisor.record.emptied_s)
        if unread:
            yield problem("unread", tps=first_of([tp for tp, _ in unread]), seconds=OVERDUE_S)
        waiting = self._waiting.longer_than(OVERDUE_S, now_s)
        if waiting:
            group, _ = waiting[0]
            what = self._waits[waiting[0]].most_common(1)[0][0]
            kind = ("commit_slow", "waiting") if what == A_COMMIT else ("waiting",)
            name = "all groups of a partition" if group is None else f"group {group_label(group)}"
            yield problem(*kind, group=name, what=what, seconds=OVERDUE_S)
