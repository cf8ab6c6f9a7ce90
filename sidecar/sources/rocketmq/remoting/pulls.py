"""Long pulls of all queues that are ours, ahead of what is asked for, within a bound in bytes. Decides nothing.

A topic that was deleted and made again numbers its messages from 0, and nothing in an answer tells it. So nothing is
handed on before it is proven to continue what was read: the message read last still stands at its offset, either in the
same answer, which then begins one message earlier, or in the answer to a question asked after it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import RUN_BYTES, ReadPast, run_length
from sidecar.sources.rocketmq.progress import Mark
from sidecar.sources.rocketmq.remoting.pulling import (
    ANSWER_BYTES,
    IDLE_BYTES,
    Find,
    Place,
    Pulling,
    of_slave,
    place_of,
    size_bytes,
)
from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored, decode_some
from sidecar.sources.rocketmq.wire.requests import MASTER, MESSAGES_MAX, Asks, Subscription, read_offset

SUSPEND_MS = 5_000
"""How long an answer waits for a first message; the broker looks at it at once when one comes."""
MANY_QUEUES, SUSPEND_MANY_MS = 100, 10_000
"""Of more queues than these it waits for longer: each answer costs, though nothing came."""
PULL_TIMEOUT_S = 20.0
EMPTY_DELAY_S, REFUSED_DELAY_S = 0.05, 1.0
LINK_BYTES_MAX = 4 << 10
"""Of a message that is read again for proof along with the next ones; for a larger one there is a question."""
LOOK_EVERY_S = 60.0
"""So often a queue that was read to its end is proven to be what it was."""
END_EVERY_S, END_TIMEOUT_S = 5.0, 3.0
SHUNNED_S = 60.0
"""So long a slave is not asked again that refused, whatever its master suggests."""


_OFFSET = itemgetter(0)


class Pulls:
    """Reads queues.

    Args:
        asks: Makes the requests.
        bytes_max: What may be held and asked for, together; one answer may always be asked for.
    """

    def __init__(self, asks: Asks, bytes_max: int) -> None:
        self._asks = asks
        self._bytes_max = bytes_max
        self._queues: dict[TopicPartition, Pulling] = {}
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
        self.replaced: set[TopicPartition] = set()
        """Queues that are not what they were: the message that was read there does not stand any more."""
        self.found: dict[TopicPartition, Mark] = {}
        """Marks of queues of which nothing was read yet."""
        self.refused: dict[TopicPartition, Frame] = {}
        """Why a queue cannot be read at present."""

    def add(
        self,
        tp: TopicPartition,
        offset: int,
        subscription: Subscription,
        find: Find,
        mark: Mark | None = None,
        given: int | None = None,
    ) -> None:
        """Read a queue from an offset on.

        Args:
            tp: The queue.
            offset: The first one that is wanted.
            subscription: What of it.
            find: Where to ask.
            mark: A message that was read of it before.
            given: The offset after what was handed on before; what is between the two is gone.
        """
        self._queues[tp] = Pulling(tp, subscription, find, offset, offset if given is None else given, mark, offset)
        self._turn[tp] = None

    def remove(self, tps: Collection[TopicPartition]) -> None:
        """Read these no more."""
        for tp in tps:
            one = self._queues.pop(tp, None)
            if one is not None:
                self._drop_held(one)
                self.moved.pop(tp, None)
                self.replaced.discard(tp)
                self.found.pop(tp, None)
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

    def _drop_held(self, one: Pulling) -> None:
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
            if one is None or one.proving:
                continue
            if one.mark is None and one.next > 0:
                self._find_mark(one, now_s)
            elif one.proven < one.next:
                self._prove(one, now_s)

    def _has_room(self, one: Pulling) -> bool:
        """Nothing is kept back by answers that wait for a first message: that may take long."""
        taken = self._held_bytes + self._asked_bytes
        return taken <= self._idle_bytes or taken + one.reserved_bytes <= self._bytes_max

    def _pull(self, one: Pulling, place: Place, now_s: float) -> None:
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
            elif self._was_reset(one, wanted, place, frame):
                one.not_before_s = now_s + REFUSED_DELAY_S
            elif one.epoch == epoch and self._queues.get(one.tp) is one:
                may_leave = now_s >= one.master_until_s
                one.suggested = frame.fields.get("suggestWhichBrokerId", MASTER) if may_leave else MASTER
                if not place.is_slave:
                    self._look_at_low(one, frame)
                if one.mark is None:
                    self._unproven.add(one.tp)
                self._take(one, offset, link, of_slave(frame) if place.is_slave else frame, now_s)
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

    def _was_reset(self, one: Pulling, asked: int, place: Place, frame: Frame) -> bool:
        """Whether an operator set another offset: a broker tells it once, whatever was asked for, and however late."""
        if frame.code != Code.PULL_OFFSET_MOVED or place.is_slave or one.tp not in self._queues:
            return False
        if not read_offset(frame, "minOffset") <= asked <= read_offset(frame, "maxOffset"):
            return False
        self.moved[one.tp] = read_offset(frame, "nextBeginOffset")
        return True

    def _ask_end(self, one: Pulling, now_s: float) -> None:
        """A queue that is read tells its end with every answer."""
        one.end_at_s = now_s + END_EVERY_S
        place = one.find(MASTER)

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == Code.SUCCESS:
                one.high = read_offset(frame, "offset")

        if place is not None and place.link.is_up:
            place.link.ask(self._asks.high(one.tp), answered, END_TIMEOUT_S)

    def _take(self, one: Pulling, offset: int, link: Mark | None, frame: Frame, asked_s: float) -> None:
        if link is not None and "minOffset" in frame.fields and read_offset(frame, "minOffset") > link.offset:
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
            continues = is_linked or one.mark is None or (not messages and one.next < one.high)
            if one.proven == offset and continues:
                one.proven = max(one.next, offset)
                one.mark = _further(one.mark, messages)
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
            if asked_s >= one.look_at_s and not one.proving:  # as many new messages as there were: none would tell
                one.look_at_s = asked_s + LOOK_EVERY_S
                self._prove(one, asked_s)
        elif frame.code == Code.PULL_OFFSET_MOVED:
            if offset > read_offset(frame, "maxOffset"):
                self.replaced.add(one.tp)
            else:
                self.moved[one.tp] = None
            one.not_before_s = asked_s + REFUSED_DELAY_S
        else:
            self.refused[one.tp] = frame
            one.not_before_s = asked_s + REFUSED_DELAY_S

    def _hold(self, one: Pulling, messages: list[StoredMessage], answer_bytes: int) -> None:
        """Count what is held as it is now, since it may have come packed; and tell by it what the next answer holds."""
        count = len(messages)
        held_bytes = max(answer_bytes, size_bytes(messages))
        one.held += messages
        is_small = len(messages[-1].body) <= LINK_BYTES_MAX
        one.last = Mark(*place_of(messages[-1])) if is_small else None
        one.held_bytes += held_bytes
        self._held_bytes += held_bytes
        likely = min(max(count, MESSAGES_MAX), max(1, ANSWER_BYTES * count // answer_bytes))
        one.answer_bytes = max(ANSWER_BYTES, likely * held_bytes // count)

    def _prove(self, one: Pulling, now_s: float) -> None:
        """Ask whether what was read before still stands: then all that came until now continues it."""
        place = one.find(MASTER)
        if one.mark is None or one.prove_at_s > now_s or place is None or not place.link.is_up:
            self._unproven.add(one.tp)
            return
        one.proving = True
        epoch, upto, mark = one.epoch, one.next, one.mark
        newest = _further(mark, one.held)

        def answered(frame: Frame | None) -> None:
            one.proving = False
            self._unproven.add(one.tp)
            if frame is not None and self._was_reset(one, mark.offset, place, frame):
                return
            if one.epoch != epoch or self._queues.get(one.tp) is not one:
                return
            stands = None if frame is None else mark.stands(of_slave(frame) if place.is_slave else frame)
            if stands is None:
                one.prove_at_s = time.monotonic() + EMPTY_DELAY_S
            elif stands:
                one.proven, one.mark = upto, newest
                if one.proven < one.next:
                    self._prove(one, time.monotonic())
            else:
                self.replaced.add(one.tp)

        ask = self._asks.pull(one.tp, mark.offset, Subscription(one.tp.topic), messages_max=1)
        place.link.ask(ask, answered, PULL_TIMEOUT_S)

    def _find_mark(self, one: Pulling, now_s: float) -> None:
        """Have a mark of a queue of which nothing was read yet, though it does not begin at its first message."""
        place = one.find(MASTER)
        if one.prove_at_s > now_s or place is None or not place.link.is_up:
            self._unproven.add(one.tp)
            return
        one.proving, one.prove_at_s = True, now_s + REFUSED_DELAY_S
        epoch, offset = one.epoch, max(one.low, one.next - 1)

        def answered(frame: Frame | None) -> None:
            one.proving = False
            self._unproven.add(one.tp)
            if frame is None or self._was_reset(one, offset, place, frame):
                return
            if frame.code == Code.SUCCESS and one.epoch == epoch and self._queues.get(one.tp) is one and not one.mark:
                one.mark = self.found[one.tp] = Mark(*place_of(as_stored(frame.body)[0]))

        ask = self._asks.pull(one.tp, offset, Subscription(one.tp.topic), messages_max=1)
        place.link.ask(ask, answered, PULL_TIMEOUT_S)

    def _look_at_low(self, one: Pulling, frame: Frame) -> None:
        """The first offset of a queue never goes back: where there is no mark that tells it is another queue."""
        if "minOffset" in frame.fields:
            low = read_offset(frame, "minOffset")
            if low < one.low and one.mark is None:
                self.replaced.add(one.tp)
            one.low = max(one.low, low)

    def _ask_again(self, one: Pulling) -> None:
        """At once: the broker gets the next answer ready while this one is looked at."""
        place = None if self._is_awaited else one.find(one.suggested)
        if place is not None and self._has_room(one):
            self._pull(one, place, time.monotonic())

    def _proven(self, one: Pulling) -> list[StoredMessage]:
        """Take out of what is held of a queue what may be handed on."""
        at = len(one.held) if one.proven >= one.next else bisect_left(one.held, one.proven, key=_OFFSET)
        messages, one.held = one.held[:at], one.held[at:]
        left_bytes = min(one.held_bytes, size_bytes(one.held))
        self._held_bytes -= one.held_bytes - left_bytes
        one.held_bytes = left_bytes
        return messages

    def take(self) -> Iterable[Run | ReadPast]:
        """What has come, in the order of each queue."""
        for one in list(self._queues.values()):
            if one.proven == one.given:
                continue
            is_large = one.held_bytes > RUN_BYTES
            messages = self._proven(one)
            last = messages[-1].offset if messages else -1
            one.given = one.proven
            while messages:
                few = messages[: run_length(len(message.body) for message in messages)] if is_large else messages
                messages = messages[len(few) :]
                yield Run(one.tp, few, few[0].offset, few[-1].offset)
            if one.given > last + 1:
                yield ReadPast(one.tp, one.given)


def _further(mark: Mark | None, messages: Sequence[StoredMessage]) -> Mark | None:
    """A mark beyond what is read again tells when the queue loses its end meanwhile."""
    if messages and (mark is None or mark.offset < messages[-1].offset):
        return Mark(*place_of(messages[-1]))
    return mark
