"""All outstanding batches, each in the queue of its stage; a table of stages and events. Decides nothing."""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from itertools import count as counter

from sidecar.core.books import Tally
from sidecar.core.groups import Groups
from sidecar.core.parts import Batch, Part
from sidecar.core.records import TopicPartition
from sidecar.core.states import Event, StrayEventError, after


class Stage(enum.Enum):
    """Stage of a batch; it has exactly one at a time."""

    NEW = "is not queued yet"
    HELD_BACK = "waits for a commit"
    READY = "waits for a free sender"
    CLAIMING = "waits for the ledger"
    UNCLAIMED = "waits until the ledger is asked again"
    SENDING = "waits for an answer"
    ANSWERED = "was answered"
    WAITING = "waits for its next try"
    CROWDED = "waits for room for its halves"
    ENDED = "has come to its end"

    __hash__ = object.__hash__


TRANSITIONS: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.NEW, Event.HELD_BACK): Stage.HELD_BACK,
    (Stage.NEW, Event.DURABLE): Stage.READY,
    (Stage.NEW, Event.FAILED): Stage.WAITING,  # a piece of a batch that was sent, also below
    (Stage.NEW, Event.ENDED): Stage.ENDED,
    (Stage.HELD_BACK, Event.DURABLE): Stage.READY,
    (Stage.READY, Event.ASKED): Stage.CLAIMING,
    (Stage.READY, Event.SENT): Stage.SENDING,
    (Stage.READY, Event.CROWDED): Stage.CROWDED,  # too large, as others showed
    (Stage.READY, Event.ENDED): Stage.ENDED,  # no part of it is still owned, also below
    (Stage.CLAIMING, Event.CLAIMED): Stage.READY,
    (Stage.CLAIMING, Event.UNANSWERED): Stage.UNCLAIMED,
    (Stage.CLAIMING, Event.ENDED): Stage.ENDED,
    (Stage.UNCLAIMED, Event.ASKED): Stage.CLAIMING,
    (Stage.UNCLAIMED, Event.ENDED): Stage.ENDED,
    (Stage.SENDING, Event.ANSWERED): Stage.ANSWERED,
    (Stage.ANSWERED, Event.FAILED): Stage.WAITING,
    (Stage.ANSWERED, Event.CROWDED): Stage.CROWDED,
    (Stage.ANSWERED, Event.ENDED): Stage.ENDED,
    (Stage.WAITING, Event.DUE): Stage.READY,
    (Stage.WAITING, Event.ENDED): Stage.ENDED,  # it is parked
    (Stage.CROWDED, Event.ENDED): Stage.ENDED,
}


