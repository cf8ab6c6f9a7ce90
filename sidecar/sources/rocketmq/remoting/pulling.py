"""A queue that is pulled, and proofs that it is still the one that was read. Hands nothing on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored
from sidecar.sources.rocketmq.wire.network import Link
from sidecar.sources.rocketmq.wire.requests import MASTER, Asks, Subscription, read_offset

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

    A slave may lag behind, so an offset that it does not have yet is no reason to start over. A slave that must not be
    read answers as if no message matched; the messages that it left out must be read from the master.
    """
    if frame.code == Code.PULL_OFFSET_MOVED:
        return frame._replace(code=Code.PULL_NOT_FOUND)
    if frame.code == Code.PULL_RETRY_IMMEDIATELY and frame.remark == "FOUND":
        return frame._replace(code=Code.NO_PERMISSION, remark="its slave must not be read: slaveReadEnable is off")
    return frame


PULL_TIMEOUT_S = 20.0
AT_ONCE = 4
"""Limit of requests under way: each is answered with a whole message of whatever size, beside the memory budget."""
EMPTY_DELAY_S, REFUSED_DELAY_S = 0.05, 1.0


@dataclass(slots=True)
class Findings:
    """Results of answers about queues."""

    moved: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Queues to take again: the offset that an operator set, or None if their own offset cannot be read."""
    replaced: set[TopicPartition] = field(default_factory=set)
    """Queues that were replaced: the last message read is no longer there."""
    found: dict[TopicPartition, QueueMark] = field(default_factory=dict)
    """Marks of queues from which nothing was read yet."""
    refused: dict[TopicPartition, Frame] = field(default_factory=dict)
    """The refusals of queues that cannot be read at present."""

    def forget_partition(self, tp: TopicPartition) -> None:
        self.moved.pop(tp, None)
        self.replaced.discard(tp)
        self.found.pop(tp, None)
        self.refused.pop(tp, None)


class QueueProofs:
    """Requests proof that queues are still the same."""

    def __init__(self, asks: Asks, queues: Mapping[TopicPartition, Pulling], findings: Findings) -> None:
        self._asks = asks
        self._queues = queues
        self._findings = findings
        self.wanted: set[TopicPartition] = set()
        """Queues that may need another request as proof."""
        self._under_way = 0

    def ask(self, now_s: float) -> None:
        unproven, self.wanted = self.wanted, set()
        for tp in unproven:
            queue = self._queues.get(tp)
            if queue is None or queue.proving:
                continue
            if queue.mark is None and queue.next > 0:
                self._find_mark(queue, now_s)
            elif queue.proven < queue.next:
                self.prove(queue, now_s)

    def prove(self, queue: Pulling, now_s: float) -> None:
        """Ask whether the last message read is still there: then everything read until now continues it."""
        if queue.mark is None:
            self.wanted.add(queue.tp)
            return
        epoch, upto, mark = queue.epoch, queue.next, queue.mark
        newest = further(mark, queue.held)

        def take(node: Node, frame: Frame | None) -> None:
            if queue.epoch != epoch or self._queues.get(queue.tp) is not queue:
                return
            stands = None if frame is None else mark.stands(of_slave(frame) if node.is_slave else frame)
            if stands is None:
                queue.prove_at_s = time.monotonic() + EMPTY_DELAY_S
            elif stands:
                queue.proven, queue.mark = upto, newest
                if queue.proven < queue.next:
                    self.prove(queue, time.monotonic())
            else:
                self._findings.replaced.add(queue.tp)

        self._ask(queue, mark.offset, now_s, take)

    def _ask(self, queue: Pulling, offset: int, now_s: float, take: Callable[[Node, Frame | None], None]) -> bool:
        """Ask for the message at an offset; whether that is possible now. A reset in the answer is not passed on."""
        node = queue.find(MASTER)
        if queue.prove_at_s > now_s or node is None or not node.link.is_up or self._under_way >= AT_ONCE:
            self.wanted.add(queue.tp)
            return False
        queue.proving = True
        self._under_way += 1

        def answered(frame: Frame | None) -> None:
            queue.proving = False
            self._under_way -= 1
            self.wanted.add(queue.tp)
            if frame is None or not self.was_reset(queue, offset, node, frame):
                take(node, frame)

        node.link.ask(self._asks.one(queue.tp, offset), answered, PULL_TIMEOUT_S)
        return True

    def _find_mark(self, queue: Pulling, now_s: float) -> None:
        """Get a mark of a queue from which nothing was read yet, and which is not read from its first message."""
        epoch = queue.epoch

        def take(node: Node, frame: Frame | None) -> None:
            if frame is None:
                return
            if not node.is_slave:
                self.look_at_low(queue, frame)
            if (
                frame.code == Code.SUCCESS
                and queue.epoch == epoch
                and self._queues.get(queue.tp) is queue
                and not queue.mark
            ):
                queue.mark = self._findings.found[queue.tp] = QueueMark(*place_of(as_stored(frame.body)[0]))

        if self._ask(queue, max(queue.low, queue.next - 1), now_s, take):
            queue.prove_at_s = now_s + REFUSED_DELAY_S

    def look_at_low(self, queue: Pulling, frame: Frame) -> None:
        """Check the first offset, which never decreases: without a mark, a lower one means that the queue is new."""
        if "minOffset" in frame.fields:
            low = read_offset(frame, "minOffset")
            if low < queue.low and queue.mark is None:
                self._findings.replaced.add(queue.tp)
            queue.low = max(queue.low, low)

    def was_reset(self, queue: Pulling, asked: int, node: Node, frame: Frame) -> bool:
        """Whether an operator set another offset: a broker reports that once, in any answer, however late."""
        if frame.code != Code.PULL_OFFSET_MOVED or node.is_slave or queue.tp not in self._queues:
            return False
        if not read_offset(frame, "minOffset") <= asked <= read_offset(frame, "maxOffset"):
            return False
        self._findings.moved[queue.tp] = read_offset(frame, "nextBeginOffset")
        return True


def further(mark: QueueMark | None, messages: Sequence[StoredMessage]) -> QueueMark | None:
    """The newest mark: one beyond the messages that are read again shows if the queue loses its end meanwhile."""
    if messages and (mark is None or mark.offset < messages[-1].offset):
        return QueueMark(*place_of(messages[-1]))
    return mark
