"""The library's batches that were handed out: in flight, or waiting for their next send."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from sidecar.core.backoff import Backoff
from sidecar.core.library.batch import BatchState, G, M, MessageBatch


@dataclass(frozen=True, slots=True)
class Retries:
    """When a batch is sent again, and when it is given up.

    Args:
        backoff: Waits between sends.
        give_up_after: Failed sends after which it is given up; None for never.
        jitter: Uniform in [0, 1).
    """

    backoff: Backoff
    give_up_after: int | None
    jitter: Callable[[], float]

    def gives_up(self, attempt: int) -> bool:
        """Whether so many failed sends are enough."""
        return self.give_up_after is not None and attempt >= self.give_up_after

    def wait_ms(self, attempt: int, retry_after_ms: float | None) -> float:
        """How long to wait after the failed send of this number."""
        return self.backoff.wait_ms(attempt, self.jitter(), retry_after_ms)


class Flight(Generic[G, M]):
    """Each batch is in flight once between `send` and its answer: who answers twice, or another batcher's, is told."""

    def __init__(self) -> None:
        self._in_flight: set[MessageBatch[G, M]] = set()
        self._waiting: list[tuple[float, int, MessageBatch[G, M]]] = []
        self._sequence = 0

    def send(self, batch: MessageBatch[G, M]) -> None:
        """The batch is handed out."""
        batch.attempt += 1
        batch.state = BatchState.IN_FLIGHT
        self._in_flight.add(batch)

    def check(self, batch: MessageBatch[G, M]) -> None:
        """Raise a ValueError unless the batch is in flight."""
        if batch not in self._in_flight:
            raise ValueError(f"this batch of group {batch.group!r} is not in flight: it {batch.state.value}")

    def end(self, batch: MessageBatch[G, M]) -> None:
        """The batch was answered, and has its end."""
        self.check(batch)
        self._in_flight.remove(batch)

    def put_off(self, batch: MessageBatch[G, M], due_ms: float) -> None:
        """The batch was answered, and is sent again at that time."""
        self.end(batch)
        batch.state = BatchState.WAITING
        self._sequence += 1
        heapq.heappush(self._waiting, (due_ms, self._sequence, batch))

    def take_due(self, now_ms: float) -> MessageBatch[G, M] | None:
        """The next batch that is to be sent again by now; None when none is."""
        return heapq.heappop(self._waiting)[2] if self._waiting and self._waiting[0][0] <= now_ms else None

    def due_ms(self) -> float | None:
        """When the next batch is sent again; None when none waits."""
        return self._waiting[0][0] if self._waiting else None

    def batches(self) -> list[MessageBatch[G, M]]:
        """All that have no end yet."""
        return [*self._in_flight, *(batch for _, _, batch in self._waiting)]

    def drop(self, batches: set[MessageBatch[G, M]]) -> None:
        """These have their end, whatever is answered later."""
        self._in_flight -= batches
        self._waiting = [entry for entry in self._waiting if entry[2] not in batches]
        heapq.heapify(self._waiting)

    @property
    def counts(self) -> tuple[int, int]:
        """How many are in flight, and how many wait."""
        return len(self._in_flight), len(self._waiting)
