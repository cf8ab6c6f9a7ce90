"""Cuts open messages of one partition into parts: within limits, and within the room for intents."""

from __future__ import annotations

from sidecar.core.batching import Limits
from sidecar.core.partition.lanes import Lane, Lanes
from sidecar.core.partition.outstanding import Outstanding
from sidecar.core.partition.passed import Passed
from sidecar.core.partition.promises import Promises
from sidecar.core.partition.reach import Reach
from sidecar.core.parts import Part


class Opening:
    """Cuts lanes. Each message of the group in an intent's range is open or in that part, and none is settled.

    Args:
        promises: Gets an intent for each cut.
        passed: Settled messages, which must not be in the range of a shared intent.
        reach: The offsets read so far.
    """

    def __init__(
        self, lanes: Lanes, promises: Promises, passed: Passed, outstanding: Outstanding, reach: Reach
    ) -> None:
        self._lanes = lanes
        self._promises = promises
        self._passed = passed
        self._outstanding = outstanding
        self._reach = reach

    def share(self, limits: Limits) -> list[Part]:
        """Cut all open lanes completely; from here on one cut serves all groups.

        If the room for intents is used up, the last part of a lane takes the rest, beyond the limits.
        """
        # Completely: a shared intent begins at the position, so a successor would take open messages below it for
        # settled.
        parts = []
        for lane in list(self._lanes.values()):
            while lane.buffer.fragments:
                whole = Limits(lane.buffer.count, lane.buffer.nbytes)
                parts.append(self._cut(lane, limits if self._promises.may_cut(lane) else whole))
        self._promises.share(self._reach.position)
        return parts

    def cut(self, lane: Lane, limits: Limits) -> list[Part]:
        """Cut the lane's first open messages into a part; if groups share intents, one part of each lane."""
        return [self._cut(lane, limits)] if self._promises.shared_from is None else self._cut_shared(limits)

    def _cut(self, lane: Lane, limits: Limits) -> Part:
        fragments = lane.buffer.take(limits)
        intent = self._promises.promise(lane.key, fragments[0].first, fragments[-1].last)
        return self._outstanding.add(lane.group, intent, fragments)

    def _cut_shared(self, limits: Limits) -> list[Part]:
        lanes = self._lanes.open()
        fits = [(lane.buffer.last_within(limits), lane.buffer.fragments[-1].last) for lane in lanes]
        short = [within for within, end in fits if within < end]
        first = min(lane.buffer.fragments[0].first for lane in lanes)
        # The range must not contain settled messages: it covers every group, and a successor would send them.
        passed = self._passed.first_from(first)
        short += [passed - 1] if passed is not None else []
        last = min(short, default=self._reach.position - 1)
        lanes = [lane for lane in lanes if lane.buffer.fragments[0].first <= last]
        intent = self._promises.promise(None, min(lane.buffer.fragments[0].first for lane in lanes), last)
        parts = [self._outstanding.add(lane.group, intent, lane.buffer.take_through(last)) for lane in lanes]
        rest = bool(short) or self._reach.replaying
        self._promises.shared_up_to(last, len(parts), self._lanes, rest=rest)
        return parts
