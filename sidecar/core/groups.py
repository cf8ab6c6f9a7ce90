"""State of each group's deliveries, and the number of outstanding batches of groups that do not fail. No clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupState:
    """State of a group's deliveries."""

    name: str
    outstanding: int = 0
    """Batches that are cut and have not ended."""
    sending: int = 0
    failing_since_ms: float | None = None
    reason: str = ""
    attempts: int = 0
    next_try_ms: float = 0.0


class Groups(dict[str, GroupState]):
    """The groups that have a batch outstanding, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.healthy = 0
        """Number of outstanding batches in groups that do not fail."""

    def begin(self, name: str) -> None:
        """Add an outstanding batch."""
        group = self.get(name)
        if group is None:
            group = self[name] = GroupState(name)
        group.outstanding += 1
        self.healthy += group.failing_since_ms is None

    def end(self, name: str) -> None:
        """Remove an outstanding batch; a group without any is dropped."""
        group = self[name]
        group.outstanding -= 1
        self.healthy -= group.failing_since_ms is None
        if not group.outstanding:
            del self[name]

    def failed(self, name: str, now_ms: float) -> GroupState:
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

    def failing(self, name: str) -> bool:
        """Whether the last send of this group failed."""
        group = self.get(name)
        return group is not None and group.failing_since_ms is not None
