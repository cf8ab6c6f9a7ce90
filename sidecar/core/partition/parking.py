"""The parked parts of one partition, and those on the way to the store. Knows no batch and no clock.

A parked part is a record in the store, with a number. It counts if the partition's state has this number or a higher
one: such a state no longer has the part's intent. So one commit moves the part from the state to the store.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from pyroaring import BitMap64

from sidecar.core.batching import body_bytes, ids_of
from sidecar.core.parts import Part
from sidecar.core.records import Fragment, Parked
from sidecar.core.states import Event, after


class _RecordState(enum.Enum):
    PUTTING = "is on its way to the store"
    WAITING = "waits in the store"
    LOADED = "is a part again"
    HALVED = "is replaced by halves that do not count yet"
    ENDED = "is no longer needed"


RECORDS: Mapping[tuple[_RecordState, Event], _RecordState] = {
    (_RecordState.PUTTING, Event.STORED): _RecordState.WAITING,
    (_RecordState.WAITING, Event.LOADED): _RecordState.LOADED,
    (_RecordState.WAITING, Event.ENDED): _RecordState.ENDED,  # it never counted
    (_RecordState.LOADED, Event.FAILED): _RecordState.WAITING,
    (_RecordState.LOADED, Event.REPLACED): _RecordState.HALVED,
    (_RecordState.LOADED, Event.ENDED): _RecordState.ENDED,
    (_RecordState.HALVED, Event.ENDED): _RecordState.ENDED,
}


@dataclass(slots=True, eq=False)
class _Record:
    parked: Parked
    state: _RecordState
    part: Part | None = None
    """While it is on the way, the part that it replaces; None for halves of a record."""
    is_orphan: bool = False
    """Whether it is a half that was found without its whole."""
    counts: bool = True
    second: int = 0
    """The number of the second half that replaces it."""

    def __str__(self) -> str:
        return f"record {self.parked.number}"

    def move(self, event: Event) -> None:
        self.state = after(RECORDS, self, self.state, event)


class ParkedRecords:
    """Records by number. A stored record is not sent until it is loaded."""

    def __init__(self) -> None:
        self.acknowledged = 0
        """The number in the state: the store has all records up to it."""
        self._last = 0
        self._proved = 0
        """The last number in a committed state: only records up to it are sent."""
        self._removable = -1
        """Records up to this number may be removed: a commit has proved it, and their ids are durable."""
        self.putting: dict[int, _Record] = {}
        """Records on the way to the store."""
        self.stored: dict[int, _Record] = {}
        self.loaded: dict[int, _Record] = {}
        """Stored records that are parts at present, or were replaced by halves."""
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        """First offset and number of records that are not loaded, and are stored or halves, by group, in order."""
        self._unproved_ids: deque[tuple[int, bytes]] = deque()
        """Message ids of stored records that no commit of this owner counts yet: a successor may send another part."""
        self._ended: list[_Record] = []
        self.groups: Counter[str] = Counter()
        """Number of records by group, with those on the way."""

    @property
    def is_proved(self) -> bool:
        """Whether a commit has proved this ownership. Before that nothing may be removed.

        Nor may parts be parked before: their number would let records count that must be removed.
        """
        return self._removable >= 0

    # Taking over

    def restore(self, found: Iterable[Parked], counted: int) -> None:
        """Take over what the store has, before anything else.

        Args:
            counted: The last number that counts.
        """
        found = sorted(found, key=attrgetter("number"))
        # Halves whose whole is gone have counted, though the broker may have lost the commit that said so.
        wholes = {0, *(record.number for record in found)}
        orphans = {record.number for record in found if record.half_of not in wholes}
        void = {record.number for record in found if record.number > counted} - orphans
        void |= _replaced([record for record in found if record.number <= counted])
        members: dict[str, BitMap64] = {}
        self._last = max([counted, *(record.number for record in found)])
        self.acknowledged = counted
        # Durable once this owner has committed: if the broker loses the commit that counts them, they are read again.
        self._unproved_ids.extend((each.number, each.ids) for each in found if each.number <= counted)
        for parked in found:
            known = members.setdefault(parked.home, BitMap64())
            record = _Record(parked._replace(ids=b""), _RecordState.WAITING, is_orphan=parked.number in orphans)
            # After an operator's reset all count, including parts parked again because a commit had failed.
            if parked.number in void or not parked.offsets.isdisjoint(known):
                record.move(Event.ENDED)
                record.counts = False
                self._ended.insert(0, record)  # halves before their whole: without it, they count
            else:
                known |= parked.offsets
                self.groups[parked.group] += 1
                self.stored[parked.number] = record
                self._queue(parked)

    def _queue(self, parked: Parked) -> None:
        insort(self._waiting.setdefault(parked.group, []), (parked.lowest, parked.number))

    # Parking

    def park(self, part: Part, half: tuple[str, int, int, list[Fragment]] | None = None) -> Parked:
        """A record for a part; it is on the way to the store from now on.

        Args:
            half: Scope, first and last offset and fragments of a half of the part, which is a record already.
        """
        if half is None:
            part.move(Event.ASKED)
        scope, first, last, fragments = half or (part.scope, part.first, part.last, part.fragments)
        self._last += 1
        offsets = BitMap64(offset for fragment in fragments for offset in fragment.offsets)
        parked = Parked(
            self._last, scope, part.home, part.group, first, last, offsets, sum(map(body_bytes, fragments)),
            part.attempts, part.intent.tries.seconds, part.intent.record or 0, array("q", ids_of(fragments)).tobytes(),
        )  # fmt: skip
        self.putting[parked.number] = _Record(parked, _RecordState.PUTTING, None if half else part)
        self.groups[parked.group] += 1
        return parked

    def expects(self, parked: Parked) -> bool:
        """Whether this record is on the way to the store."""
        putting = self.putting.get(parked.number)
        return putting is not None and putting.parked is parked

    def store(self, number: int) -> list[Part]:
        """Note that the store has all records up to a number; return the parts of the partition that they replace."""
        parts = []
        for each in [each for each in self.putting if each <= number]:
            record = self.stored[each] = self.putting.pop(each)
            record.move(Event.STORED)
            self._unproved_ids.append((each, record.parked.ids))
            record.parked = record.parked._replace(ids=b"")
            if record.part is not None:
                self._queue(record.parked)
                parts.append(record.part)
                record.part = None
        # Two halves count together.
        is_first_half = any(number == record.second - 1 for record in self.loaded.values())
        self.acknowledged = max(self.acknowledged, number - is_first_half)
        return parts

    def committed(self, parked: int) -> list[int]:
        """Note that a state with this number was committed; return the message ids that it settles."""
        before, self._proved = self._proved, parked
        for number in [number for number, record in self.loaded.items() if 0 < record.second <= parked]:
            self.end_record(number)
        ids: array[int] = array("q")
        while self._unproved_ids and self._unproved_ids[0][0] <= parked:
            ids.frombytes(self._unproved_ids.popleft()[1])
        self._removable = before if ids else parked
        return ids.tolist()

    # Sending

    def following(self, group: str) -> Parked | None:
        """The next record of a group to load, with the lowest first offset; None if none may be loaded.

        None may be loaded before a commit has proved the ownership: if one is refused, its halves are stored, and would
        count for the next owner as if this one had been proved.
        """
        for _, number in self._waiting.get(group, ()) if self.is_proved else ():
            record = self.stored.get(number)
            return record.parked if record and (number <= self._proved or record.is_orphan) else None
        return None

    def load(self, number: int) -> None:
        """Note that the record is a part again."""
        record = self.loaded[number] = self.stored[number]
        record.move(Event.LOADED)
        waiting = self._waiting[record.parked.group]
        del waiting[bisect_left(waiting, (record.parked.lowest, number))]
        if not waiting:
            del self._waiting[record.parked.group]

    def unload(self, part: Part) -> None:
        """Let the record of a part that was dropped wait again."""
        assert part.intent.record is not None
        record = self.loaded.pop(part.intent.record)
        record.move(Event.FAILED)
        record.parked = record.parked._replace(attempts=part.attempts, seconds=part.intent.tries.seconds)
        self._queue(record.parked)

    def halve(self, part: Part, pieces: Sequence[list[Fragment]]) -> list[Parked]:
        """Replace the record of a part by those of its halves, once they are stored and that is committed."""
        assert part.intent.record is not None
        record, halves = self.loaded[part.intent.record], list[Parked]()
        record.move(Event.REPLACED)
        bounds = (part.first, pieces[0][-1].last), (pieces[1][0].first, part.last)
        for (first, last), piece in zip(bounds, pieces, strict=True):
            halves.append(self.park(part, (part.home, first, last, piece)))
            self._queue(halves[-1])  # at once: they go before all others of the group that are behind them
        record.second = halves[-1].number
        return halves

    def end_record(self, number: int) -> None:
        """End a record: all of its messages have their outcome, or are in other records."""
        record = self.stored.pop(number)
        record.move(Event.ENDED)
        del self.loaded[number]
        self._ended.append(record)

    def take_ended(self) -> tuple[list[int], list[str]]:
        """Forget the records that are no longer needed.

        Returns:
            Their numbers, in the order in which they must be removed; and the group of each that counted.
        """
        if not self.is_proved:
            return [], []
        ended = [each for each in self._ended if not each.counts or each.parked.number <= self._removable]
        self._ended = [each for each in self._ended if each.counts and each.parked.number > self._removable]
        groups = [each.parked.group for each in ended if each.counts]
        self.groups.subtract(groups)
        return [each.parked.number for each in ended], groups

    def is_first(self, part: Part) -> bool:
        """Whether no record of the part's group that is not loaded comes before it."""
        waiting, record = self._waiting.get(part.group), part.intent.record
        return not waiting or (part.fragments[0].first, inf if record is None else record) < waiting[0]


def _replaced(found: Sequence[Parked]) -> set[int]:
    """Numbers of records that their halves replace, and of halves without the other one, which replace nothing.

    A whole is removed before its halves are: where it is gone, they count.
    """
    replaced: set[int] = set()
    wholes = {record.number: record for record in found}
    halves: dict[int, list[Parked]] = {}
    for record in found:
        if record.half_of in wholes:
            halves.setdefault(record.half_of, []).append(record)
    for number, both in halves.items():
        is_complete = sum(len(half.offsets) for half in both) == len(wholes[number].offsets)
        replaced |= {number} if is_complete else {half.number for half in both}
    return replaced
