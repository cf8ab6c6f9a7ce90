"""The offsets up to which a partition was read and is durable. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass


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
