"""The offsets up to which a partition was read and is durable. Numbers only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reach:
    """Offsets of one ownership: `committed` is never above `position`, and `position` never above `seen`."""

    position: int
    """The next offset to read."""
    seen: int
    """The next offset that no owner ever read."""
    committed: int
    """The durable watermark."""

    @property
    def replaying(self) -> bool:
        """Whether messages that an earlier owner had read are being read again."""
        return self.position < self.seen

    @property
    def span(self) -> int:
        """Number of offsets between the durable watermark and the position."""
        return self.position - self.committed

    def commit(self, watermark: int) -> None:
        """Record that a commit of this watermark succeeded."""
        self.committed = watermark

    def advance(self, position: int) -> None:
        """Record that all offsets below `position` were read; it never goes back."""
        self.position = max(self.position, position)
        self.seen = max(self.seen, self.position)

    def took(self, last: int, count: int) -> None:
        """Record that `count` messages up to the offset `last` were read."""


@dataclass(slots=True)
class CountedReach(Reach):
    """The same for positions of delayed messages, a million for each millisecond: their span is counted in messages."""

    _taken: deque[tuple[int, int]] = field(default_factory=deque)
    """Last position and number of messages of what was read at or above the durable watermark."""
    _count: int = 0

    @property
    def span(self) -> int:
        """Number of messages between the durable watermark and the position."""
        return self._count

    def took(self, last: int, count: int) -> None:
        """Record that `count` messages up to the position `last` were read."""
        self._taken.append((last, count))
        self._count += count

    def commit(self, watermark: int) -> None:
        """Record that a commit of this watermark succeeded."""
        self.committed = watermark
        while self._taken and self._taken[0][0] < watermark:
            self._count -= self._taken.popleft()[1]
