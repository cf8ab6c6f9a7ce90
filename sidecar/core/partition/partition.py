"""The owned partitions: each ownership from assignment to revocation. No batch, no retry, no clock.

Below the watermark all is settled. Between it and `seen`, the next offset never read, a group's messages are unsettled
if an intent covers them, or if they are at or above the offset from which the group is open; everything else there is
settled. `state()` is exactly that: a successor on another host continues from it exactly.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from pyroaring import BitMap64

from sidecar.core.batching import Limits
from sidecar.core.lineage import Lineage
from sidecar.core.partition.holding import Holding
from sidecar.core.partition.outstanding import BegunCommit, CommitEntries, Outstanding
from sidecar.core.partition.parking import ParkedRecords
from sidecar.core.partition.promises import Promises
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.parts import Intent, Lane, Lanes, Part
from sidecar.core.records import Fragment, TopicPartition
from sidecar.core.states import Event, after


class Passed:
    """Settled offsets: by group until the group's next fragment, for all groups until a shared intent is past them."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        """By the hashes of groups: a producer's tag may be as large as a message."""
        self._all = BitMap64()

    def add_offsets(self, group: str, offsets: Sequence[int]) -> None:
        """Add offsets of a group that were read again, in rising order."""
        self._last[lane_key(group)] = offsets[-1]
        self._all.update(offsets)

    def pop(self, group: str) -> int:
        """The group's last offset if it is settled, for `Fragment.after`; else -1."""
        return self._last.pop(lane_key(group), -1) if self._last else -1

    def first_from(self, offset: int) -> int | None:
        """The lowest offset from `offset` on, of any group. Lower ones are dropped: nothing is cut there any more."""
        self._all.remove_range(0, offset)
        return self._all.min() if self._all else None


@dataclass(slots=True)
class Reach:
    """Offsets of one ownership: `committed` is never above `position`, and `position` never above `seen`."""

    position: int
    """The next offset to read."""
    seen: int
    """The next offset that no owner ever read."""
    committed: int
    """The durable watermark."""

    @property
    def replaying(self) -> bool:
        """Whether messages that an earlier owner had read are being read again."""
        return self.position < self.seen

    @property
    def span(self) -> int:
        """Number of offsets between the durable watermark and the position."""
        return self.position - self.committed

    def commit(self, watermark: int) -> None:
        """Record that a commit of this watermark succeeded."""
        self.committed = watermark

    def advance(self, position: int, messages: int) -> None:  # noqa: ARG002
        """Record that all below `position` was read, with so many messages in it."""
        self.position = position
        self.seen = max(self.seen, position)


@dataclass(slots=True)
class CountedReach(Reach):
    """`Reach` for positions of delayed messages, a million for each millisecond: the span is counted in messages."""

    _taken: deque[tuple[int, int]] = field(default_factory=deque)
    """Position and number of messages of each read up to a position above the durable watermark."""
    _count: int = 0

    @property
    def span(self) -> int:
        """Number of messages between the durable watermark and the position."""
        return self._count

    def advance(self, position: int, messages: int) -> None:
        """Record that all below `position` was read, with so many messages in it."""
        Reach.advance(self, position, messages)
        if messages:
            self._taken.append((position, messages))
            self._count += messages

    def commit(self, watermark: int) -> None:
        """Record that a commit of this watermark succeeded."""
        self.committed = watermark
        while self._taken and self._taken[0][0] <= watermark:
            self._count -= self._taken.popleft()[1]


class Ownership(enum.Enum):
    """State of an ownership."""

    REPLAYING = "is read as far as an earlier owner had read"
    READING = "is read"
    FENCED_EARLY = "is about to be lost before it is read again"
    FENCED = "is about to be lost"
    LOST = "has ended"