class Outbox:
    """Moves batches from stage to stage, by the table alone, and counts them by group.

    A batch is in exactly one queue from `begin_batch` to `end_batch`. A batch that continues with fewer parts gets a
    new number, so that an answer always belongs to the parts that were sent under its number.
    """

    def __init__(self) -> None:
        self.groups = Groups()
        """State and number of outstanding batches of each group."""
        self.ended = Tally()
        """Batches that have ended, by result."""
        self.busy_senders = 0
        """Number of batches that are being sent."""
        self._queues: dict[Stage, OrderedDict[int, Batch]] = {stage: OrderedDict() for stage in Stage}
        self._stages: dict[int, Stage] = {}
        self._due: list[tuple[float, int]] = []
        self._numbers = counter(1)

    def begin_batch(self, parts: list[Part]) -> Batch:
        """Add an outstanding batch of these parts; the next event queues it."""
        batch = Batch(next(self._numbers), parts[0].group, parts)
        self.groups.begin_batch(batch.group)
        self._stages[batch.id] = Stage.NEW
        self._queues[Stage.NEW][batch.id] = batch
        return batch

    def move(self, batch: Batch, event: Event, *, first: bool = False) -> None:
        """Move the batch to the stage that follows the event.

        Args:
            first: Whether it is placed before all others of its new stage.

        Raises:
            StrayEventError: The event cannot happen in its stage; nothing was changed.
        """
        stage = self._stages.get(batch.id, Stage.ENDED)
        following = after(TRANSITIONS, batch, stage, event)  # first: a stray event must change nothing
        del self._queues[stage][batch.id]
        self._stages[batch.id], self._queues[following][batch.id] = following, batch
        if first:
            self._queues[following].move_to_end(batch.id, last=False)
        if Stage.SENDING in (stage, following):
            change = 1 if following is Stage.SENDING else -1
            self.groups[batch.group].sending += change
            self.busy_senders += change

    def admit(self, parts: list[Part]) -> None:
        """Add a batch of these parts; it is held back until a successor would know of them."""
        batch = self.begin_batch(parts)
        self.move(batch, Event.DURABLE if all(part.ready for part in parts) else Event.HELD_BACK)

    def release_durable(self) -> None:
        """Make batches ready whose parts are durable, as are the dead letters of messages without a row."""
        for batch in list(self._queues[Stage.HELD_BACK].values()):
            if all(part.ready for part in batch.parts):
                self.move(batch, Event.DURABLE)

    def put_first(self, batches: Iterable[list[Part]]) -> None:
        """Add batches of parts whose intents are durable; they are sent before all others, in their order."""
        # In reverse, each before all others, so that the first one ends up first.
        for parts in reversed(list(batches)):
            self.move(self.begin_batch(parts), Event.DURABLE, first=True)

    def put_last(self, batch: Batch) -> None:
        """Move the batch behind all others of its stage."""
        self._queues[self._stages[batch.id]].move_to_end(batch.id)

    def shrink(self, batch: Batch, parts: list[Part]) -> Batch:
        """Replace the batch in its stage by one with fewer parts, or with the rest of them."""
        if parts == batch.parts:
            return batch
        fresh = Batch(next(self._numbers), batch.group, parts, failing_since_ms=batch.failing_since_ms)
        stage = self._stages.pop(batch.id)
        del self._queues[stage][batch.id]
        self._stages[fresh.id], self._queues[stage][fresh.id] = stage, fresh
        return fresh

    def answered(self, number: int) -> Batch:
        """Record that the sink answered the send of this batch.

        Raises:
            StrayEventError: It is not being sent.
        """
        batch = self._queues[Stage.SENDING].get(number)
        if batch is None:
            raise StrayEventError(f"batch {number}", self._stages.get(number, Stage.ENDED), Event.ANSWERED)
        self.move(batch, Event.ANSWERED)
        return batch

    def retry(self, batch: Batch, due_ms: float) -> None:
        """Schedule the batch to be sent again at `due_ms`."""
        self.move(batch, Event.FAILED)
        heapq.heappush(self._due, (due_ms, batch.id))

    def queue_due(self, now_ms: float) -> None:
        """Make batches ready whose retry is due by now."""
        while self._due and self._due[0][0] <= now_ms:
            batch = self._queues[Stage.WAITING].get(heapq.heappop(self._due)[1])
            if batch is not None:  # else it was parked
                self.move(batch, Event.DUE)

    def end_batch(self, batch: Batch, result: str) -> None:
        """End the batch: all its messages are settled, or in other batches."""
        self.move(batch, Event.ENDED)
        del self._stages[batch.id], self._queues[Stage.ENDED][batch.id]
        self.ended.add(batch.group, result)
        self.groups.end_batch(batch.group)

    def batches(self, stage: Stage) -> list[Batch]:
        """Batches in this stage, in their order."""
        return list(self._queues[stage].values())

    def count(self, stage: Stage) -> int:
        """Number of batches in this stage."""
        return len(self._queues[stage])

    def sending(self, tps: Container[TopicPartition]) -> bool:
        """Whether a batch with a part of these partitions is being sent."""
        return any(part.tp in tps for batch in self._queues[Stage.SENDING].values() for part in batch.parts)
