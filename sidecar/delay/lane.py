"""What a store of held messages knows of one partition. Knows no file."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable

from pyroaring import BitMap64

from sidecar.delay.hours import hour_of


class Lane:
    """What a store knows of one partition."""

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

    def queue(self, hour: int) -> None:
        """Look at this hour when its time comes."""
        if hour not in self.queued:
            self.queued.add(hour)
            heapq.heappush(self.hours, hour)

    def learn(self, origins: Iterable[int]) -> None:
        """Note the origins of messages that were put."""
        self.known.update(origins)
        self.forget(self.floor)

    def forget(self, floor: int) -> None:
        """Forget the origins below this one."""
        self.floor = floor
        if self.known and self.known.min() < floor:
            self.known.remove_range(0, floor)

    def end(self, watermark: int) -> Counter[int]:
        """Forget the messages below a position that were taken; return their number by hour."""
        ended = Counter[int]()
        while self.taken and self.taken[0] < watermark:
            ended[hour_of(self.taken.popleft())] += 1
        return ended

    def taken_of(self, hour: int) -> int:
        """Number of messages of an hour that were taken and are not ended."""
        return sum(hour_of(position) == hour for position in self.taken)