OWNERSHIPS: Mapping[tuple[Ownership, Event], Ownership] = {
    (Ownership.REPLAYING, Event.READ): Ownership.READING,
    (Ownership.REPLAYING, Event.FENCED): Ownership.FENCED_EARLY,
    (Ownership.REPLAYING, Event.LOST): Ownership.LOST,
    (Ownership.READING, Event.FENCED): Ownership.FENCED,
    (Ownership.READING, Event.LOST): Ownership.LOST,
    (Ownership.FENCED_EARLY, Event.READ): Ownership.FENCED,
    (Ownership.FENCED_EARLY, Event.LOST): Ownership.LOST,
    (Ownership.FENCED, Event.LOST): Ownership.LOST,
}


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
        epoch: int = 0,
    ) -> None:
        self.tp = tp
        self.epoch = epoch
        """The number of this ownership, in this process."""
        self.scope = scope
        self.reach = (CountedReach if tp.delayed else Reach)(state.watermark, state.seen, state.watermark)
        self.ownership = Ownership.REPLAYING
        self.lanes = Lanes(separator)
        self.dues = CommitEntries(lineage)
        self.promises = Promises(state, room, durable=lineage.durable, release=self.dues.finished)
        self.holding = Holding()
        self.parking = ParkedRecords()
        self.outstanding = Outstanding(tp, scope, self.lanes, self.promises, self.parking)
        self.passed = Passed()
        """Settled messages, which must not be in the range of a shared intent."""
        if not self.reach.replaying:  # nothing is to be read again
            self.move(Event.READ)
            self.promises.all_read()

    def __str__(self) -> str:
        return str(self.tp)

    def move(self, event: Event) -> None:
        """Change the state of the ownership by the table.

        Raises:
            StrayEventError: The event cannot happen in this state.
        """
        self.ownership = after(OWNERSHIPS, self, self.ownership, event)

    @property
    def watermark(self) -> int:
        """The offset below which all are settled."""
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
            for buffer in intent.collected.values():
                yield from buffer.fragments

    def unsettled(self) -> Iterator[Sequence[int]]:
        """Offsets of all messages that are read and not settled."""
        yield from _offsets(self.open_fragments())
        for part in self.lanes.parts():
            if part.intent.record is None:
                yield from _offsets(part.fragments)
        for record in self.parking.stored.values():
            if record.parked.lowest >= self.reach.committed:  # else it is not read again, whatever happens
                yield list(record.parked.offsets)

    # Cutting: each message of the group in an intent's range is open or in the part, and none is settled

    def share(self, limits: Limits) -> list[Part]:
        """Cut all open lanes completely; from here on one cut serves all groups.

        If the room for intents is used up, the last part of a lane takes the rest, beyond the limits.
        """
        # Completely: a shared intent begins at the position, so a successor would take open messages below it for
        # settled.
        parts = []
        for lane in list(self.lanes.values()):
            while lane.buffer.fragments:
                whole = Limits(lane.buffer.count, lane.buffer.nbytes)
                parts.append(self.cut(lane, limits if self.promises.may_cut(lane) else whole))
        self.promises.share_from(self.reach.position, 0, self.lanes, rest=True)
        return parts

    def cut(self, lane: Lane, limits: Limits) -> Part:
        """Cut the first open messages of a lane into a part; its group shares no intents."""
        fragments = lane.buffer.take_first(limits)
        intent = self.promises.promise(lane.key, fragments[0].first, fragments[-1].last)
        return self.outstanding.add_part(lane.group, intent, fragments)

    def cut_shared(self, limits: Limits) -> list[Part]:
        """Cut the first open messages of all lanes, whose groups share intents: one part of each."""
        lanes = self.lanes.open()
        fits = [(lane.buffer.last_within(limits), lane.buffer.fragments[-1].last) for lane in lanes]
        short = [within for within, end in fits if within < end]
        first = min(lane.buffer.fragments[0].first for lane in lanes)
        # The range must not contain settled messages: it covers every group, and a successor would send them.
        passed = self.passed.first_from(first)
        short += [passed - 1] if passed is not None else []
        last = min(short, default=self.reach.position - 1)
        lanes = [lane for lane in lanes if lane.buffer.fragments[0].first <= last]
        intent = self.promises.promise(None, min(lane.buffer.fragments[0].first for lane in lanes), last)
        parts = [self.outstanding.add_part(lane.group, intent, lane.buffer.take_through(last)) for lane in lanes]
        rest = bool(short) or self.reach.replaying
        self.promises.share_from(last + 1, len(parts), self.lanes, rest=rest)
        return parts

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

    def read_past(self, position: int, messages: int = 0) -> list[Part]:
        """Advance to `position`, which is ahead, by so many messages; return the recovered parts that are complete."""
        self.reach.advance(position, messages)
        self.holding.read_past(position)
        if not self.reach.replaying and self.ownership in (Ownership.REPLAYING, Ownership.FENCED_EARLY):
            self.move(Event.READ)
            self.promises.all_read()
        parts = []
        for intent in self.promises.intents:
            # An intent whose last offset was passed gets no more messages, even if the log has lost some.
            if intent.is_read_again and intent.last < self.reach.position:
                for group, fragments in intent.complete().items():
                    parts.append(self.outstanding.add_part(group, intent, fragments, max(1, intent.tries.attempts)))
        self.promises.drop_finished()
        return parts

    # Committing

    def journal(self, number: int) -> None:
        """Settle a message id that belongs to no intent."""
        if not self.holding.withholds(number):
            self.dues.journal(number)

    def acknowledged(self, begun: BegunCommit) -> bool:
        """Handle a commit's success: its promises may be sent. Return whether released entries need another commit."""
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


class Ownerships(dict[TopicPartition, Partition]):
    """Owned partitions by name. A live part belongs to the ownership that is listed here."""

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self._separator = separator
        self._room = StateBudget()
        self.fenced: set[TopicPartition] = set()
        """Partitions that are about to be revoked: nothing of them is cut, sent or committed."""
        self._epochs = count(1)
        self._replays: set[TopicPartition] = set()

    def fence(self, tps: Iterable[TopicPartition]) -> None:
        """Fence partitions that are about to be revoked; others are ignored, because nothing would lift their fence."""
        for tp in (self.keys() & set(tps)) - self.fenced:
            self[tp].move(Event.FENCED)
            self.fenced.add(tp)

    def limit(self, room: StateBudget) -> None:
        """Set the room for the state of partitions taken from now on."""
        self._room = room

    def separate(self, separator: bytes) -> None:
        """Set the rows' separator, while nothing is open or outstanding."""
        self._separator = separator
        for partition in self.values():
            partition.lanes.separator = separator

    def take_partition(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage) -> None:
        """Take a partition, starting from the predecessor's state; it must not be owned already."""
        self._replays.add(tp)
        room = self._room.for_positions if tp.delayed else self._room
        self[tp] = Partition(tp, scope, state, self._separator, lineage, room, next(self._epochs))

    @property
    def replaying(self) -> bool:
        """Whether any partition still replays messages that an earlier owner had read.

        Called at every turn, so a partition that has finished is not checked again.
        """
        self._replays = {tp for tp in self._replays if tp in self and self[tp].reach.replaying}
        return bool(self._replays)

    def close(self, tp: TopicPartition) -> Partition | None:
        """Release a partition and end its parts; return it, or None if it was not owned."""
        self.fenced.discard(tp)
        partition = self.pop(tp, None)
        if partition is not None:
            partition.move(Event.LOST)
            partition.outstanding.close()  # a late answer finds parts that are no longer live
        return partition
