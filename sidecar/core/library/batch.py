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
    """State of a batch; the last three are final."""

    FILLING = "was never handed out"
    IN_FLIGHT = "is in flight with another batcher"
    WAITING = "waits for its retry"
    DELIVERED = "was delivered"
    DEAD_LETTERED = "was dead-lettered"
    RELEASED = "was released"


@dataclass(slots=True, eq=False)
class MessageBatch(Generic[G, M]):
    """Messages of one group that are sent together; read-only, changed only through the batcher."""

    group: G
    messages: list[M]
    attempt: int = 0
    """Number of sends, including the present one."""
    state: BatchState = BatchState.FILLING
    reason: str = ""
    """Reason of the last failed send, or of the rejection."""
    size_bytes: int = 0
    """Sum of the messages' sizes."""
    held_bytes: int = 0
    """Bytes that it counts for in `held_max_bytes`."""
    begun_ms: float = 0.0
    """Time at which its first message was added."""


@dataclass(frozen=True, slots=True)
class BatcherCounts:
    """Messages held by a batcher, and outcomes of the others: added = delivered + dead_lettered + released + held."""

    batches_filling: int
    """Open batches: not handed out yet, including full ones."""
    batches_in_flight: int
    """Batches handed out by `poll` and not answered yet."""
    batches_waiting: int
    """Failed batches that wait for their next send."""
    held_messages: int
    """Messages in all of these batches."""
    held_bytes: int
    """Memory of these messages and batches."""
    added: int
    """Messages since the batcher was created, like the three counts below."""
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
        """The calls at a batch's end: one for each message in order, then one for the batch."""
        if self.on_message is not None:
            yield from (partial(self.on_message, message, batch) for message in batch.messages)
        if batch.state is BatchState.DELIVERED:
            yield partial(self.on_delivered, batch)
        elif batch.state is BatchState.DEAD_LETTERED:
            yield partial(self.on_dead_lettered, batch, batch.reason)
        else:
            yield partial(self.on_released, batch)

    def ended(self, batch: MessageBatch[G, M]) -> None:
        """Make all calls of a batch's end.

        Raises:
            ExceptionGroup: Some of them raised an error.
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
        """Call the callback for a batch that is sent again."""
        self.on_retry(batch, batch.reason, wait_ms)
