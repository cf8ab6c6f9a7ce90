"""Commits the starts of queues that were replaced while librocketmq read them. No reader may run meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.native.marks import Marks
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.brokers import Brokers
from sidecar.sources.rocketmq.wire.frames import Code
from sidecar.sources.rocketmq.wire.requests import Asks, commit_waves, read_offset


class Rewound(NamedTuple):
    """The start of a queue that was replaced."""

    tp: TopicPartition
    offset: int
    has_older: bool
    """Whether older messages that were read are still there: then the queue lost its end and is not new."""


class Rewinds:
    """Finds the start of replaced queues, and commits it until the brokers keep it."""

    def __init__(self, asks: Asks, brokers: Brokers, marks: Marks) -> None:
        self._asks = asks
        self._brokers = brokers
        self._marks = marks
        self._unconfirmed: dict[TopicPartition, int] = {}
        """Commits that brokers have not confirmed yet."""

    def commit(self) -> list[Rewound]:
        """Commit the starts of replaced queues.

        Queues whose broker does not answer are left out, and found again.
        """
        last_read = self._last_read()
        lows = zip(last_read, self._brokers.ask([(tp, self._asks.low(tp)) for tp in last_read]), strict=True)
        starts = [
            Rewound(tp, max(read_offset(frame), mark.offset + 1 if (mark := last_read[tp]) else 0), mark is not None)
            for tp, frame in lows
            if frame is not None and frame.code == Code.SUCCESS
        ]
        accepted = self._commit({start.tp: start.offset for start in starts})
        self._unconfirmed |= accepted
        self._marks.forget(accepted)
        return [start for start in starts if start.tp in accepted]

    def _last_read(self) -> dict[TopicPartition, QueueMark | None]:
        """The newest message that was read and is there still, of each replaced queue; None if none is."""
        last: dict[TopicPartition, QueueMark | None] = {}
        marks = self._marks.by_queue()
        asks = [(tp, self._marks.of(tp, mark)) for tp in marks for mark in marks[tp]]
        answers = iter(self._brokers.ask(asks))
        for tp in marks:
            checked = [(mark, frame and mark.stands(frame)) for mark, frame in zip(marks[tp], answers, strict=False)]
            if checked[0][1] is False and None not in (stands for _, stands in checked):
                last[tp] = next((mark for mark, stands in checked if stands), None)
        return last

    def are_kept(self) -> bool:
        """Whether brokers have all commits; missing ones are committed again.

        A broker may process the last commits of a killed reader later, and may forget offsets while a topic is deleted.
        """
        asks = [(tp, self._asks.committed(tp)) for tp in self._unconfirmed]
        kept = {
            tp: read_offset(frame) if frame.code == Code.SUCCESS else -1
            for (tp, _), frame in zip(asks, self._brokers.ask(asks), strict=True)
            if frame is not None
        }
        missing = {tp: self._unconfirmed[tp] for tp, offset in kept.items() if offset != self._unconfirmed[tp]}
        self._unconfirmed = self._commit(missing)
        return not self._unconfirmed

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit; return the offsets that were accepted."""
        accepted: dict[TopicPartition, int] = {}
        for tps in commit_waves(offsets):
            answers = self._brokers.ask([(tp, self._asks.commit(tp, offsets[tp])) for tp in tps])
            codes = [frame.code if frame else None for frame in answers]
            accepted |= {tp: offsets[tp] for tp, code in zip(tps, codes, strict=True) if code == Code.SUCCESS}
        return accepted
