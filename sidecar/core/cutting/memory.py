"""What messages and parts take of memory, counted as they come and go."""

from __future__ import annotations

from sidecar.core.batching import held_bytes
from sidecar.core.parts import Part

PART_BYTES = 1_600
"""Of a part with its batch, intent, lane and group, beside its rows; measured."""
ATTEMPT_BYTES = 250


def held_by(part: Part) -> int:
    """Bytes of memory the part holds."""
    return PART_BYTES + ATTEMPT_BYTES * len(part.life.history) + sum(map(held_bytes, part.fragments))


class Memory:
    """Bytes of what was read and is not settled: what is held is let go exactly once, so that 0 is left at rest."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """What is held now; dead letters on their way are not among it."""
        return self._bytes

    def hold(self, count: int) -> None:
        """So many bytes more; less, where it is below 0."""
        self._bytes += count

    def free(self, count: int) -> None:
        """So many bytes less."""
        self._bytes -= count
