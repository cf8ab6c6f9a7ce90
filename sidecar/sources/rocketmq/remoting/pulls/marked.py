"""Marked messages: whether they are still at their offsets. Decides no start offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.brokers import Brokers
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import as_stored
from sidecar.sources.rocketmq.wire.network import RefusedError
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription, read_offset

MESSAGE_BYTES = 4 << 20
"""Size of the largest message by a broker's default: an answer with one message may take as much."""


class Looked(NamedTuple):
    """What is at a mark's offset."""

    answer: Frame | None
    """The broker's answer without its body, which may be large; None without an answer."""
    stands: bool | None
    """Whether it has the mark's message; None if compaction removed that."""


class UnknownError(Exception):
    """The broker's answer is inconclusive."""


class ResetError(UnknownError):
    """The broker reported a reset instead, which it does only once."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the offset was set to {offset} at this moment")
        self.offset = offset


class Marked:
    """Asks for marked messages.

    Args:
        room_bytes: Limit of messages that are requested at the same time; one is always allowed.
    """

    def __init__(self, brokers: Brokers, asks: Asks, room_bytes: int) -> None:
        self._brokers = brokers
        self._asks = asks
        self._at_once = max(1, room_bytes // MESSAGE_BYTES)

    def look(self, marks: Sequence[tuple[TopicPartition, QueueMark]]) -> Iterator[Looked]:
        """What is at these marks' offsets, a few at a time: only so many messages fit into the memory budget."""
        for at in range(0, len(marks), self._at_once):
            some = marks[at : at + self._at_once]
            asks = [(tp, self._asks.pull(tp, mark.offset, Subscription(tp.topic), messages_max=1)) for tp, mark in some]
            for (_, mark), answer in zip(some, self._brokers.ask(asks), strict=True):
                is_there = answer is not None and answer.code == Code.SUCCESS
                stands = mark.found_in(as_stored(answer.body)) if answer is not None and is_there else False
                yield Looked(answer and answer._replace(body=b""), stands)


def is_same(mark: QueueMark, looked: Looked, low: int, high: int) -> bool | None:
    """Whether the mark's message is still there, or has expired; None if compaction removed it."""
    message = looked.answer
    if message is None:
        raise UnknownError("no answer came")
    if message.code == Code.PULL_OFFSET_MOVED:  # use its own ends: the other answers may already count more messages
        ends = read_offset(message, "minOffset"), read_offset(message, "maxOffset")
        if ends[0] <= mark.offset <= ends[1]:
            raise ResetError(read_offset(message, "nextBeginOffset"))
    if mark.offset < low:
        return True
    if message.code == Code.SUCCESS:
        return looked.stands
    if mark.offset >= high:
        return False
    raise UnknownError(str(RefusedError(message, "the broker")))
