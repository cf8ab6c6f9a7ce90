"""Readers of the hours, one for each partition: how far they are, what is left for them, and their wheels.

Knows no log.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from sidecar.delay.disk.blocks import NO_POSITION, POSITION_MAX, ROW_BYTES, ROW_TYPE
from sidecar.delay.disk.hour import FileDamage, HourFile
from sidecar.delay.disk.hours import PARKED_HOUR, hour_of
from sidecar.delay.disk.wheel import LaneWheel, Partitions, Positions

LOADED_MESSAGES_MAX = 4_000_000
"""Messages of loaded hours above which the hours loaded first are unloaded."""


DROPPED = POSITION_MAX + 1
"""Watermark of a partition that was dropped: its rows are below it, wherever they are."""


class PartitionReader:
    """A store's knowledge of one partition."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.floor = 0
        """Smaller origins are forgotten."""
        self.known = BitMap64()
        """Origins of the messages that were put."""
        self.watermark = 0
        """All messages below this position are ended."""
        self.cursor = 0
        """All messages below this position were taken, or ended."""
        self.taken: deque[int] = deque()
        """Positions in [watermark, cursor) of messages that were taken."""
        self.held = 0
        """Messages that are not ended."""
        self.hours: list[int] = []
        """A heap of the hours that may have messages at or above the cursor."""
        self.queued: set[int] = set()
        """The hours in the heap."""
        self.reading: int | None = None
        """The hour of the last message that was looked for."""

    @property
    def is_dropped(self) -> bool:
        """Whether the partition was dropped: it never has messages again."""
        return self.watermark == DROPPED

    def queue(self, hour: int) -> None:
        """Look at this hour when its time comes."""
        if hour not in self.queued:
            self.queued.add(hour)
            heapq.heappush(self.hours, hour)

    def learn(self, origins: Iterable[int]) -> None:
        """Note the origins of messages that were put."""
        self.known.update(origins)
        self.forget_origins(self.floor)

    def forget_origins(self, floor: int) -> None:
        """Forget the origins below this one."""
        self.floor = floor
        if self.known and self.known.min() < floor:
            self.known.remove_range(0, floor)

    def note_taken(self, positions: Iterable[int]) -> None:
        """Count messages that came in below the cursor as taken: they come after the next rewind."""
        self.taken = deque(sorted([*self.taken, *positions]))

    def end_below(self, watermark: int) -> Counter[int]:
        """Forget the messages below a position that were taken; return their number by hour."""
        ended = Counter[int]()
        while self.taken and self.taken[0] < watermark:
            ended[hour_of(self.taken.popleft())] += 1
        return ended

    def taken_of(self, hour: int) -> int:
        """Number of messages of an hour that were taken and are not ended."""
        return sum(hour_of(position) == hour for position in self.taken)


class Left:
    """Counts by hour and partition.

    Args:
        lanes: Partitions by number; each has the sum of its counts.
        counts: By hour and partition; no zeros.
        hours: The hours that have files.
    """

    def __init__(
        self, lanes: Sequence[PartitionReader], counts: dict[int, dict[int, int]], hours: Iterable[int]
    ) -> None:
        self._lanes, self._counts = lanes, counts
        hours = list(hours)
        self.empty = {hour for hour in hours if hour not in counts}
        """Hours with files that have nothing left."""
        self.fewer = set[int]()
        """Hours where messages were ended since the store measured the space that they take up."""
        for of_hour in counts.values():
            for number, count in of_hour.items():
                lanes[number].held += count

    def get(self, number: int, hour: int) -> int:
        """Number of messages."""
        return self._counts[hour].get(number, 0) if hour in self._counts else 0

    def set(self, number: int, hour: int, count: int) -> None:
        """Change the number of messages."""
        if count == self.get(number, hour):
            return
        of_hour = self._counts.setdefault(hour, {})
        self._lanes[number].held += count - of_hour.get(number, 0)
        self.fewer.add(hour)
        if count:
            of_hour[number] = count
            self.empty.discard(hour)
        else:
            of_hour.pop(number, None)
            if not of_hour:
                del self._counts[hour]
                self.empty.add(hour)

    def add_count(self, number: int, hour: int, count: int) -> int:
        """Count messages that were put; return the number before."""
        of_hour = self._counts.get(hour)
        if of_hour is None:
            of_hour = self._counts[hour] = {}
        had = of_hour.get(number, 0)
        of_hour[number] = had + count
        self._lanes[number].held += count
        self.empty.discard(hour)
        return had

    def total(self, hour: int) -> int:
        """Number of messages of all partitions."""
        return sum(self._counts[hour].values()) if hour in self._counts else 0

    def hours(self, number: int) -> list[int]:
        """The hours where a partition has something left."""
        return [hour for hour, of_hour in self._counts.items() if number in of_hour]

    def between(self, numbers: Set[int], first: int, last: int) -> list[int]:
        """The hours in [first, last] where any of these partitions has something left, in order."""
        hours = sorted(hour for hour in self._counts if first <= hour <= last)
        return [hour for hour in hours if not numbers.isdisjoint(self._counts[hour])]

    def totals(self, without: Collection[int] = ()) -> dict[int, int]:
        """The sum of each hour in which messages are due, without these partitions."""
        totals = {hour: sum(of_hour.values()) for hour, of_hour in self._counts.items() if hour < PARKED_HOUR}
        for number in without:
            for hour in totals.keys() & self.hours(number):
                totals[hour] -= self._counts[hour][number]
        return totals

    def numbers(self, hour: int) -> list[int]:
        """The partitions that have something left in an hour."""
        return list(self._counts.get(hour, ()))

    def copy(self) -> dict[int, dict[int, int]]:
        """All counts."""
        return {hour: of_hour.copy() for hour, of_hour in self._counts.items()}


