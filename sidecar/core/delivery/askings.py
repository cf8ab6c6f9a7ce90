"""Claims that the ledger is asked for, and their retries. Decides nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.delivery.stages import Event, Stage, StrayEventError
from sidecar.core.parts import Batch, Part

ASKED_MAX = 8


@dataclass(frozen=True, slots=True)
class Asking:
    """Parts to be claimed in one transaction: all of a batch, or each to become its own batch."""

    parts: Sequence[Part]
    batch: Batch | None = None
    at_ms: float = 0.0
    """Time of the request, monotonic."""


class Askings:
    """Claims that are outstanding, and claims that wait; each is in one of the two, and none is lost between them."""

    def __init__(self) -> None:
        self._asked: dict[int, Asking] = {}
        self._later: list[tuple[float, int, Asking]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._asked) + len(self._later)

    def __iter__(self) -> Iterator[Asking]:
        yield from self._asked.values()
        yield from (asking for _, _, asking in self._later)

    @property
    def waiting(self) -> int:
        """Number of messages whose twin is claimed."""
        return sum(part.count for asking in self if asking.batch is None for part in asking.parts)

    @property
    def held_alone(self) -> bool:
        """Whether parts wait for their twins, and no batch waits for the ledger."""
        return bool(len(self)) and all(asking.batch is None for asking in self)

    @property
    def busy(self) -> bool:
        """Whether the maximum number of claims is outstanding."""
        return len(self._asked) >= ASKED_MAX

    def begin(self, asking: Asking) -> int:
        """Add an outstanding claim; return the number that its answer has."""
        self._number += 1
        self._asked[self._number] = asking
        return self._number

    def end(self, number: int) -> Asking:
        """Remove and return a claim that the ledger answered.

        Raises:
            StrayEventError: No claim has this number, or it was answered before.
        """
        if number not in self._asked:
            raise StrayEventError(f"claim {number}", Stage.ENDED, Event.CLAIMED)
        return self._asked.pop(number)

    def put_off(self, asking: Asking, due_ms: float) -> None:
        """Put off a claim until `due_ms`."""
        self._number += 1
        heapq.heappush(self._later, (due_ms, self._number, asking))

    def take_due(self, now_ms: float) -> Iterator[Asking]:
        """Remove and return the claims that are due by now."""
        while self._later and self._later[0][0] <= now_ms:
            yield heapq.heappop(self._later)[2]
