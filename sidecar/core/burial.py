"""Dead letters on their way to the store. Knows no batch and no retry of sends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sidecar.core.effects import Store
from sidecar.core.records import DeadLetter, Part

STORE_RETRY_MS = 1_000
LETTER_BYTES = 300
"""Of a dead letter beside its row; an estimate."""


class _Burial(NamedTuple):
    part: Part
    letters: list[DeadLetter]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory beside those of the part."""
        return sum([LETTER_BYTES + len(one.row or b"") for one in self.letters])


class Burials:
    """What is being stored, and what is to be tried again.

    Args:
        alive: Whether a part still belongs to a partition that is ours.
    """

    def __init__(self, alive: Callable[[Part], object]) -> None:
        self._alive = alive
        self.held_bytes = 0
        """Bytes of memory that the letters hold beside their parts."""
        self._pending: dict[int, _Burial] = {}
        self._again: list[tuple[float, int]] = []
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._pending)

    def bury(self, part: Part, letters: list[DeadLetter]) -> Store:
        """Begin to store some messages of a part."""
        self._last_token += 1
        burial = self._pending[self._last_token] = _Burial(part, letters)
        self.held_bytes += burial.held_bytes
        return Store(self._last_token, letters)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> tuple[Part, int] | None:
        """The part and how many of its messages are durable; None when they are not, or are not ours any more."""
        if not ok:
            heapq.heappush(self._again, (now_ms + STORE_RETRY_MS, token))
            return None
        part, letters = self._end(token)
        return (part, len(letters)) if self._alive(part) else None

    def due(self, now_ms: float) -> Iterator[Store]:
        """What is to be tried again by now."""
        while self._again and self._again[0][0] <= now_ms:
            token = heapq.heappop(self._again)[1]
            part, letters = self._pending[token]
            if self._alive(part):
                yield Store(token, letters)
            else:
                self._end(token)

    def _end(self, token: int) -> _Burial:
        burial = self._pending.pop(token)
        self.held_bytes -= burial.held_bytes
        return burial