class Loaded:
    """Wheels by hour and partition. A wheel has what a partition has at or above its cursor.

    Args:
        left: Corrected when an hour is loaded.
        damages: Gets the damage that is found.
    """

    def __init__(self, lanes: Sequence[PartitionReader], left: Left, damages: list[FileDamage]) -> None:
        self._lanes, self._left, self._damages = lanes, left, damages
        self._hours: dict[int, tuple[HourFile, dict[int, LaneWheel]]] = {}
        """A wheel that is missing is made when it is needed."""

    def __contains__(self, hour: int) -> bool:
        return hour in self._hours

    def get(self, number: int, hour: int) -> LaneWheel | None:
        """The wheel of a partition, if there is one."""
        return self._hours[hour][1].get(number) if hour in self._hours else None

    def add_put(self, number: int, file: HourFile, count: int, *, is_first: bool) -> None:
        """Add the messages that were put last.

        Args:
            is_first: Whether the partition had nothing there that was not ended.
        """
        if file.hour not in self._hours:
            return
        wheels = self._hours[file.hour][1]
        if is_first and number not in wheels:
            wheels[number] = LaneWheel(np.empty(0, np.uint64), np.empty(0, np.uint32))
        if (wheel := wheels.get(number)) is not None:
            rows = np.frombuffer(bytes(file.pending.table[-count * ROW_BYTES :]), ROW_TYPE)
            cursor = self._lanes[number].cursor
            for index, position in enumerate(rows["position"].tolist(), file.count - count):
                if position >= cursor:
                    wheel.add_position(position, index)

    def wheel(self, number: int, file: HourFile) -> LaneWheel:
        """The wheel of a partition; the hour is loaded if it is not.

        Raises:
            OSError: The file cannot be read.
        """
        self._lanes[number].reading = file.hour
        wheels = self._hours[file.hour][1] if file.hour in self._hours else self._load(file)
        wheel = wheels.get(number)
        if wheel is None:
            positions, partitions = file.columns()
            places = np.flatnonzero(_alive(file) & self._to_take(number, positions, partitions))
            wheel = wheels[number] = LaneWheel(positions[places], places.astype(np.uint32))
        return wheel

    def _to_take(self, number: int, positions: Positions, partitions: Partitions) -> NDArray[np.bool_]:
        cursor = np.uint64(self._lanes[number].cursor)
        return np.logical_and.reduce([partitions == number, positions >= cursor, positions != NO_POSITION])  # type: ignore[no-any-return]

    def _load(self, file: HourFile) -> dict[int, LaneWheel]:
        self._unload_some()
        self._damages += file.load()
        positions, partitions = file.columns()
        alive = np.flatnonzero(_alive(file)).astype(np.uint32)
        order = alive[np.argsort(partitions[alive], kind="stable")]
        found, starts = np.unique(partitions[order], return_index=True)
        wheels: dict[int, LaneWheel] = {}
        for number, mine in zip(found.tolist(), np.split(order, starts[1:]) if len(found) else (), strict=True):
            mine = mine[positions[mine] >= np.uint64(self._lanes[number].cursor)]
            wheels[number] = LaneWheel(positions[mine], mine)
        self._hours[file.hour] = file, wheels
        for number in {*wheels, *self._left.numbers(file.hour)}:
            count = len(wheels[number]) if number in wheels else 0
            self._left.set(number, file.hour, count + self._lanes[number].taken_of(file.hour))
        return wheels

    def _unload_some(self) -> None:
        """Unload the hours that no partition reads, and if they are too large, those that were loaded first."""
        reading = {lane.reading for lane in self._lanes}
        messages = sum(file.count for file, _ in self._hours.values())
        for file, _ in list(self._hours.values()):
            if file.hour not in reading or messages > LOADED_MESSAGES_MAX:
                messages -= file.count
                self.unload(file)

    def unload(self, file: HourFile) -> None:
        """Forget an hour's wheels."""
        self._hours.pop(file.hour, None)
        file.unload()

    def forget_wheels(self, number: int) -> None:
        """Forget a partition's wheels, because its cursor was moved."""
        for _, wheels in self._hours.values():
            wheels.pop(number, None)

    def check(self, file: HourFile) -> None:
        """Find messages of a file that cannot be read: they count as ended.

        Raises:
            OSError: The file cannot be read.
        """
        self._damages += file.load()
        self.unload(file)
        self.recount(file, self._left.numbers(file.hour))

    def recount(self, file: HourFile, numbers: Collection[int]) -> None:
        """Count what partitions have at or above their cursors.

        Raises:
            OSError: The file cannot be read.
        """
        positions, partitions = file.columns()
        alive = _alive(file)
        if np.any(positions[alive] == NO_POSITION):
            self._damages += file.load()  # which reports the losses
            self.unload(file)
            alive = _alive(file)
        for number in numbers:
            count = np.count_nonzero(alive & self._to_take(number, positions, partitions))
            self._left.set(number, file.hour, int(count) + self._lanes[number].taken_of(file.hour))


def _alive(file: HourFile) -> NDArray[np.bool_]:
    """Which messages are not cancelled, and can be read."""
    alive = np.ones(file.count, np.bool_)
    alive[np.fromiter(file.settled, np.int64, len(file.settled))] = False
    return alive
