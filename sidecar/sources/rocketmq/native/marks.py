"""Whether queues that librocketmq reads are still what they were. Asks brokers, starts nothing.

librocketmq goes on at its offset when a topic was deleted and made again, whatever stands there now. So of each queue a
message that was handed over is kept, and asked for again and again: what was handed over before an answer in which it
stands belongs to the same queue. What librocketmq has read by then of another one is handed over again, and is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.progress import Mark, with_newest
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.messages import as_stored
from sidecar.sources.rocketmq.wire.network import Ask, Link
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription

READ_S, IDLE_S = 2.0, 10.0
"""How often it is asked for while messages of its queue are handed over, and otherwise."""
ANSWER_S = 5.0


@dataclass(slots=True)
class _Queue:
    marks: tuple[Mark, ...] = ()
    """Messages that stood in the last answer, or were the first of the queue; the newest first."""
    newest: Mark | None = None
    """The newest message that was handed over since."""
    asked: bool = False
    asked_s: float = 0.0


class Marks:
    """Messages that were handed over, by queue.

    Args:
        asks: Makes the requests.
        link_of: The connection to a broker.
    """

    def __init__(self, asks: Asks, link_of: Callable[[str], Link | None]) -> None:
        self._asks = asks
        self._link_of = link_of
        self._queues: dict[TopicPartition, _Queue] = {}
        self.replaced: set[TopicPartition] = set()
        """Queues that are not what they were, until `forget`."""

    def read(self, tp: TopicPartition, mark: Mark) -> None:
        """A message was handed over."""
        one = self._queues.get(tp) or self._queues.setdefault(tp, _Queue())
        if not one.marks:
            one.marks = (mark,)
        if one.newest is None or mark.offset > one.newest.offset:
            one.newest = mark

    def ask(self, now_s: float) -> None:
        """Ask for all that are due; does not wait."""
        for tp, one in self._queues.items():
            due_s = one.asked_s + (READ_S if one.newest else IDLE_S)
            link = self._link_of(tp.broker) if now_s >= due_s and not one.asked else None
            if link is not None and link.is_up:
                one.asked, one.asked_s = True, now_s
                link.ask(self.of(tp, one.marks[0]), self._answered(tp, one), ANSWER_S)

    def _answered(self, tp: TopicPartition, one: _Queue) -> Callable[[Frame | None], None]:
        mark, newest = one.marks[0], one.newest

        def take(frame: Frame | None) -> None:
            one.asked = False
            stands = None if frame is None else mark.stands(frame)
            if self._queues.get(tp) is not one or stands is None:
                return
            if not stands:
                self.replaced.add(tp)
            elif newest is not None:
                one.marks = with_newest(one.marks, newest)
                one.newest = None if one.newest == newest else one.newest

        return take

    def of(self, tp: TopicPartition, mark: Mark) -> Ask:
        """The request for what stands at a mark's offset."""
        return self._asks.pull(tp, mark.offset, Subscription(tp.topic), messages_max=1)

    def by_queue(self) -> dict[TopicPartition, tuple[Mark, ...]]:
        """The marks of all queues, the newest first."""
        return {tp: one.marks for tp, one in self._queues.items()}

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """These queues begin anew."""
        for tp in tps:
            self._queues.pop(tp, None)
        self.replaced.clear()


def mark_at(offset: int, frame: Frame) -> Mark | None:
    """The message that an answer has at this offset."""
    if frame.code != Code.SUCCESS:
        return None
    found = [one for one in as_stored(frame.body) if one.offset <= offset]
    return Mark(offset, found[-1].position, found[-1].stored_ms) if found else None
