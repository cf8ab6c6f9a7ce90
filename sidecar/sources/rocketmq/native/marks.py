"""Detects that queues read by librocketmq were replaced. Asks brokers, starts nothing.

If a topic is deleted and recreated, librocketmq continues at its offset, whatever is there now. So a message of each
queue is remembered and requested repeatedly: messages handed over before an answer that has it belong to the same
queue. Messages of another queue that librocketmq has read by then are handed over again, and recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import QueueMark, with_newest
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import as_stored
from sidecar.sources.rocketmq.wire.network import Ask, Link
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription

READ_S, IDLE_S = 2.0, 10.0
"""Interval of requests for a mark while messages of its queue are handed over, and otherwise."""
ANSWER_S = 5.0


@dataclass(slots=True)
class _MarkedQueue:
    marks: tuple[QueueMark, ...] = ()
    """Messages that were in the last answer, or were the queue's first; the newest first."""
    newest: QueueMark | None = None
    """The newest message handed over since."""
    asked: bool = False
    asked_s: float = 0.0


class Marks:
    """Marks of messages that were handed over, by queue.

    Args:
        link_of: The connection to a broker.
    """

    def __init__(self, asks: Asks, link_of: Callable[[str], Link | None]) -> None:
        self._asks = asks
        self._link_of = link_of
        self._queues: dict[TopicPartition, _MarkedQueue] = {}
        self.replaced: set[TopicPartition] = set()
        """Queues that were replaced, until `forget`."""

    def read(self, tp: TopicPartition, mark: QueueMark) -> None:
        """Note a message that was handed over."""
        queue = self._queues.get(tp) or self._queues.setdefault(tp, _MarkedQueue())
        if not queue.marks:
            queue.marks = (mark,)
        if queue.newest is None or mark.offset > queue.newest.offset:
            queue.newest = mark

    def ask(self, now_s: float) -> None:
        """Send the requests that are due, without waiting."""
        for tp, queue in self._queues.items():
            due_s = queue.asked_s + (READ_S if queue.newest else IDLE_S)
            link = self._link_of(tp.broker) if now_s >= due_s and not queue.asked else None
            if link is not None and link.is_up:
                queue.asked, queue.asked_s = True, now_s
                link.ask(self.of(tp, queue.marks[0]), self._answered(tp, queue), ANSWER_S)

    def _answered(self, tp: TopicPartition, queue: _MarkedQueue) -> Callable[[Frame | None], None]:
        mark, newest = queue.marks[0], queue.newest

        def take(frame: Frame | None) -> None:
            queue.asked = False
            stands = None if frame is None else mark.stands(frame)
            if self._queues.get(tp) is not queue or stands is None:
                return
            if not stands:
                self.replaced.add(tp)
            elif newest is not None:
                queue.marks = with_newest(queue.marks, newest)
                queue.newest = None if queue.newest == newest else queue.newest

        return take

    def of(self, tp: TopicPartition, mark: QueueMark) -> Ask:
        """The request for the message at a mark's offset."""
        return self._asks.pull(tp, mark.offset, Subscription(tp.topic), messages_max=1)

    def by_queue(self) -> dict[TopicPartition, tuple[QueueMark, ...]]:
        """The marks of all queues, the newest first."""
        return {tp: queue.marks for tp, queue in self._queues.items()}

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Drop the marks of these queues, which start anew."""
        for tp in tps:
            self._queues.pop(tp, None)
        self.replaced.clear()


def mark_at(offset: int, frame: Frame) -> QueueMark | None:
    """The mark of the message at this offset in an answer."""
    if frame.code != Code.SUCCESS:
        return None
    messages = [message for message in as_stored(frame.body) if message.offset <= offset]
    return QueueMark(offset, messages[-1].position, messages[-1].stored_ms) if messages else None
