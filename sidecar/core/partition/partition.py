"""One ownership of a partition, from assignment to revocation. No batch, no retry, no clock.

Below the watermark all is settled. Between it and `seen`, the next offset never read, a group's messages are unsettled
if an intent covers them, or if they are at or above the offset from which the group is open; everything else there is
settled. `state()` is exactly that: a successor on another host continues from it exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sidecar.core.effects import CommitItem
from sidecar.core.intents import Intent
from sidecar.core.lineage import Lineage
from sidecar.core.partition.dues import BegunCommit, CommitEntries
from sidecar.core.partition.holding import Holding
from sidecar.core.partition.lanes import Lane, Lanes
from sidecar.core.partition.opening import Opening
from sidecar.core.partition.outstanding import Outstanding
from sidecar.core.partition.parking import ParkedRecords
from sidecar.core.partition.passed import Passed
from sidecar.core.partition.promises import Promises
from sidecar.core.partition.reach import CountedReach, Reach
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition.stamps import Stamps
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.parts import Part
from sidecar.core.records import Fragment, TopicPartition


class Partition:
    """The read, open, promised and settled messages of one partition.

    Args:
        scope: Hash of cluster, consumer group, topic id and incarnation.
        state: The predecessor's state; for a fresh partition `watermark == seen`.
        lineage: The commits that its state came after.
    """

    def __init__(
        self,
        tp: TopicPartition,
        scope: str,
        state: PartitionState,
        separator: bytes,
        lineage: Lineage = Lineage(),  # noqa: B008  # frozen
        room: StateBudget = StateBudget(),  # noqa: B008  # frozen
    ) -> None:
        self.tp = tp
        self.scope = scope
        self.is_delayed = tp.delayed
        """Whether its messages come from the store of delayed messages."""
        self.reach = (CountedReach if self.is_delayed else Reach)(state.watermark, state.seen, state.watermark)
        self.lanes = Lanes(separator)
        self.promises = Promises(state, room, durable=lineage.durable)
        self.dues = CommitEntries()
        self.stamps = Stamps(lineage)
        self.passed = Passed()
        self.holding = Holding()
        self.parking = ParkedRecords()
        self.outstanding = Outstanding(tp, scope, self.lanes, self.promises, self.dues, self.parking)
        self.opening = Opening(self.lanes, self.promises, self.passed, self.outstanding, self.reach)

    @property
    def watermark(self) -> int:
        """All offsets below are settled."""
        if not (self.promises.intents or self.lanes or self.reach.replaying):  # most of the time, of most partitions
            return self.reach.seen
        bounds = [intent.first for intent in self.promises.intents]
        bounds += [lane.buffer.fragments[0].first for lane in self.lanes.open()]
        if self.reach.replaying:
            bounds.append(self.reach.position)
        return min(bounds, default=self.reach.seen)

    def state(self) -> PartitionState:
        """The state for the next owner."""
        state = self.promises.state(self.watermark, self.reach.seen, self.reach.position, self.lanes)
        stores, parked = self.holding.stores, self.parking.acknowledged
        return replace(state, stores=stores, parked=parked) if stores.own or parked else state

    def open_fragments(self) -> Iterator[Fragment]:
        """The fragments in no part: open, or read again so far for a recovered intent."""
        for lane in self.lanes.values():
            yield from lane.buffer.fragments
        for intent in self.promises.intents:
            for buffer in (intent.collected or {}).values():
                yield from buffer.fragments

    def unsettled(self) -> Iterator[Sequence[int]]:
        """Offsets of all messages that are read and not settled."""
        yield from _offsets(self.open_fragments())
        for part in self.lanes.parts():
            if part.intent.record is None:
                yield from _offsets(part.fragments)
        for record in self.parking.records():
            if record.lowest >= self.reach.committed:  # else it is not read again, whatever happens
                yield list(record.offsets)

    # Reading

    def place(self, group: str, offsets: Sequence[int]) -> Iterator[tuple[Intent | Lane | None, int, int]]:
        """Sort messages that are read again: into an intent, the open lane, or None if they are settled.

        Yields:
            The place, and the slice [start, stop) of `offsets` that belongs there.
        """
        key = lane_key(group)
        intents, open_from = self.promises.of(key, self.reach.seen)
        borders = sorted({open_from, *(border for intent in intents for border in (intent.first, intent.last + 1))})
        start = 0
        while start < len(offsets):
            offset = offsets[start]
            owner: Intent | Lane | None = next((intent for intent in intents if intent.covers(key, offset)), None)
            if owner is None and offset >= open_from:
                owner = self.lanes.of(group)
            beyond = bisect_right(borders, offset)
            stop = bisect_left(offsets, borders[beyond], start) if beyond < len(borders) else len(offsets)
            yield owner, start, stop
            start = stop

    def read_past(self, position: int) -> list[Part]:
        """Advance to `position`; return the recovered parts that are complete now."""
        self.reach.advance(position)
        self.holding.read_past(position)
        if not self.reach.replaying:
            self.promises.all_read()
        # An intent whose last offset was passed gets no more messages, even if the log has lost some.
        complete = [
            each for each in self.promises.intents if each.collected is not None and each.last < self.reach.position
        ]
        parts = [part for intent in complete for part in self._complete(intent)]
        self.outstanding.drop_finished()
        return parts

    def _complete(self, intent: Intent) -> list[Part]:
        buffers, intent.collected = intent.collected or {}, None
        groups = [(group, buffer.take_through(intent.last)) for group, buffer in buffers.items()]
        parts = [self.outstanding.add(group, intent, fragments) for group, fragments in groups]
        for part in parts:
            part.life.attempts = max(1, intent.tries.attempts)
        return parts

    # Committing

    def journal(self, number: int) -> None:
        """Settle a message id that belongs to no intent."""
        if not self.holding.withholds(number):
            self.dues.journal(number)

    def begin_commit(self, generation: int, *, proves: bool = False) -> tuple[CommitItem, BegunCommit] | None:
        """Begin a commit: return its content and what it makes durable, or None if nothing changed.

        Args:
            generation: Generation of the window of message ids, if ids are journalled.
            proves: Whether it is also made to prove that the partition is still owned.
        """
        state = self.state()
        if not (proves or self.dues.outdated(state)):
            return None
        begun = self.dues.begin(state, self.promises.intents)
        ids, marks = self.dues.take_ids(), self.dues.take_marks()
        stamp, lineage = self.stamps.next()
        item = CommitItem(
            self.tp, self.scope, state, generation, ids or None, marks, stamp, lineage, puts=self.holding.busy
        )
        return item, begun

    def acknowledged(self, begun: BegunCommit) -> bool:
        """A commit succeeded: what it promised may be sent. Whether another one is due for what may be told now."""
        self.reach.commit(begun.state.watermark)
        self.holding.committed(begun.state.seen)
        is_another_due = self.dues.acknowledged(begun)
        if ids := self.parking.committed(begun.state.parked):
            for number in ids:
                self.dues.journal(number)
            self.dues.barrier()  # so that there is another commit, which makes them durable
        return is_another_due or bool(ids)


def _offsets(fragments: Iterable[Fragment]) -> Iterator[Sequence[int]]:
    """Offsets of all messages of the fragments, with and without a row."""
    for fragment in fragments:
        yield from (fragment.offsets, list(fragment.unframeable))
