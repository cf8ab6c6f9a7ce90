"""The library's open batches: which one takes a message, and which are due. Knows no answer and no budget."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic

from sidecar.core.library.batch import G, M, MessageBatch


class Filling(Generic[G, M]):
    """Open batches by group, oldest first. While a group is busy, none of its batches is due, which keeps its order.

    Args:
        max_messages: Upper bound of a batch.
        max_bytes: Upper bound of the sizes in a batch; a larger message travels alone.
        linger_ms: Longest time that a message waits for others.
    """

    def __init__(self, max_messages: int, max_bytes: int, linger_ms: float) -> None:
        self._max_messages, self._max_bytes, self._linger_ms = max_messages, max_bytes, linger_ms
        self._open: dict[G, list[MessageBatch[G, M]]] = {}
        self._lingering: OrderedDict[MessageBatch[G, M], None] = OrderedDict()  # open, not due by age; oldest first
        self._idle: OrderedDict[G, None] = OrderedDict()  # groups with open batches and none outstanding
        self._due: OrderedDict[G, None] = OrderedDict()  # idle groups whose first batch is due
        self._busy: set[G] = set()  # groups with a batch outstanding

    def room(self, group: G, size_bytes: int) -> MessageBatch[G, M] | None:
        """The open batch for a message of this size; None if a new one must be begun."""
        batches = self._open.get(group)
        if not batches or self._is_full(batches[-1]) or batches[-1].size_bytes + size_bytes > self._max_bytes:
            return None
        return batches[-1]

    def begin(self, group: G, now_ms: float) -> MessageBatch[G, M]:
        """Begin a new batch, behind the group's others."""
        batch: MessageBatch[G, M] = MessageBatch(group, [], begun_ms=now_ms)
        self._open.setdefault(group, []).append(batch)
        self._lingering[batch] = None
        return batch

    def added(self, batch: MessageBatch[G, M]) -> None:
        """Record that a message was added to this batch."""
        if len(batch.messages) == 1 or self._is_full(batch):
            self._sort(batch.group)

    def _is_full(self, batch: MessageBatch[G, M]) -> bool:
        return len(batch.messages) >= self._max_messages or batch.size_bytes >= self._max_bytes

    def _sort(self, group: G) -> None:
        """Classify the group: busy, idle, or idle and due."""
        batches = self._open.get(group)
        if not batches or group in self._busy:
            self._idle.pop(group, None)
            self._due.pop(group, None)
            return
        self._idle[group] = None
        if len(batches) > 1 or self._is_full(batches[0]) or batches[0] not in self._lingering:
            self._due[group] = None

    def ripen(self, now_ms: float) -> None:
        """Make batches due that have lingered long enough by now."""
        while self._lingering and next(iter(self._lingering)).begun_ms + self._linger_ms <= now_ms:
            batch, _ = self._lingering.popitem(last=False)
            self._sort(batch.group)

    def flush(self) -> None:
        """Make all open batches due, whatever their age."""
        self._lingering.clear()
        self._due.update(self._idle)

    def has_due(self, *, everything: bool) -> bool:
        """Whether `take` would return a batch."""
        return bool(self._due or (everything and self._idle))

    def take(self, *, everything: bool) -> MessageBatch[G, M] | None:
        """Remove and return the next batch that is due, or with `everything` any; its group is busy until `free`."""
        groups = self._due or (self._idle if everything else self._due)
        if not groups:
            return None
        group = next(iter(groups))
        batch = self._open[group].pop(0)
        if not self._open[group]:
            del self._open[group]
        self._lingering.pop(batch, None)
        self._busy.add(group)
        self._sort(group)
        return batch

    def free(self, group: G) -> None:
        """Record that the group's batch is no longer outstanding."""
        self._busy.remove(group)
        self._sort(group)

    def drop(self, group: G) -> None:
        """Remove a group without open and outstanding batches."""
        for batch in self._open.pop(group, ()):
            self._lingering.pop(batch, None)
        self._busy.discard(group)
        self._sort(group)

    def due_ms(self) -> float | None:
        """Time at which the oldest lingering batch is due; None if no batch lingers."""
        return next(iter(self._lingering)).begun_ms + self._linger_ms if self._lingering else None

    def batches(self) -> list[MessageBatch[G, M]]:
        """All open batches."""
        return [batch for batches in self._open.values() for batch in batches]
