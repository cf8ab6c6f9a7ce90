"""The library's books: messages that a batcher holds, and the outcomes of the rest. Counts only."""

from __future__ import annotations

from typing import Generic

from sidecar.core.library.batch import BatchState, G, M, MessageBatch

HIGH = 0.8
"""Share of the budget above which everything open is due."""
MESSAGE_BYTES = 56
"""Memory of a message beyond its size: the object's head, and its slot in a list that grows by an eighth."""
BATCH_BYTES = 1_024
"""Memory of an empty batch, with its group."""


class Budget(Generic[G, M]):
    """Counts each message in, and out with the end of its batch: added = ended + held, at any time."""

    def __init__(self, held_max_bytes: int) -> None:
        self._held_max_bytes = held_max_bytes
        self._held_bytes = 0
        self._added = 0
        self._ended = dict.fromkeys((BatchState.DELIVERED, BatchState.DEAD_LETTERED, BatchState.RELEASED), 0)

    @property
    def held_bytes(self) -> int:
        """The bytes held now; 0 at rest."""
        return self._held_bytes

    @property
    def tight(self) -> bool:
        """Whether the budget is so full that everything open is due."""
        return self._held_bytes > HIGH * self._held_max_bytes

    def check(self, size_bytes: int) -> None:
        """Raise a ValueError unless a message of this size can be held at all."""
        if size_bytes < 0:
            raise ValueError(f"size said {size_bytes} of a message: it must be at least 0")
        if size_bytes + MESSAGE_BYTES + BATCH_BYTES > self._held_max_bytes:
            raise ValueError(f"a message of {size_bytes} bytes is beyond held_max_bytes {self._held_max_bytes}")

    def admits(self, size_bytes: int, *, begins: bool) -> bool:
        """Whether a message of this size may be held now, with a new batch if it begins one."""
        return self._held_bytes + _bytes(size_bytes, begins=begins) <= self._held_max_bytes

    def take(self, batch: MessageBatch[G, M], message: M, size_bytes: int) -> None:
        """Add the message to the batch."""
        held_bytes = _bytes(size_bytes, begins=not batch.messages)
        batch.messages.append(message)
        batch.size_bytes += size_bytes
        batch.held_bytes += held_bytes
        self._held_bytes += held_bytes
        self._added += 1

    def end(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        """Record the end of the batch."""
        batch.state = state
        self._held_bytes -= batch.held_bytes
        self._ended[state] += len(batch.messages)

    @property
    def added(self) -> int:
        """Number of messages added."""
        return self._added

    def ended(self, state: BatchState) -> int:
        """Number of messages with this end."""
        return self._ended[state]


def _bytes(size_bytes: int, *, begins: bool) -> int:
    return size_bytes + MESSAGE_BYTES + (BATCH_BYTES if begins else 0)
