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
    """Rules by which a failed batch is sent again or given up.

    Args:
        give_up_after: Failed sends after which it is given up; None for never.
        jitter: Uniform in [0, 1).
    """

    backoff: Backoff
    give_up_after: int | None
    jitter: Callable[[], float]

    def gives_up(self, attempt: int) -> bool:
        """Whether this number of failed sends is enough."""
        return self.give_up_after is not None and attempt >= self.give_up_after

    def wait_ms(self, attempt: int, retry_after_ms: float | None) -> float:
        """Wait after the failed send of this number, in milliseconds."""
        return self.backoff.wait_ms(attempt, self.jitter(), retry_after_ms)


class Flight(Generic[G, M]):
    """Batches in flight between `send` and their answer; a second answer, or another batcher's batch, is an error."""

    def __init__(self) -> None:
        self._in_flight: set[MessageBatch[G, M]] = set()
        self._waiting: list[tuple[float, int, MessageBatch[G, M]]] = []
        self._sequence = 0

    def send(self, batch: MessageBatch[G, M]) -> None:
        """Add a batch that is handed out."""
        batch.attempt += 1
        batch.state = BatchState.IN_FLIGHT
        self._in_flight.add(batch)

    def check(self, batch: MessageBatch[G, M]) -> None:
        """Raise a ValueError unless the batch is in flight."""
        if batch not in self._in_flight:
            raise ValueError(f"this batch of group {batch.group!r} is not in flight: it {batch.state.value}")

    def end(self, batch: MessageBatch[G, M]) -> None:
        """Remove a batch that was answered and has ended."""
        self.check(batch)
        self._in_flight.remove(batch)

    def put_off(self, batch: MessageBatch[G, M], due_ms: float) -> None:
        """Schedule a batch that was answered to be sent again at `due_ms`."""
        self.end(batch)
        batch.state = BatchState.WAITING
        self._sequence += 1
        heapq.heappush(self._waiting, (due_ms, self._sequence, batch))

    def take_due(self, now_ms: float) -> MessageBatch[G, M] | None:
        """Remove and return the next batch whose retry is due by now; None if there is none."""
        return heapq.heappop(self._waiting)[2] if self._waiting and self._waiting[0][0] <= now_ms else None

    def due_ms(self) -> float | None:
        """Time of the next retry; None if no batch waits."""
        return self._waiting[0][0] if self._waiting else None

    def batches(self) -> list[MessageBatch[G, M]]:
        """All batches that have not ended."""
        return [*self._in_flight, *(batch for _, _, batch in self._waiting)]

    def drop(self, batches: set[MessageBatch[G, M]]) -> None:
        """Remove these batches, which have ended; later answers are errors."""
        self._in_flight -= batches
        self._waiting = [entry for entry in self._waiting if entry[2] not in batches]
        heapq.heapify(self._waiting)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of batches in flight and waiting."""
        return len(self._in_flight), len(self._waiting)
