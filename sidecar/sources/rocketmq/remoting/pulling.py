"""A queue that is read by pulls: what is known of it, where it is asked for, and what its answers mean. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import Mark
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage
from sidecar.sources.rocketmq.wire.network import Link
from sidecar.sources.rocketmq.wire.requests import MASTER, Subscription

IDLE_BYTES = 4 << 10
"""Kept free for the answer of a queue that was read to its end: it comes with the first message, and so is small.

If it is not, reading of the connection stops at what may be held.
"""
ANSWER_BYTES = 256 << 10
"""What a broker puts into one answer by default, but for a single message that is larger."""


_BODY, _PROPERTIES = itemgetter(1), itemgetter(2)


class Place(NamedTuple):
    """Where to ask for messages."""

    link: Link
    is_slave: bool = False


Find: TypeAlias = Callable[[str], Place | None]
"""Where to ask, by the number of the broker that the last answer suggests; None while the queue may not be read."""


@dataclass(slots=True)
class Pulling:
    """A queue that is read."""

    tp: TopicPartition
    subscription: Subscription
    find: Find
    next: int
    """The offset to ask for."""
    given: int
    """The offset after what was handed on."""
    mark: Mark | None
    """A message that was read and proven: while it stands where it stood, the queue is what it was."""
    proven: int
    """The offset up to which what was read may be handed on."""
    last: Mark | None = None
    """The newest message that was read, if it is small."""
    may_link: bool = True
    """Whether the next answer may begin with `last`."""
    proving: bool = False
    prove_at_s: float = 0.0
    look_at_s: float = 0.0
    asked: bool = False
    not_before_s: float = 0.0
    answer_bytes: int = ANSWER_BYTES
    paused: bool = False
    suggested: str = MASTER
    """Which of the broker's machines is to be asked: a slave, while the master has too much to do."""
    master_until_s: float = 0.0
    """Until when its slaves are not asked."""
    epoch: int = 0
    """Answers to what was asked in an earlier one are dropped."""
    low: int = 0
    high: int | None = None
    end_at_s: float = 0.0
    """When its end is asked for next, while nothing is read of it."""
    held: list[StoredMessage] = field(default_factory=list)
    """What was read and not handed on."""
    held_bytes: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the last answer told of nothing more."""
        return self.high is not None and self.high <= self.next

    @property
    def reserved_bytes(self) -> int:
        """Kept free for the next answer."""
        return IDLE_BYTES if self.is_at_end else self.answer_bytes


def size_bytes(messages: Sequence[StoredMessage]) -> int:
    """Of bodies and properties."""
    return sum(map(len, map(_BODY, messages))) + sum(map(len, map(_PROPERTIES, messages)))


def place_of(message: StoredMessage) -> tuple[int, int, int]:
    """The fields of its mark."""
    return message.offset, message.position, message.stored_ms


def of_slave(frame: Frame) -> Frame:
    """What a slave's answer means.

    It may lag behind, so that an offset that it does not have yet is no reason to begin anew. And one that must not be
    read answers as if nothing matched, with messages left out that it found: they are to be asked of the master.
    """
    if frame.code == Code.PULL_OFFSET_MOVED:
        return frame._replace(code=Code.PULL_NOT_FOUND)
    if frame.code == Code.PULL_RETRY_IMMEDIATELY and frame.remark == "FOUND":
        return frame._replace(code=Code.NO_PERMISSION, remark="its slave must not be read: slaveReadEnable is off")
    return frame
