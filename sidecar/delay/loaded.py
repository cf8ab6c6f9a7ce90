"""The hours that are loaded: a wheel for each partition that has messages there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from sidecar.delay.blocks import NO_POSITION, ROW_BYTES, ROW_TYPE
from sidecar.delay.hour import Damage, HourFile
from sidecar.delay.lane import Lane
from sidecar.delay.left import Left
from sidecar.delay.wheel import LaneWheel, Partitions, Positions

LOADED_MESSAGES_MAX = 4_000_000
"""Messages of loaded hours from which on the hours are unloaded that were loaded first."""


class Loaded:
    """Wheels by hour and partition. A wheel has what a partition has at or above its cursor.

    Args:
        lanes: The partitions by number.
        left: Is corrected when an hour is loaded.
        damages: Gets what cannot be read any more.
    """

    def __init__(self, lanes: Sequence[Lane], left: Left, damages: list[Damage]) -> None:
        self._lanes, self._left, self._damages = lanes, left, damages
        self._hours: dict[int, tuple[HourFile, dict[int, LaneWheel]]] = {}
        """A wheel that is missing is made when it is needed."""

    def get(self, number: int, hour: int) -> LaneWheel | None:
        """The wheel of a partition, if there is one."""
        return self._hours[hour][1].get(number) if hour in self._hours else None

    def add(self, number: int, file: HourFile, count: int, *, is_first: bool) -> None:
        """Add the messages that were put last.

        Args:
            number: Their partition.
            file: Their hour.
            count: How many.
            is_first: Whether the partition had nothing there that was not ended.
        """
        if file.hour not in self._hours:
            return
        wheels = self._hours[file.hour][1]
        if is_first and number not in wheels:
            wheels[number] = LaneWheel(np.empty(0, np.uint64), np.empty(0, np.uint32))
        if (wheel := wheels.get(number)) is not None:
            rows = np.frombuffer(bytes(file.pending.table[-count * ROW_BYTES :]), ROW_TYPE)
            for index, position in enumerate(rows["position"].tolist(), file.count - count):
                wheel.add(position, index)

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

    def forget(self, number: int) -> None:
        """Forget a partition's wheels, because its cursor was moved."""
        for _, wheels in self._hours.values():
            wheels.pop(number, None)

    def recount(self, file: HourFile, numbers: Collection[int]) -> None:
        """Count what partitions have at or above their cursors.

        Raises:
            OSError: The file cannot be read.
        """
        positions, partitions = file.columns()
        alive = _alive(file)
        if np.any(positions[alive] == NO_POSITION):
            self._damages += file.load()  # which tells of what is lost
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
