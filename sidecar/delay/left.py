"""How many messages of each hour and partition are not ended. Knows no file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.delay.lane import Lane


class Left:
    """Counts by hour and partition.

    Args:
        lanes: Partitions by number; each has the sum of its counts.
        counts: By hour and partition; no zeros.
        hours: The hours that have files.
    """

    def __init__(self, lanes: Sequence[Lane], counts: dict[int, dict[int, int]], hours: Iterable[int]) -> None:
        self._lanes, self._counts = lanes, counts
        self.empty = {hour for hour in hours if hour not in counts}
        """Hours with files that have nothing left."""
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
        if count:
            of_hour[number] = count
            self.empty.discard(hour)
        else:
            of_hour.pop(number, None)
            if not of_hour:
                del self._counts[hour]
                self.empty.add(hour)

    def add(self, number: int, hour: int, count: int) -> int:
        """Count messages that were put; return the number before."""
        of_hour = self._counts.setdefault(hour, {})
        had = of_hour.get(number, 0)
        of_hour[number] = had + count
        self._lanes[number].held += count
        self.empty.discard(hour)
        return had

    def hours(self, number: int) -> list[int]:
        """The hours where a partition has something left."""
        return [hour for hour, of_hour in self._counts.items() if number in of_hour]

    def numbers(self, hour: int) -> list[int]:
        """The partitions that have something left in an hour."""
        return list(self._counts.get(hour, ()))

    def copy(self) -> dict[int, dict[int, int]]:
        """All counts."""
        return {hour: of_hour.copy() for hour, of_hour in self._counts.items()}
