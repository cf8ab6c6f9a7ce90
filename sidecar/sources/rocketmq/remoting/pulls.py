"""Long pulls of all owned queues: reads ahead within a bound in bytes. Decides nothing.

A topic that was deleted and recreated numbers its messages from 0, and no answer says so. So messages are handed on
only once the queue is proven to be the same: the last message read is still at its offset, either in the same answer,
which then begins one message earlier, or in the answer to a later request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable
from operator import itemgetter

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import RUN_BYTES, ReadPast, run_length
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting.pulling import (
    ANSWER_BYTES,
    EMPTY_DELAY_S,
    IDLE_BYTES,
    PULL_TIMEOUT_S,
    REFUSED_DELAY_S,
    Find,
    Findings,
    Node,
    Pulling,
    QueueProofs,
    further,
    of_slave,
    place_of,
    size_bytes,
)
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage, decode_some
from sidecar.sources.rocketmq.wire.requests import MASTER, MESSAGES_MAX, Asks, Subscription, read_offset

SUSPEND_MS = 5_000
"""Time that an answer waits for a first message; the broker answers at once when a message arrives."""
MANY_QUEUES, SUSPEND_MANY_MS = 100, 10_000
"""With more queues than this, answers wait longer, because each answer costs even if it has no message."""
LINK_BYTES_MAX = 4 << 10
"""Largest message that is read again, as proof, with the next ones; a larger message is asked for separately."""
LOOK_EVERY_S = 60.0
"""Interval at which a queue that was read to its end is proven to be the same."""
END_EVERY_S, END_TIMEOUT_S = 5.0, 3.0
SHUNNED_S = 60.0
"""Time for which a slave that refused is not asked again, whatever its master suggests."""


_OFFSET = itemgetter(0)


class PullBudget:
    """Bytes of messages held and requested: at most `most` together, but one request is always allowed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = self.asked = self.idle = 0
        self.likely_bytes = ANSWER_BYTES
        """Likely size of the first answer of a queue: as of the last answer of any."""

    def reserved(self, queue: Pulling) -> int:
        """Room for the next answer of a queue."""
        return IDLE_BYTES if queue.is_at_end else queue.answer_bytes or self.likely_bytes

    def learn(self, queue: Pulling, answer_bytes: int) -> None:
        queue.answer_bytes = self.likely_bytes = max(ANSWER_BYTES, answer_bytes)

    def has_room(self, reserved: int) -> bool:
        """Whether there is room for this answer; one that waits for a first message reserves none: it may take long."""
        taken = self.held + self.asked
        return taken <= self.idle or taken + reserved <= self.most


