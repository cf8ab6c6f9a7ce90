"""The parked parts of one partition, and those on the way to the store. Knows no batch and no clock.

A parked part is a record in the store, with a number. It counts if the partition's state has this number or a higher
one: such a state no longer has the part's intent. So one commit moves the part from the state to the store.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from pyroaring import BitMap64

from sidecar.core.batching import ids_of
from sidecar.core.parts import Part
from sidecar.core.records import Parked


class _EndedRecord(NamedTuple):
    """A record that is no longer needed."""

    number: int
    group: str | None
    """None if it never counted."""


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
        self._putting: dict[int, tuple[Parked, Part | None]] = {}
        self._records: dict[int, Parked] = {}
        """All stored records."""
        self._orphans: set[int] = set()
        """Numbers of halves that were found without their whole."""
        self.loaded: set[int] = set()
        """Numbers of the records that are parts at present, or were replaced by halves."""
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        """First offset and number of records that are not loaded, and are stored or halves, by group, in order."""
        self._unproved_ids: deque[tuple[int, bytes]] = deque()
        """Message ids of stored records that no commit of this owner counts yet: a successor may send another part."""
        self._halved: dict[int, int] = {}
        """Numbers of records that are replaced by halves, with that of the second half."""
        self._ended: list[_EndedRecord] = []
        self.groups: Counter[str] = Counter()
        """Number of records by group, with those on the way."""

    @property
    def is_proved(self) -> bool:
        """Whether a commit has proved this ownership. Before that nothing may be removed.

        Nor may parts be parked before: their number would let records count that must be removed.
        """
        return self._removable >= 0

    @property
    def is_busy(self) -> bool:
        """Whether records are on the way to the store."""
        return bool(self._putting)

    # Taking over

    def restore(self, found: Iterable[Parked], counted: int) -> None:
        """Take over what the store has, before anything else.

        Args:
            counted: The last number that counts.
        """
        found = sorted(found, key=attrgetter("number"))
        # Halves whose whole is gone have counted, though the broker may have lost the commit that said so.
        wholes = {0, *(record.number for record in found)}
        self._orphans = {record.number for record in found if record.half_of not in wholes}
        void = {record.number for record in found if record.number > counted} - self._orphans
        void |= _replaced([record for record in found if record.number <= counted])
        members: dict[str, BitMap64] = {}
        self._last = max([counted, *(record.number for record in found)])
        self.acknowledged = counted
        # Durable once this owner has committed: if the broker loses the commit that counts them, they are read again.
        self._unproved_ids.extend((each.number, each.ids) for each in found if each.number <= counted)
        for record in found:
            known = members.setdefault(record.home, BitMap64())
            # After an operator's reset all count, including parts parked again because a commit had failed.
            if record.number in void or not record.offsets.isdisjoint(known):
                self._ended.insert(
                    0, _EndedRecord(record.number, None)
                )  # halves before their whole: without it, they count
            else:
                known |= record.offsets
                self.groups[record.group] += 1
                self._records[record.number] = record._replace(ids=b"")
                self._queue(record)

    def _queue(self, record: Parked) -> None:
        insort(self._waiting.setdefault(record.group, []), (record.lowest, record.number))

    # Parking

    def park(self, part: Part, *, half_of: int = 0) -> Parked:
        """A record for a part; it is on the way to the store from now on.

        A half of a record is not one of the partition's parts.
        """
        self._last += 1
        offsets = BitMap64(offset for fragment in part.fragments for offset in fragment.offsets)
        tries = part.intent.tries
        record = Parked(
            self._last, part.scope, part.home, part.group, part.first, part.last, offsets, part.nbytes,
            part.life.attempts, tries.seconds, half_of, array("q", ids_of(part.fragments)).tobytes(),
        )  # fmt: skip
        self._putting[record.number] = record, None if half_of else part
        self.groups[record.group] += 1
        return record

    def expects(self, record: Parked) -> bool:
        """Whether this record is on the way to the store."""
        putting = self._putting.get(record.number)
        return putting is not None and putting[0] is record

    def stored(self, number: int) -> list[Part]:
        """Note that the store has all records up to a number; return the parts of the partition that they replace."""
        parts = []
        for each in [each for each in self._putting if each <= number]:
            record, part = self._putting.pop(each)
            self._unproved_ids.append((each, record.ids))
            self._records[record.number] = record._replace(ids=b"")
            if part is not None:
                self._queue(record)
                parts.append(part)
        # Two halves count together.
        is_first_half = number in {second - 1 for second in self._halved.values()}
        self.acknowledged = max(self.acknowledged, number - is_first_half)
        return parts

    def committed(self, parked: int) -> list[int]:
        """Note that a state with this number was committed; return the message ids that it settles."""
        before, self._proved = self._proved, parked
        for number in [number for number, second in self._halved.items() if second <= parked]:
            del self._halved[number]
            self.end(number)
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
            return self._records[number] if number <= self._proved or number in self._orphans else None
        return None

    def load(self, record: Parked) -> None:
        """Note that the record is a part again."""
        self.loaded.add(record.number)
        self._remove(record)

    def unload(self, number: int, attempts: int, seconds: int) -> None:
        """Let the record of a dropped part wait again."""
        self.loaded.discard(number)
        record = self._records[number] = self._records[number]._replace(attempts=attempts, seconds=seconds)
        self._queue(record)

    def halve(self, number: int, halves: Iterable[Part]) -> list[Parked]:
        """Replace a record by those of its halves, once they are stored and that is committed."""
        records = [self.park(half, half_of=number) for half in halves]
        for record in records:  # at once: they go before all others of the group that are behind them
            self._queue(record)
        self._halved[number] = records[-1].number
        return records

    def record(self, number: int) -> Parked:
        """A stored record."""
        return self._records[number]

    def records(self) -> Iterable[Parked]:
        """All stored records."""
        return self._records.values()

    def _remove(self, record: Parked) -> None:
        waiting = self._waiting[record.group]
        del waiting[bisect_left(waiting, (record.lowest, record.number))]
        if not waiting:
            del self._waiting[record.group]

    def end(self, number: int) -> None:
        """End a record: all of its messages have their outcome, or are in other records."""
        record = self._records.pop(number)
        self.loaded.discard(number)
        self._ended.append(_EndedRecord(number, record.group))

    def take_ended(self) -> list[_EndedRecord]:
        """Remove and return the records that are no longer needed."""
        if not self.is_proved:
            return []
        ended = [each for each in self._ended if each.group is None or each.number <= self._removable]
        self._ended = [each for each in self._ended if not (each.group is None or each.number <= self._removable)]
        self.groups.subtract(each.group for each in ended if each.group is not None)
        return ended

    def is_loaded(self, group: str) -> bool:
        """Whether a record of the group is a part at present."""
        return any(self._records[number].group == group for number in self.loaded)

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
