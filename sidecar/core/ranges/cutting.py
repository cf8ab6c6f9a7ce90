"""Open rows of one range, and their cutting into parts: a pure function of rows and pinned settings. Sends nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sidecar.core.batching import Limits
from sidecar.core.partition.lanes import Lane
from sidecar.core.partition.partition import Partition
from sidecar.core.parts import Part
from sidecar.core.records import Fragment

FLUSH_AHEAD = 256


class RangeCutter:
    """Cuts a range.

    Args:
        open_max_bytes: Size of the open rows above which the largest group is cut.
        separator: The bytes between two rows of a body.
    """

    def __init__(self, range_: Partition, limits: Limits, open_max_bytes: int, separator: bytes) -> None:
        self.cuts: Counter[str] = Counter()
        """Batches cut, by reason."""
        self._range = range_
        self._limits = limits
        self._open_max_bytes = open_max_bytes
        self._separator = separator
        self._open_bytes = 0

    def open(self, group: str, fragment: Fragment) -> Iterator[Part]:
        """Add rows; yield the parts that are full."""
        if fragment.unframeable:
            odd = Fragment((), b"", None, fragment.unframeable, fragment.at_ms)
            yield self._part_without_rows(group, odd)
            fragment = replace(fragment, unframeable=())
        if not fragment.offsets:
            return
        lane = self._range.lanes.of(group)
        self._open_bytes += lane.buffer.add(fragment)[1]
        while reason := self._full(lane):
            yield self._cut(lane, reason)

    def _part_without_rows(self, group: str, fragment: Fragment) -> Part:
        """A part of unframeable messages: they must not change where the others are cut."""
        aside = Lane(group, self._separator)
        aside.buffer.add(fragment)
        (part,) = self._range.opening.cut(aside, Limits(1, 1))
        return part

    def _full(self, lane: Lane) -> str:
        if lane.buffer.count >= self._limits.max_messages:
            return "count"
        return "bytes" if lane.buffer.nbytes >= self._limits.max_bytes else ""

    def for_memory(self) -> Iterator[Part]:
        """Cut by the size of open rows only, which follows from the rows: the batches being sent would add chance."""
        while self._open_bytes > self._open_max_bytes:
            largest = max(self._range.lanes.values(), key=lambda lane: (lane.buffer.nbytes, lane.group))
            yield self._cut(largest, "memory")

    def rest(self) -> Iterator[Part]:
        """Cut the open rows after the last row of the range, part by part as there is room."""
        for lane in list(self._range.lanes.values()):
            while lane.buffer.fragments and len(self._range.promises.intents) < FLUSH_AHEAD:
                yield self._cut(lane, "linger")  # a micro-batch lasts as long as the linger: see the trigger

    def _cut(self, lane: Lane, reason: str) -> Part:
        (part,) = self._range.opening.cut(lane, self._limits)
        self._open_bytes -= part.nbytes
        self.cuts[reason] += 1
        return part
