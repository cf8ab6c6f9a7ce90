"""Memory held by messages and parts, counted as they come and go."""

from __future__ import annotations

from sidecar.core.batching import held_bytes
from sidecar.core.parts import Part

PART_BYTES = 1_600
"""Memory of a part with its batch, intent, lane and group, without its rows; measured."""
ATTEMPT_BYTES = 250


def held_by(part: Part) -> int:
    """Memory that the part holds, in bytes."""
    return PART_BYTES + ATTEMPT_BYTES * len(part.life.history) + sum(map(held_bytes, part.fragments))


class Memory:
    """Bytes of messages that are read and not settled. Each hold is freed exactly once, so the count is 0 at rest."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes held now, without dead letters that are being stored."""
        return self._bytes

    def hold(self, count: int) -> None:
        """Add `count` bytes; a negative count subtracts."""
        self._bytes += count

    def free(self, count: int) -> None:
        """Subtract `count` bytes."""
        self._bytes -= count
