"""State of each group's deliveries, and the number of outstanding batches of groups that do not fail. No clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

TAKEN_OVER = "parts were parked by an earlier process"
"""The reason of a group that counts as failing until a first part is tried."""


@dataclass(slots=True)
class _GroupState:
    """State of a group's deliveries."""

    name: str
    outstanding: int = 0
    """Batches that are cut and have not ended."""
    sending: int = 0
    failing_since_ms: float | None = None
    reason: str = ""
    attempts: int = 0
    next_try_ms: float = 0.0


class FailingGroup(NamedTuple):
    """A group whose last send failed; times are monotonic."""

    name: str
    attempts: int
    since_ms: float
    reason: str
    next_try_ms: float


class Groups(dict[str, _GroupState]):
    """The groups that have a batch outstanding, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.healthy = 0
        """Number of outstanding batches in groups that do not fail."""
        self.parked: Counter[str] = Counter()
        """Number of parked parts by group."""
        self.resting: dict[str, _GroupState] = {}
        """Failing groups all of whose parts are parked."""

    def begin_batch(self, name: str) -> None:
        """Add an outstanding batch."""
        group = self.get(name)
        if group is None:
            group = self[name] = self.resting.pop(name, _GroupState(name))
        group.outstanding += 1
        self.healthy += group.failing_since_ms is None

    def end_batch(self, name: str) -> None:
        """Remove an outstanding batch; a group without any is dropped."""
        group = self[name]
        group.outstanding -= 1
        self.healthy -= group.failing_since_ms is None
        if not group.outstanding:
            del self[name]
            if group.failing_since_ms is not None and self.parked[name]:
                self.resting[name] = group

    def park(self, name: str, count: int, now_ms: float | None = None) -> None:
        """Change the number of a group's parked parts.

        Args:
            now_ms: Monotonic time at which an earlier owner's parts are taken over: the group counts as failing.
        """
        self.parked[name] += count
        if not self.parked[name]:
            del self.parked[name]
            self.resting.pop(name, None)
        elif now_ms is not None and name not in self:
            self.resting.setdefault(name, _GroupState(name, failing_since_ms=now_ms, reason=TAKEN_OVER))

    def failed(self, name: str, now_ms: float) -> _GroupState:
        """Record a failed send."""
        group = self[name]
        if group.failing_since_ms is None:
            self.healthy -= group.outstanding
            group.failing_since_ms = now_ms
        return group

    def recovered(self, name: str) -> float | None:
        """Record a send that succeeded; return the time of the first failed send before it, None if there was none."""
        group = self[name]
        since_ms, group.failing_since_ms = group.failing_since_ms, None
        if since_ms is not None:
            self.healthy += group.outstanding
        return since_ms

    def all_failing(self) -> list[_GroupState]:
        return [group for group in (*self.values(), *self.resting.values()) if group.failing_since_ms is not None]

    def failures(self) -> list[FailingGroup]:
        """The groups whose last send failed."""
        return [
            FailingGroup(each.name, each.attempts, each.failing_since_ms or 0.0, each.reason, each.next_try_ms)
            for each in self.all_failing()
        ]

    def failing(self, name: str) -> bool:
        """Whether the last send of this group failed."""
        return self.failing_since_ms(name) is not None

    def failing_since_ms(self, name: str) -> float | None:
        """The time of the group's first failed send since its last successful one; None if it does not fail."""
        group = self.get(name) or self.resting.get(name)
        return None if group is None else group.failing_since_ms
