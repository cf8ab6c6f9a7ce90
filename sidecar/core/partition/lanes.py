"""The open messages of each group in one partition, and their parts that are not settled."""

from __future__ import annotations

from sidecar.core.batching import Buffer
from sidecar.core.partition_state import lane_key
from sidecar.core.parts import Part


class Lane:
    """The open messages of one group in one partition."""

    __slots__ = ("buffer", "group", "key", "live")

    def __init__(self, group: str, separator: bytes) -> None:
        self.group = group
        self.key = lane_key(group)
        self.buffer = Buffer(separator)
        self.live: list[Part] = []
        """Parts that are not settled, by first offset: with `ordered`, only the first is sent."""


class Lanes(dict[str, Lane]):
    """Lanes by group. Groups without open messages and live parts have none, so that idle groups take no memory.

    Attributes:
        separator: The rows' separator; it changes only while there is no lane.
    """

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self.separator = separator

    def of(self, group: str) -> Lane:
        """The lane of `group`, created if there is none."""
        lane = self.get(group)
        if lane is None:
            lane = self[group] = Lane(group, self.separator)
        return lane

    def open(self) -> list[Lane]:
        """The lanes with open messages."""
        return [lane for lane in self.values() if lane.buffer.fragments]

    def remove(self, part: Part) -> None:
        """Remove a part that is no longer live, and its lane if that is empty."""
        lane = self[part.group]
        lane.live.remove(part)
        if not lane.live and not lane.buffer.fragments:
            del self[part.group]

    def parts(self) -> list[Part]:
        """All parts that are not settled."""
        return [part for lane in self.values() for part in lane.live]
