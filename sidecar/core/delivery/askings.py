"""What the ledger is asked for, and when it is asked again. Decides nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.delivery.stages import Event, Stage, StrayEventError
from sidecar.core.parts import Batch, Part

ASKED_MAX = 8


@dataclass(frozen=True, slots=True)
class Asking:
    """Parts to be claimed in one transaction: all of a batch, or each to become a batch of its own."""

    parts: Sequence[Part]
    batch: Batch | None = None
    at_ms: float = 0.0
    """When it was asked for, monotonic."""


class Askings:
    """What is asked for now, and what waits; each is in one of the two, and none is lost between them."""

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
        """Messages whose twin is claimed."""
        return sum(part.count for asking in self if asking.batch is None for part in asking.parts)

    @property
    def held_alone(self) -> bool:
        """Whether parts wait for their twins, and no batch for the ledger."""
        return bool(len(self)) and all(asking.batch is None for asking in self)

    @property
    def busy(self) -> bool:
        """Whether enough is asked for at present."""
        return len(self._asked) >= ASKED_MAX

    def begin(self, asking: Asking) -> int:
        """The ledger is asked; the number that its answer has."""
        self._number += 1
        self._asked[self._number] = asking
        return self._number

    def end(self, number: int) -> Asking:
        """The ledger answered.

        Raises:
            StrayEventError: It was not asked under that number, or answered before.
        """
        if number not in self._asked:
            raise StrayEventError(f"claim {number}", Stage.ENDED, Event.CLAIMED)
        return self._asked.pop(number)

    def put_off(self, asking: Asking, due_ms: float) -> None:
        """To be asked from that time on."""
        self._number += 1
        heapq.heappush(self._later, (due_ms, self._number, asking))

    def take_due(self, now_ms: float) -> Iterator[Asking]:
        """What is to be asked by now; it waits no more."""
        while self._later and self._later[0][0] <= now_ms:
            yield heapq.heappop(self._later)[2]
