"""Partitions that the core does not have yet, and a daemon that remembers no ids. Imports nothing of ids.

`IdKeeper` is the same with ids, so the main loop never asks whether there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sidecar.core.effects import CommitItem
from sidecar.core.pipeline.commit_order import SettledIds
from sidecar.core.records import Run, TopicPartition
from sidecar.daemon.record import OVERDUE_S
from sidecar.ops.health import Problem, first_of
from sidecar.ops.snapshot import IdsStatus
from sidecar.runtime.worker import Worker
from sidecar.sources.base import Assignment, ReadPast
from sidecar.state.interface import NoStoredIds, PartitionSnapshot

EVERY_GENERATION = 1 << 62
MEMORY_BYTES = 64 << 20
Give: TypeAlias = "Callable[[TakenPartition], None]"


@dataclass(slots=True)
class TakenPartition:
    """An owned partition whose ids or held messages are being loaded."""

    assignment: Assignment
    known: PartitionSnapshot | None
    number: int
    since_s: float
    then: Give
    """Gives it to the core."""
    retry_at_s: float | None = None
    failed: str = ""
    """Why the last attempt failed."""
    come: list[Run | ReadPast] = field(default_factory=list)
    """Messages that were read meanwhile: by a poll or two, since the partition is paused."""


def overdue(loading: Mapping[TopicPartition, TakenPartition], now_s: float) -> str:
    """A text about the partitions that have waited for too long; empty if there is none."""
    late = [tp for tp, taken in loading.items() if now_s - taken.since_s >= OVERDUE_S]
    return f"{first_of(late)} is not read yet" if late else ""


class NoIdKeeper:
    """Messages have no ids that are compared here; only for the main thread."""

    def __init__(self, stored: NoStoredIds, writer: Worker) -> None:
        self._stored = stored
        self._writer = writer
        self.loading: dict[TopicPartition, TakenPartition] = {}
        """The partitions that the core does not have yet."""

    def close(self) -> None:
        """Stop sorting."""

    def take_partition(self, assignment: Assignment, known: PartitionSnapshot | None, then: Give) -> bool:  # noqa: ARG002
        """Take a partition; return whether the core may have it at once. Otherwise `then` gets it later."""
        if not assignment.resumed:  # ids of an earlier configuration would outlive an operator's reset
            self._writer.wait(lambda: self._stored.drop_before(assignment.tp, EVERY_GENERATION))
        return True

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""

    def tend(self, now_s: float) -> None:
        """Retry failed loads."""

    def problems(self, now_s: float) -> Iterator[Problem]:  # noqa: ARG002
        """Partitions that have waited too long."""
        return iter(())

    def count(self, settled: Iterable[CommitItem | SettledIds]) -> None:
        """Count the ids that a commit settles; once a partition has enough, have them sorted."""

    def write(self, segments: Sequence[SettledIds]) -> str:
        """Make ids durable; return the reason for a failure, otherwise an empty text. For the writer's thread."""
        raise NotImplementedError(segments)

    def status(self, now_s: float, unusable: int = 0) -> IdsStatus:  # noqa: ARG002
        """Number of remembered ids, and their memory."""
        return IdsStatus(unusable=unusable)
