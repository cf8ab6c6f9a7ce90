"""State of a queue that is read by pulls, its node, and the meaning of its answers. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage
from sidecar.sources.rocketmq.wire.network import Link
from sidecar.sources.rocketmq.wire.requests import MASTER, Subscription

IDLE_BYTES = 4 << 10
"""Room reserved for the answer of a queue that was read to its end: it comes with the first message, so it is small.

If it is not, the connection is not read beyond the limit of held messages.
"""
ANSWER_BYTES = 256 << 10
"""Largest answer of a broker by default, except for a single larger message."""


_BODY, _PROPERTIES = itemgetter(1), itemgetter(2)


class Node(NamedTuple):
    """A node to request messages from."""

    link: Link
    is_slave: bool = False


Find: TypeAlias = Callable[[str], Node | None]
"""Returns the node to ask, by the broker number that the last answer suggests; None while reading is not allowed."""


@dataclass(slots=True)
class Pulling:
    """A queue that is read."""

    tp: TopicPartition
    subscription: Subscription
    find: Find
    next: int
    """The offset to ask for."""
    given: int
    """The offset after the last message handed on."""
    mark: QueueMark | None
    """A message that was read and proven: while it is still at its offset, the queue is the same."""
    proven: int
    """Messages below this offset may be handed on."""
    last: QueueMark | None = None
    """The newest message read, if it is small."""
    may_link: bool = True
    """Whether the next answer may begin with `last`."""
    proving: bool = False
    prove_at_s: float = 0.0
    look_at_s: float = 0.0
    asked: bool = False
    not_before_s: float = 0.0
    answer_bytes: int = 0
    """Likely size of the next answer, 0 before the first."""
    paused: bool = False
    suggested: str = MASTER
    """Number of the broker to ask: a slave's, if the master suggests it."""
    master_until_s: float = 0.0
    """Slaves are not asked before this time."""
    epoch: int = 0
    """Answers to requests of an earlier epoch are dropped."""
    low: int = 0
    high: int | None = None
    end_at_s: float = 0.0
    """Time of the next request for a paused queue's end."""
    held: list[StoredMessage] = field(default_factory=list)
    """Messages read and not yet handed on."""
    held_bytes: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether no message was left after the last answer."""
        return self.high is not None and self.high <= self.next


def size_bytes(messages: Sequence[StoredMessage]) -> int:
    """Bytes of bodies and properties."""
    return sum(map(len, map(_BODY, messages))) + sum(map(len, map(_PROPERTIES, messages)))


def place_of(message: StoredMessage) -> tuple[int, int, int]:
    """The fields of the message's mark."""
    return message.offset, message.position, message.stored_ms


def of_slave(frame: Frame) -> Frame:
    """A slave's answer as its master would give it.

    A slave may lag behind, so an offset that it does not have yet is no reason to start anew. A slave that must not be
    read answers as if no message matched; the messages that it left out must be read from the master.
    """
    if frame.code == Code.PULL_OFFSET_MOVED:
        return frame._replace(code=Code.PULL_NOT_FOUND)
    if frame.code == Code.PULL_RETRY_IMMEDIATELY and frame.remark == "FOUND":
        return frame._replace(code=Code.NO_PERMISSION, remark="its slave must not be read: slaveReadEnable is off")
    return frame
