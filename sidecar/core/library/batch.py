"""A batch of the library's `Batcher`: its state, its callbacks, and the counts. Knows no limit and no time."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)
M = TypeVar("M")


class BatchState(enum.Enum):
    """Where a batch is; it ends in one of the last three, and stays there."""

    FILLING = "was never handed out"
    IN_FLIGHT = "is in flight with another batcher"
    WAITING = "waits for its retry"
    DELIVERED = "was delivered"
    DEAD_LETTERED = "was dead-lettered"
    RELEASED = "was released"


@dataclass(slots=True, eq=False)
class MessageBatch(Generic[G, M]):
    """Messages of one group that are sent together; read it, and change nothing but through the batcher."""

    group: G
    messages: list[M]
    attempt: int = 0
    """Sends so far, the present one included."""
    state: BatchState = BatchState.FILLING
    reason: str = ""
    """Why the last send failed, or the batch was rejected."""
    size_bytes: int = 0
    """Sum of the messages' sizes."""
    held_bytes: int = 0
    """What it counts for in `held_max_bytes`."""
    begun_ms: float = 0.0
    """When its first message was added."""


@dataclass(frozen=True, slots=True)
class BatcherCounts:
    """What a batcher holds, and what became of the rest: added = delivered + dead_lettered + released + held."""

    batches_filling: int
    """Open: not handed out yet, full ones included."""
    batches_in_flight: int
    """Handed out by `poll`, without an answer yet."""
    batches_waiting: int
    """Failed, and waiting for their next send."""
    held_messages: int
    """In all of these batches."""
    held_bytes: int
    """What these messages and batches take of memory."""
    added: int
    """Messages since the batcher was made, as the three below."""
    delivered: int
    dead_lettered: int
    released: int


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Callbacks(Generic[G, M]):
    """The functions that a batcher calls; see `Batcher`."""

    on_message: Callable[[M, MessageBatch[G, M]], object] | None = None
    on_delivered: Callable[[MessageBatch[G, M]], object] = _nothing
    on_retry: Callable[[MessageBatch[G, M], str, float], object] = _nothing
    on_dead_lettered: Callable[[MessageBatch[G, M], str], object] = _nothing
    on_released: Callable[[MessageBatch[G, M]], object] = _nothing

    def of_end(self, batch: MessageBatch[G, M]) -> Iterator[Callable[[], object]]:
        """The calls that a batch's end makes: one for each message in order, then one for the batch."""
        if self.on_message is not None:
            yield from (partial(self.on_message, message, batch) for message in batch.messages)
        if batch.state is BatchState.DELIVERED:
            yield partial(self.on_delivered, batch)
        elif batch.state is BatchState.DEAD_LETTERED:
            yield partial(self.on_dead_lettered, batch, batch.reason)
        else:
            yield partial(self.on_released, batch)

    def ended(self, batch: MessageBatch[G, M]) -> None:
        """Make the calls of a batch's end, all of them.

        Raises:
            ExceptionGroup: What some of them raised.
        """
        errors = []
        for call in self.of_end(batch):
            try:
                call()
            except Exception as error:  # noqa: BLE001  # the other messages have a right to theirs
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"callbacks of a batch of group {batch.group!r} failed", errors)

    def retried(self, batch: MessageBatch[G, M], wait_ms: float) -> None:
        """Tell that the batch is sent again."""
        self.on_retry(batch, batch.reason, wait_ms)
