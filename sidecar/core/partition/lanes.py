"""The open messages of each group in one partition, and the parts cut of them that are not settled."""

from __future__ import annotations

from sidecar.core.batching import Buffer
from sidecar.core.partition_state import lane_key
from sidecar.core.parts import Part


class Lane:
    """The open messages of one group in one partition.

    Args:
        group: The group.
        separator: The rows' separator.
    """

    __slots__ = ("buffer", "group", "key", "live")

    def __init__(self, group: str, separator: bytes) -> None:
        self.group = group
        self.key = lane_key(group)
        self.buffer = Buffer(separator)
        self.live: list[Part] = []
        """Parts not settled, by first offset: in order, only the first is sent."""


class Lanes(dict[str, Lane]):
    """Lanes by group: of those alone that have something open or not settled, so that idle groups take no memory.

    Args:
        separator: The rows' separator.
    """

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self._separator = separator

    def of(self, group: str) -> Lane:
        """The lane of `group`, begun when it has none."""
        lane = self.get(group)
        if lane is None:
            lane = self[group] = Lane(group, self._separator)
        return lane

    def open(self) -> list[Lane]:
        """Those with open messages."""
        return [lane for lane in self.values() if lane.buffer.fragments]

    def remove(self, part: Part) -> None:
        """The part is live no more; a lane that has nothing else goes with it."""
        lane = self[part.group]
        lane.live.remove(part)
        if not lane.live and not lane.buffer.fragments:
            del self[part.group]

    def parts(self) -> list[Part]:
        """All parts that are not settled."""
        return [part for lane in self.values() for part in lane.live]
