"""All batches that are outstanding, each in the queue of its stage. Decides nothing."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable
from itertools import count as counter

from sidecar.core.books import Tally
from sidecar.core.delivery.stages import Event, Stage, after
from sidecar.core.groups import Groups
from sidecar.core.parts import Batch, Part
from sidecar.core.records import TopicPartition


class Outbox:
    """Moves batches from stage to stage, by the table alone, and counts them by group.

    A batch stands in exactly one queue from `begin` to `end`. What of it goes on with fewer parts gets a new number:
    an answer tells of what was sent, never of something else that has its number.
    """

    def __init__(self) -> None:
        self.groups = Groups()
        """How each group fares, and how many batches it has outstanding."""
        self.ended = Tally()
        """Batches that came to their end, by result."""
        self._queues: dict[Stage, OrderedDict[int, Batch]] = {stage: OrderedDict() for stage in Stage}
        self._stages: dict[int, Stage] = {}
        self._due: list[tuple[float, int]] = []
        self._numbers = counter(1)

    def begin(self, parts: list[Part]) -> Batch:
        """A batch of these parts is outstanding; the next event queues it."""
        batch = Batch(next(self._numbers), parts[0].group, parts)
        self.groups.begin(batch.group)
        self._put(batch, Stage.NEW)
        return batch

    def _put(self, batch: Batch, stage: Stage) -> None:
        self._stages[batch.id] = stage
        self._queues[stage][batch.id] = batch

    def move(self, batch: Batch, event: Event, *, first: bool = False) -> None:
        """This happened to the batch.

        Args:
            batch: The batch.
            event: The event.
            first: It comes before all others of its new stage.

        Raises:
            StrayEventError: That cannot happen in its stage; nothing was changed.
        """
        stage = self._stages.get(batch.id, Stage.ENDED)
        following = after(f"batch {batch.id}", stage, event)  # first: a stray event must leave all as it was
        del self._queues[stage][batch.id]
        self._put(batch, following)
        if first:
            self._queues[following].move_to_end(batch.id, last=False)
        if Stage.SENDING in (stage, following):
            self.groups[batch.group].sending += 1 if following is Stage.SENDING else -1

    def put_first(self, batches: Iterable[list[Part]]) -> None:
        """New batches of parts whose intents are durable; they are sent before all others, in their order."""
        # From the last one on, each before all others: so the first one is first in the end.
        for parts in reversed(list(batches)):
            self.move(self.begin(parts), Event.DURABLE, first=True)

    def put_last(self, batch: Batch) -> None:
        """Others of its stage go before it."""
        self._queues[self._stages[batch.id]].move_to_end(batch.id)

    def shrink(self, batch: Batch, parts: list[Part]) -> Batch:
        """The same batch, in the same stage, with some of its parts only, or with what is left of them."""
        if parts == batch.parts:
            return batch
        fresh = Batch(next(self._numbers), batch.group, parts, failing_since_ms=batch.failing_since_ms)
        stage = self._stages.pop(batch.id)
        del self._queues[stage][batch.id]
        self._put(fresh, stage)
        return fresh

    def answered(self, number: int) -> Batch:
        """The sink answered the send of this batch.

        Raises:
            StrayEventError: It is not being sent.
        """
        stage = self._stages.get(number, Stage.ENDED)
        after(f"batch {number}", stage, Event.ANSWERED)
        batch = self._queues[stage][number]
        self.move(batch, Event.ANSWERED)
        return batch

    def retry(self, batch: Batch, due_ms: float) -> None:
        """The batch is sent again at that time."""
        self.move(batch, Event.FAILED)
        heapq.heappush(self._due, (due_ms, batch.id))

    def queue_due(self, now_ms: float) -> None:
        """What is to be tried again by now is ready."""
        while self._due and self._due[0][0] <= now_ms:
            number = heapq.heappop(self._due)[1]
            self.move(self._queues[Stage.WAITING][number], Event.DUE)

    def end(self, batch: Batch, result: str) -> None:
        """The batch has come to its end: all its messages have theirs, or are in other batches."""
        self.move(batch, Event.ENDED)
        del self._stages[batch.id], self._queues[Stage.ENDED][batch.id]
        self.ended.add(batch.group, result)
        self.groups.end(batch.group)

    def batches(self, stage: Stage) -> list[Batch]:
        """Those in this stage, in their order."""
        return list(self._queues[stage].values())

    def count(self, stage: Stage) -> int:
        """How many are in this stage."""
        return len(self._queues[stage])

    def sending(self, tps: Container[TopicPartition]) -> bool:
        """Whether anything of these partitions is on its way right now."""
        return any(part.tp in tps for batch in self._queues[Stage.SENDING].values() for part in batch.parts)
