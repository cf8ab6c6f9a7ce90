"""Long pulls of all queues that are ours, ahead of what is asked for, within a bound in bytes. Decides nothing.

A topic that was deleted and made again numbers its messages from 0, and nothing in an answer tells it. So nothing is
handed on before it is proven to continue what was read: the message read last still stands at its offset, either in the
same answer, which then begins one message earlier, or in the answer to a question asked after it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from sidecar.core.records import Run, TopicPartition
from sidecar.rocketmq.codes import Code
from sidecar.rocketmq.frames import Frame
from sidecar.rocketmq.messages import StoredMessage, decode_some
from sidecar.rocketmq.network import Link
from sidecar.rocketmq.requests import MASTER, MESSAGES_MAX, Asks, Subscription, read_offset
from sidecar.sources.base import ReadPast
from sidecar.sources.rocketmq_progress import Mark

SUSPEND_MS = 5_000
"""How long an answer waits for a first message; the broker looks at it at once when one comes."""
MANY_QUEUES, SUSPEND_MANY_MS = 100, 10_000
"""Of more queues than these it waits for longer: each answer costs, though nothing came."""
IDLE_BYTES = 4 << 10
"""Kept free for the answer of a queue that was read to its end: it comes with the first message, and so is small.

If it is not, reading of the connection stops at what may be held.
"""
PULL_TIMEOUT_S = 20.0
ANSWER_BYTES = 256 << 10
"""What a broker puts into one answer by default, but for a single message that is larger."""
EMPTY_DELAY_S, REFUSED_DELAY_S = 0.05, 1.0
LINK_BYTES_MAX = 4 << 10
"""Of a message that is read again for proof along with the next ones; for a larger one there is a question."""
END_EVERY_S, END_TIMEOUT_S = 5.0, 3.0
SHUNNED_S = 60.0
"""So long a slave is not asked again that refused, whatever its master suggests."""


class Place(NamedTuple):
    """Where to ask for messages."""

    link: Link
    is_slave: bool = False


_OFFSET, _BODY, _PROPERTIES = map(itemgetter, range(3))

Find: TypeAlias = Callable[[str], Place | None]
"""Where to ask, by the number of the broker that the last answer suggests; None while the queue may not be read."""


@dataclass(slots=True)
class _Pulling:
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


class Pulls:
    """Reads queues.

    Args:
        asks: Makes the requests.
        bytes_max: What may be held and asked for, together; one answer may always be asked for.
    """

    def __init__(self, asks: Asks, bytes_max: int) -> None:
        self._asks = asks
        self._bytes_max = bytes_max
        self._queues: dict[TopicPartition, _Pulling] = {}
        self._turn: dict[TopicPartition, None] = {}
        """Queues without a request, in the order in which they are asked for next."""
        self._unproven: set[TopicPartition] = set()
        """Queues of which it may have to be asked again what was read."""
        self._paused: set[TopicPartition] = set()
        self._held_bytes = 0
        self._asked_bytes = self._idle_bytes = 0
        self._is_awaited = False
        """Whether a queue waits for room: then no other goes on before it."""
        self.moved: dict[TopicPartition, int | None] = {}
        """Queues whose offset cannot be read; where it can be, an operator set another one, which stands here."""
        self.replaced: dict[TopicPartition, Mark] = {}
        """Queues that are not what they were: the message that was read there does not stand any more."""
        self.refused: dict[TopicPartition, Frame] = {}
        """Why a queue cannot be read at present."""

    def add(
        self, tp: TopicPartition, offset: int, subscription: Subscription, find: Find, mark: Mark | None = None
    ) -> None:
        """Read a queue from an offset on.

        Args:
            tp: The queue.
            offset: The first one that is wanted.
            subscription: What of it.
            find: Where to ask.
            mark: A message that was read of it before.
        """
        self._queues[tp] = _Pulling(tp, subscription, find, offset, offset, mark, offset)
        self._turn[tp] = None

    def remove(self, tps: Collection[TopicPartition]) -> None:
        """Read these no more."""
        for tp in tps:
            one = self._queues.pop(tp, None)
            if one is not None:
                self._drop_held(one)
                self.moved.pop(tp, None)
                self.replaced.pop(tp, None)
                self.refused.pop(tp, None)
                self._turn.pop(tp, None)
                self._paused.discard(tp)

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read all but these; what was read ahead of them is thrown away, so that nothing is held for long."""
        for tp, one in self._queues.items():
            if tp in tps and not one.paused:
                self._drop_held(one)
            one.paused = tp in tps
        self._paused = set(tps) & self._queues.keys()

    def _drop_held(self, one: _Pulling) -> None:
        self._held_bytes -= one.held_bytes
        one.held, one.held_bytes = [], 0
        one.next = one.proven = one.given
        one.last = None
        one.epoch += 1

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the queue's next message gets, as the last answer told it."""
        one = self._queues.get(tp)
        return one.high if one else None

    @property
    def is_full(self) -> bool:
        """Whether as much is held as may be, and some of it can be handed on."""
        return self._held_bytes >= self._bytes_max and any(one.proven > one.given for one in self._queues.values())

    def ask(self) -> None:
        """Ask for all queues that may be asked for now."""
        now_s = time.monotonic()
        for tp in self._paused:
            if self._queues[tp].end_at_s <= now_s:
                self._ask_end(self._queues[tp], now_s)
        self._prove_again(now_s)
        self._is_awaited = False
        for tp in list(self._turn):
            one = self._queues[tp]
            place = None if one.paused or one.not_before_s > now_s else one.find(one.suggested)
            if place is None or not place.link.is_up:
                continue
            if not self._has_room(one):
                self._is_awaited = True
                return
            self._pull(one, place, now_s)

    def _prove_again(self, now_s: float) -> None:
        unproven, self._unproven = self._unproven, set()
        for tp in unproven:
            one = self._queues.get(tp)
            if one is not None and one.proven < one.next and not one.proving:
                self._prove(one, now_s)

    def _has_room(self, one: _Pulling) -> bool:
        """Nothing is kept back by answers that wait for a first message: that may take long."""
        taken = self._held_bytes + self._asked_bytes
        return taken <= self._idle_bytes or taken + one.reserved_bytes <= self._bytes_max

    def _pull(self, one: _Pulling, place: Place, now_s: float) -> None:
        offset, epoch, reserved = one.next, one.epoch, one.reserved_bytes
        idle = IDLE_BYTES if one.is_at_end else 0
        link = (
            one.last
            if one.may_link and one.last and one.last.offset == offset - 1 and offset < (one.high or 0)
            else None
        )
        one.asked = True
        self._turn.pop(one.tp, None)
        self._asked_bytes += reserved
        self._idle_bytes += idle

        def answered(frame: Frame | None) -> None:
            one.asked = False
            self._asked_bytes -= reserved
            self._idle_bytes -= idle
            if frame is None:
                one.not_before_s, one.suggested = now_s + EMPTY_DELAY_S, MASTER
            elif one.epoch == epoch and self._queues.get(one.tp) is one:
                may_leave = now_s >= one.master_until_s
                one.suggested = frame.fields.get("suggestWhichBrokerId", MASTER) if may_leave else MASTER
                self._take(one, offset, link, _of_slave(frame) if place.is_slave else frame, now_s)
                if place.is_slave and one.tp in self.refused:
                    one.suggested, one.not_before_s = MASTER, now_s + EMPTY_DELAY_S
                    one.master_until_s = now_s + SHUNNED_S
            if not one.asked and self._queues.get(one.tp) is one:
                self._turn[one.tp] = None

        wanted = link.offset if link else offset
        # Only a queue that was read to its end may keep its answer waiting: it keeps no room from the others.
        suspend_ms = SUSPEND_MS if len(self._queues) <= MANY_QUEUES else SUSPEND_MANY_MS
        ask = self._asks.pull(one.tp, wanted, one.subscription, suspend_ms=suspend_ms if one.is_at_end else 0)
        place.link.ask(ask, answered, PULL_TIMEOUT_S)

    def _ask_end(self, one: _Pulling, now_s: float) -> None:
        """A queue that is read tells its end with every answer."""
        one.end_at_s = now_s + END_EVERY_S
        place = one.find(MASTER)

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == Code.SUCCESS:
                one.high = read_offset(frame, "offset")

        if place is not None and place.link.is_up:
            place.link.ask(self._asks.high(one.tp), answered, END_TIMEOUT_S)

    def _take(self, one: _Pulling, offset: int, link: Mark | None, frame: Frame, asked_s: float) -> None:
        if link is not None and read_offset(frame, "minOffset") > link.offset:
            one.may_link = False  # it expired
        elif frame.code in (Code.SUCCESS, Code.PULL_RETRY_IMMEDIATELY):
            self.refused.pop(one.tp, None)
            room = self._bytes_max - self._held_bytes - self._asked_bytes
            messages, left = decode_some(frame.body, offset, room, one=not self._held_bytes)
            is_linked = link is not None and link.stands_in(messages)
            # A batch that is kept as one message comes whole, also when its first messages were read before.
            if messages and messages[0].offset < offset:
                messages = messages[bisect_left(messages, offset, key=_OFFSET) :]
            one.may_link = link is None or bool(messages)
            if messages:
                self._hold(one, messages, len(frame.body))
            elif left is not None:  # read again with more room, in the end with all of it
                one.answer_bytes = min(self._bytes_max, 2 * max(room, one.answer_bytes))
            one.next = read_offset(frame, "nextBeginOffset") if left is None else left
            one.high = read_offset(frame, "maxOffset")
            if one.proven == offset and (is_linked or one.mark is None or not messages):
                one.proven = max(one.next, offset)
                one.mark = Mark(*_place(messages[-1])) if messages else one.mark
            elif not one.proving:
                self._prove(one, asked_s)
            if one.next > offset or not one.may_link:
                self._ask_again(one)
            else:
                one.not_before_s = asked_s + EMPTY_DELAY_S
        elif frame.code == Code.PULL_NOT_FOUND:
            self.refused.pop(one.tp, None)
            one.high = read_offset(frame, "maxOffset")
            one.not_before_s = asked_s + EMPTY_DELAY_S
        elif frame.code == Code.PULL_OFFSET_MOVED:
            could_be_read = read_offset(frame, "minOffset") <= offset <= read_offset(frame, "maxOffset")
            self.moved[one.tp] = read_offset(frame, "nextBeginOffset") if could_be_read else None
            one.not_before_s = asked_s + REFUSED_DELAY_S
        else:
            self.refused[one.tp] = frame
            one.not_before_s = asked_s + REFUSED_DELAY_S

    def _hold(self, one: _Pulling, messages: list[StoredMessage], answer_bytes: int) -> None:
        """Count what is held as it is now, since it may have come packed; and tell by it what the next answer holds."""
        count = len(messages)
        held_bytes = max(answer_bytes, _size_bytes(messages))
        one.held += messages
        is_small = len(messages[-1].body) <= LINK_BYTES_MAX
        one.last = Mark(*_place(messages[-1])) if is_small else None
        one.held_bytes += held_bytes
        self._held_bytes += held_bytes
        likely = min(max(count, MESSAGES_MAX), max(1, ANSWER_BYTES * count // answer_bytes))
        one.answer_bytes = max(ANSWER_BYTES, likely * held_bytes // count)

    def _prove(self, one: _Pulling, now_s: float) -> None:
        """Ask whether what was read before still stands: then all that came until now continues it."""
        place = one.find(MASTER)
        if one.mark is None or one.prove_at_s > now_s or place is None or not place.link.is_up:
            self._unproven.add(one.tp)
            return
        one.proving = True
        epoch, upto, mark = one.epoch, one.next, one.mark
        newest = Mark(*_place(one.held[-1])) if one.held else mark

        def answered(frame: Frame | None) -> None:
            one.proving = False
            self._unproven.add(one.tp)
            if one.epoch != epoch or self._queues.get(one.tp) is not one:
                return
            stands = None if frame is None else mark.stands(_of_slave(frame) if place.is_slave else frame)
            if stands is None:
                one.prove_at_s = time.monotonic() + EMPTY_DELAY_S
            elif stands:
                one.proven, one.mark = upto, newest
                if one.proven < one.next:
                    self._prove(one, time.monotonic())
            else:
                self.replaced[one.tp] = mark

        ask = self._asks.pull(one.tp, mark.offset, Subscription(one.tp.topic), messages_max=1)
        place.link.ask(ask, answered, PULL_TIMEOUT_S)

    def _ask_again(self, one: _Pulling) -> None:
        """At once: the broker gets the next answer ready while this one is looked at."""
        place = None if self._is_awaited else one.find(one.suggested)
        if place is not None and self._has_room(one):
            self._pull(one, place, time.monotonic())

    def _proven(self, one: _Pulling) -> list[StoredMessage]:
        """Take out of what is held of a queue what may be handed on."""
        at = len(one.held) if one.proven >= one.next else bisect_left(one.held, one.proven, key=_OFFSET)
        messages, one.held = one.held[:at], one.held[at:]
        left_bytes = min(one.held_bytes, _size_bytes(one.held))
        self._held_bytes -= one.held_bytes - left_bytes
        one.held_bytes = left_bytes
        return messages

    def take(self) -> Iterable[Run | ReadPast]:
        """What has come, in the order of each queue."""
        for one in list(self._queues.values()):
            if one.proven == one.given:
                continue
            messages = self._proven(one)
            one.given = one.proven
            if messages:
                yield Run(one.tp, messages, messages[0].offset, messages[-1].offset)
            if not messages or one.given > messages[-1].offset + 1:
                yield ReadPast(one.tp, one.given)


def _size_bytes(messages: Sequence[StoredMessage]) -> int:
    return sum(map(len, map(_BODY, messages))) + sum(map(len, map(_PROPERTIES, messages)))


def _place(message: StoredMessage) -> tuple[int, int, int]:
    return message.offset, message.position, message.stored_ms


def _of_slave(frame: Frame) -> Frame:
    """What a slave's answer means.

    It may lag behind, so that an offset that it does not have yet is no reason to begin anew. And one that must not be
    read answers as if nothing matched, with messages left out that it found: they are to be asked of the master.
    """
    if frame.code == Code.PULL_OFFSET_MOVED:
        return frame._replace(code=Code.PULL_NOT_FOUND)
    if frame.code == Code.PULL_RETRY_IMMEDIATELY and frame.remark == "FOUND":
        return frame._replace(code=Code.NO_PERMISSION, remark="its slave must not be read: slaveReadEnable is off")
    return frame