class Pulls:
    """Reads queues; holds and requests at most `bytes_max` together, but one request is always allowed."""

    def __init__(self, asks: Asks, bytes_max: int) -> None:
        self.findings = Findings()
        self._asks = asks
        self._budget = PullBudget(bytes_max)
        self._queues: dict[TopicPartition, Pulling] = {}
        self._turn: dict[TopicPartition, None] = {}
        """Queues without a request, in the order of the next requests."""
        self._proofs = QueueProofs(asks, self._queues, self.findings)
        self._paused: set[TopicPartition] = set()
        self._is_awaited = False
        """Whether a queue waits for room; then no other queue is read before it."""

    def add_queue(
        self,
        tp: TopicPartition,
        offset: int,
        subscription: Subscription,
        find: Find,
        mark: QueueMark | None = None,
        given: int | None = None,
        low: int = 0,
    ) -> None:
        """Read a queue from an offset on.

        Args:
            mark: A message of the queue that was read before.
            given: The offset after the last message handed on; messages between the two are gone.
            low: The first offset that can be read, as far as it is known.
        """
        given = offset if given is None else given
        self._queues[tp] = Pulling(tp, subscription, find, offset, given, mark, offset, low=low)
        self._turn[tp] = None

    def remove(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            queue = self._queues.pop(tp, None)
            if queue is not None:
                self._drop_held(queue)
                self.findings.forget_partition(tp)
                self._turn.pop(tp, None)
                self._paused.discard(tp)

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read all queues except these; drop their messages read ahead, so that none is held for long."""
        for tp, queue in self._queues.items():
            if tp in tps and not queue.paused:
                self._drop_held(queue)
            queue.paused = tp in tps
        self._paused = set(tps) & self._queues.keys()

    def _drop_held(self, queue: Pulling) -> None:
        self._budget.held -= queue.held_bytes
        queue.held, queue.held_bytes = [], 0
        queue.next = queue.proven = queue.given
        queue.last = None
        queue.epoch += 1

    def end_of(self, tp: TopicPartition) -> int | None:
        """The offset of the queue's next message, according to the last answer."""
        queue = self._queues.get(tp)
        return queue.high if queue else None

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, and some of the held messages can be handed on."""
        return self._budget.held >= self._budget.most and any(
            queue.proven > queue.given for queue in self._queues.values()
        )

    def ask(self) -> None:
        """Send the requests that are due and have room."""
        now_s = time.monotonic()
        for tp in self._paused:
            if self._queues[tp].end_at_s <= now_s:
                self._ask_end(self._queues[tp], now_s)
        self._proofs.ask(now_s)
        self._is_awaited = False
        for tp in list(self._turn):
            queue = self._queues[tp]
            node = None if queue.paused or queue.not_before_s > now_s else queue.find(queue.suggested)
            if node is None or not node.link.is_up:
                continue
            if not self._budget.has_room(self._budget.reserved(queue)):
                self._is_awaited = True
                return
            self._pull(queue, node, now_s)

    def _pull(self, queue: Pulling, node: Node, now_s: float) -> None:
        offset, epoch, reserved = queue.next, queue.epoch, self._budget.reserved(queue)
        idle = IDLE_BYTES if queue.is_at_end else 0
        link = (
            queue.last
            if queue.may_link and queue.last and queue.last.offset == offset - 1 and offset < (queue.high or 0)
            else None
        )
        queue.asked = True
        self._turn.pop(queue.tp, None)
        self._budget.asked += reserved
        self._budget.idle += idle

        def answered(frame: Frame | None) -> None:
            queue.asked = False
            self._budget.asked -= reserved
            self._budget.idle -= idle
            if frame is None:
                queue.not_before_s, queue.suggested = now_s + EMPTY_DELAY_S, MASTER
            elif self._proofs.was_reset(queue, wanted, node, frame):
                queue.not_before_s = now_s + REFUSED_DELAY_S
            elif queue.epoch == epoch and self._queues.get(queue.tp) is queue:
                may_leave = now_s >= queue.master_until_s
                queue.suggested = frame.fields.get("suggestWhichBrokerId", MASTER) if may_leave else MASTER
                if not node.is_slave:
                    self._proofs.look_at_low(queue, frame)
                if queue.mark is None:
                    self._proofs.wanted.add(queue.tp)
                self._take(queue, offset, link, of_slave(frame) if node.is_slave else frame, now_s)
                if node.is_slave and queue.tp in self.findings.refused:
                    queue.suggested, queue.not_before_s = MASTER, now_s + EMPTY_DELAY_S
                    queue.master_until_s = now_s + SHUNNED_S
            elif frame.code == Code.SUCCESS:  # dropped, since the queue was paused: the next one takes as much
                self._budget.learn(queue, len(frame.body))
            if not queue.asked and self._queues.get(queue.tp) is queue:
                self._turn[queue.tp] = None

        wanted = link.offset if link else offset
        # Only the answer of a queue that was read to its end may wait: it reserves no room.
        suspend_ms = SUSPEND_MS if len(self._queues) <= MANY_QUEUES else SUSPEND_MANY_MS
        ask = self._asks.pull(queue.tp, wanted, queue.subscription, suspend_ms=suspend_ms if queue.is_at_end else 0)
        node.link.ask(ask, answered, PULL_TIMEOUT_S)

    def _ask_end(self, queue: Pulling, now_s: float) -> None:
        """Request the end of a paused queue; a queue that is read reports it with every answer."""
        queue.end_at_s = now_s + END_EVERY_S
        node = queue.find(MASTER)

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == Code.SUCCESS:
                queue.high = read_offset(frame, "offset")

        if node is not None and node.link.is_up:
            node.link.ask(self._asks.high(queue.tp), answered, END_TIMEOUT_S)

    def _take(self, queue: Pulling, offset: int, link: QueueMark | None, frame: Frame, asked_s: float) -> None:
        if link is not None and "minOffset" in frame.fields and read_offset(frame, "minOffset") > link.offset:
            queue.may_link = False  # it expired
        elif frame.code in (Code.SUCCESS, Code.PULL_RETRY_IMMEDIATELY):
            self.findings.refused.pop(queue.tp, None)
            room = self._budget.most - self._budget.held - self._budget.asked
            messages, left = decode_some(frame.body, offset, room, one=not self._budget.held)
            is_linked = link is not None and link.stands_in(messages)
            # A batch that is stored as one message arrives whole, even if its first messages were read before.
            if messages and messages[0].offset < offset:
                messages = messages[bisect_left(messages, offset, key=_OFFSET) :]
            queue.may_link = link is None or bool(messages)
            if messages:
                self._hold(queue, messages, len(frame.body))
            elif left is not None:  # read the rest again with more room, up to all of it
                queue.answer_bytes = min(self._budget.most, 2 * max(room, queue.answer_bytes or ANSWER_BYTES))
            queue.next = read_offset(frame, "nextBeginOffset") if left is None else left
            queue.high = read_offset(frame, "maxOffset")
            continues = is_linked or queue.mark is None or (not messages and queue.next < queue.high)
            if queue.proven == offset and continues:
                queue.proven = max(queue.next, offset)
                queue.mark = further(queue.mark, messages)
            elif not queue.proving:
                self._proofs.prove(queue, asked_s)
            if queue.next > offset or not queue.may_link:
                self._ask_again(queue)
            else:
                queue.not_before_s = asked_s + EMPTY_DELAY_S
        elif frame.code == Code.PULL_NOT_FOUND:
            self.findings.refused.pop(queue.tp, None)
            queue.high = read_offset(frame, "maxOffset")
            queue.not_before_s = asked_s + EMPTY_DELAY_S
            if asked_s >= queue.look_at_s and not queue.proving:  # a new queue of the same length looks the same
                queue.look_at_s = asked_s + LOOK_EVERY_S
                self._proofs.prove(queue, asked_s)
        elif frame.code == Code.PULL_OFFSET_MOVED:
            if offset > read_offset(frame, "maxOffset"):
                self.findings.replaced.add(queue.tp)
            else:
                self.findings.moved[queue.tp] = None
            queue.not_before_s = asked_s + REFUSED_DELAY_S
        else:
            self.findings.refused[queue.tp] = frame
            queue.not_before_s = asked_s + REFUSED_DELAY_S

    def _hold(self, queue: Pulling, messages: list[StoredMessage], answer_bytes: int) -> None:
        """Count messages at their decompressed size, and estimate the next answer by it."""
        count = len(messages)
        held_bytes = max(answer_bytes, size_bytes(messages))
        queue.held += messages
        is_small = len(messages[-1].body) <= LINK_BYTES_MAX
        queue.last = QueueMark(*place_of(messages[-1])) if is_small else None
        queue.held_bytes += held_bytes
        self._budget.held += held_bytes
        likely = min(max(count, MESSAGES_MAX), max(1, ANSWER_BYTES * count // answer_bytes))
        self._budget.learn(queue, likely * held_bytes // count)

    def _ask_again(self, queue: Pulling) -> None:
        """Ask at once: the broker prepares the next answer while this one is processed."""
        node = None if self._is_awaited else queue.find(queue.suggested)
        if node is not None and self._budget.has_room(self._budget.reserved(queue)):
            self._pull(queue, node, time.monotonic())

    def _proven(self, queue: Pulling) -> list[StoredMessage]:
        """Remove and return the held messages that may be handed on."""
        border = len(queue.held) if queue.proven >= queue.next else bisect_left(queue.held, queue.proven, key=_OFFSET)
        messages, queue.held = queue.held[:border], queue.held[border:]
        left_bytes = min(queue.held_bytes, size_bytes(queue.held))
        self._budget.held -= queue.held_bytes - left_bytes
        queue.held_bytes = left_bytes
        return messages

    def take(self) -> Iterable[Run | ReadPast]:
        for queue in list(self._queues.values()):
            if queue.proven == queue.given:
                continue
            is_large = queue.held_bytes > RUN_BYTES
            messages = self._proven(queue)
            last = messages[-1].offset if messages else -1
            queue.given = queue.proven
            while messages:
                few = messages[: run_length(len(message.body) for message in messages)] if is_large else messages
                messages = messages[len(few) :]
                yield Run(queue.tp, few, few[0].offset, few[-1].offset)
            if queue.given > last + 1:
                yield ReadPast(queue.tp, queue.given)
