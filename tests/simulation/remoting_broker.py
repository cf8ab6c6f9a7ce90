"""A RocketMQ broker with a topic, its name server, and the connections to both, as bytes and times of a schedule.

It answers as brokers of 5.5 and 4.9 do, as far as the source on remoting asks: see `_pull` and `_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.wire.frames import Code, Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask
from tests.simulation.leased_broker import Chance
from tests.support.rocketmq_bytes import Stored, stored

TOPIC, GROUP, NAME = "orders", "g", "broker-a"
NAME_SERVER, ADDRESS = "names:1", "broker:1"
FLUSH_S = 5.0
TAGS = (b"a", b"b", b"c", b"no")
LARGE = b" " + b"x" * 5_000
"""Makes a message too large to be read again for proof along with the next ones."""
TOPIC_ABSENT = 17
_ONE_OF = 8
"""Answers are small, so that a schedule has many."""


class Clock:
    """In place of the module `time`: goes on when the network waits."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s


@dataclass(slots=True)
class Kept:
    """A message in a queue."""

    key: bytes
    tag: bytes
    offset: int
    position: int
    raw: bytes


@dataclass(slots=True)
class Queue:
    """A queue of the topic as it is now."""

    messages: list[Kept] = field(default_factory=list)
    low: int = 0
    cut: int | None = None
    """Where it ended when it lost its end last."""

    @property
    def high(self) -> int:
        """The offset that the next message gets."""
        return len(self.messages)


class SimulatedBroker:
    """Keeps one topic.

    Args:
        clock: The simulated time.
        chance: What goes wrong.
    """

    def __init__(self, clock: Clock, chance: Chance) -> None:
        pick = chance.random.choice
        self._clock = clock
        self._chance = chance
        self.is_new = pick([True, True, False])
        """Of 5.x: it forgets offsets with their topic, and keeps resets by itself."""
        self.tells_boot = pick([True, True, True, False])
        self.clock_off_ms = 0
        self.boot = 1
        self.is_up = True
        self.stops = 0
        """How often its connections broke."""
        self.queues: list[Queue] | None = []
        self.committed: dict[int, int] = {}
        self.flushed: dict[int, int] = {}
        self._set: set[int] = set()
        """Queues whose offset an operator set, and no member has committed since."""
        self.flushed_set: set[int] = set()
        self.flushed_at_s = 0.0
        self._topics = 0
        """How many there were."""
        self._told_of: dict[int, int] = {}
        """To which of them what is committed of a queue belongs."""
        self._flushed_of: dict[int, int] = {}
        self._beyond: set[int] = set()
        """Queues of which more is committed than they had when they lost their end: nobody has set it again yet."""
        self._flushed_beyond: set[int] = set()
        self.resets: dict[int, int] = {}
        self.obeyed_at_s = 0.0
        """When a member was told of a reset last."""
        self.questioned: Callable[[], None] = lambda: None
        """Is called before a question for a mark is answered."""
        self.taken_at_s: dict[int, float] = {}
        """When a commit of a member was taken last."""
        self.taken: dict[int, int] = {}
        """The offset of that commit."""
        self._position = 0
        self._keys = 0

    # What an operator does, and fate

    def make(self, queues: int) -> None:
        """Make the topic, which is not there."""
        self.queues = [Queue() for _ in range(queues)]
        self._topics += 1
        self._beyond, self._flushed_beyond = set(), set()
        self._set, self.flushed_set = set(), set()

    def delete(self) -> None:
        """Delete the topic."""
        self.queues = None
        if self.is_new:
            self.committed, self.resets, self._told_of = {}, {}, {}

    def send(self, count: int, number: int | None = None) -> None:
        """Append messages to a queue or all, their times by a clock that may be wrong."""
        assert self.queues is not None
        for _ in range(count):
            queue = self._chance.random.randrange(len(self.queues)) if number is None else number
            self._append(queue, self.queues[queue])

    def _append(self, number: int, queue: Queue) -> None:
        pick = self._chance.random.choice
        key, tag = b"%d" % self._keys, pick(TAGS)
        self._keys += 1
        now_ms = 1_700_000_000_000 + int(self._clock.now_s * 1000) + self.clock_off_ms
        body = key + (LARGE if self._chance.random.random() < 0.1 else b"")
        one = Stored(body, [("TAGS", tag)], queue.high, self._position, topic=TOPIC, born_ms=now_ms, queue=number)
        raw = stored(one)
        queue.messages.append(Kept(key, tag, queue.high, self._position, raw))
        self._position += len(raw)

    def lose_end(self, number: int, count: int) -> list[Kept]:
        """The machine was cut off: the newest messages of a queue, and of the log, are gone."""
        assert self.queues is not None
        queue = self.queues[number]
        count = min(count, queue.high - queue.low)
        lost = queue.messages[queue.high - count :]
        del queue.messages[queue.high - count :]
        if lost:
            queue.cut = queue.high
            self._beyond |= {number} if self.committed.get(number, -1) > queue.high else set()
            self._flushed_beyond |= {number} if self.flushed.get(number, -1) > queue.high else set()
        kept = [one.position + len(one.raw) for each in self.queues for one in each.messages]
        self._position = max(kept, default=0)
        return lost

    def tick(self) -> None:
        """Committed offsets are written every 5 s."""
        if self.is_up and self._clock.now_s >= self.flushed_at_s + FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        self.flushed_at_s = self._clock.now_s
        self.flushed, self._flushed_of = dict(self.committed), dict(self._told_of)
        self._flushed_beyond = set(self._beyond)
        self.flushed_set = set(self._set)

    @property
    def may_be_killed(self) -> bool:
        """Whether it would not get back what was committed of a topic that is deleted, or beyond an end.

        That would be believed.
        """
        is_made = self.queues is not None or not self.flushed
        return (
            is_made
            and self._flushed_beyond <= self._beyond
            and self._past_end(self.flushed) <= self._past_end(self.committed)
            and all(
                self._flushed_of[number] == self._topics or self._told_of.get(number) == self._flushed_of[number]
                for number in self.flushed
            )
        )

    def _past_end(self, offsets: Mapping[int, int]) -> set[int]:
        """Queues of which more is committed than they have: by a member that did not know yet that they are new."""
        return {number for number, at in offsets.items() if (queue := self._queue(number)) and at > queue.high}

    def has_messages(self, number: int) -> bool:
        """Whether a queue has any."""
        queue = self._queue(number)
        return queue is not None and queue.high > queue.low

    def is_told_of(self, number: int) -> bool:
        """Whether what is committed of a queue is of the present topic."""
        return self._told_of.get(number) == self._topics

    def forget_stale(self) -> None:
        """4.x keeps offsets of a topic that is deleted: a daemon that begins the new one must live to commit there."""
        stale = [number for number in self.committed if not self.is_told_of(number)]
        for number in stale:
            del self.committed[number]

    def end(self, *, killed: bool) -> None:
        """Killed, it forgets the commits since they were written last."""
        self.forget_stale()
        if killed:
            self.committed, self._told_of = dict(self.flushed), dict(self._flushed_of)
            self._beyond, self._set = set(self._flushed_beyond), set(self.flushed_set)
        self._flush()
        self.resets = {}
        self.is_up = False
        self.stops += 1
        self.boot += 1

    def reset(self, number: int, offset: int) -> None:
        """An operator sets an offset: what `mqadmin resetOffsetByTime` does since 5.1, or a plain commit."""
        self._keep(number, offset)
        self._set.add(number)
        if self.is_new:
            self.resets[number] = offset

    def _keep(self, number: int, offset: int) -> None:
        self.committed[number], self._told_of[number] = offset, self._topics
        queue = self._queue(number)
        if queue is None or queue.cut is None or offset <= queue.cut:
            self._beyond.discard(number)

    # Answers

    def answer(self, ask: Ask) -> Frame | None:
        """The answer; None while a pull waits for a first message."""
        number = int(ask.fields.get("queueId", 0))
        match ask.code:
            case RequestCode.HEART_BEAT | RequestCode.UNLOCK_BATCH_MQ | RequestCode.UNREGISTER_CLIENT:
                return answer_of()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return answer_of(0, b'{"consumerIdList":["me"]}')
            case RequestCode.LOCK_BATCH_MQ:
                return answer_of(0, orjson.dumps({"lockOKMQSet": orjson.loads(ask.body)["mqSet"]}))
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                boot = b'{"table":{"bootTimestamp":"%d"}}' % self.boot
                return answer_of(0, boot) if self.tells_boot else answer_of(Code.NO_PERMISSION)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                at = self.resets.get(number, self.committed.get(number, -1))
                return answer_of(offset=at) if at >= 0 else answer_of(Code.QUERY_NOT_FOUND)
            case RequestCode.GET_MIN_OFFSET:
                return self._of_queue(number, lambda queue: queue.low)
            case RequestCode.GET_MAX_OFFSET:
                return self._of_queue(number, lambda queue: queue.high)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return self._at_time(number, int(ask.fields["timestamp"]))
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                return self._commit(number, int(ask.fields["commitOffset"]))
            case RequestCode.PULL_MESSAGE:
                return self._pull(number, ask.fields)
        raise AssertionError(ask)

    def _queue(self, number: int) -> Queue | None:
        return self.queues[number] if self.queues and number < len(self.queues) else None

    def _of_queue(self, number: int, read: Callable[[Queue], int]) -> Frame:
        """Of one that is not there brokers tell 0."""
        queue = self._queue(number)
        return answer_of(offset=read(queue) if queue else 0)

    def _at_time(self, number: int, at_ms: int) -> Frame:
        queue = self._queue(number)
        messages = queue.messages[queue.low :] if queue else []
        found = [one.offset for one in messages if _stored_ms(one) >= at_ms]
        return answer_of(offset=min(found, default=queue.high if queue else 0))

    def _commit(self, number: int, offset: int) -> Frame:
        """One that comes before the operator's reset was told is answered with yes, and dropped."""
        if self.is_new and self._queue(number) is None:
            return answer_of(Code.TOPIC_NOT_EXIST)
        if number not in self.resets:
            self._keep(number, offset)
            self._set.discard(number)
            self.taken_at_s[number], self.taken[number] = self._clock.now_s, offset
        return answer_of()

    def _pull(self, number: int, fields: Mapping[str, str]) -> Frame | None:
        """Whoever pulls first, for whatever offset, is told of a reset, and nobody after that."""
        queue, offset = self._queue(number), int(fields["queueOffset"])
        if queue is None:
            return answer_of(Code.TOPIC_NOT_EXIST)
        if fields["maxMsgNums"] == "1":
            self.questioned()
        ends = {"minOffset": queue.low, "maxOffset": queue.high}
        reset = self.resets.pop(number, None)
        if reset is not None:
            self.obeyed_at_s = self._clock.now_s
            return answer_of(Code.PULL_OFFSET_MOVED, nextBeginOffset=reset, **ends)
        if offset < queue.low or offset > queue.high:
            begin = queue.low if offset < queue.low else queue.high
            return answer_of(Code.PULL_OFFSET_MOVED, nextBeginOffset=begin, **ends)
        if offset == queue.high:
            waits = int(fields["suspendTimeoutMillis"]) > 0
            return None if waits else answer_of(Code.PULL_NOT_FOUND, nextBeginOffset=offset, **ends)
        count = min(int(fields["maxMsgNums"]), self._chance.random.randrange(1, _ONE_OF))
        found = queue.messages[offset : offset + count]
        wanted = [one.raw for one in found if _matches(one.tag, fields["subscription"])]
        code = Code.SUCCESS if wanted else Code.PULL_RETRY_IMMEDIATELY
        return answer_of(code, b"".join(wanted), nextBeginOffset=offset + len(found), **ends)

    def route(self) -> Frame:
        """What the name server tells."""
        if self.queues is None:
            return answer_of(Code.TOPIC_NOT_EXIST)
        body = {
            "brokerDatas": [{"brokerName": NAME, "brokerAddrs": {"0": ADDRESS}, "cluster": "c"}],
            "queueDatas": [{"brokerName": NAME, "perm": 6, "readQueueNums": len(self.queues)}],
        }
        return answer_of(0, orjson.dumps(body))


def _matches(tag: bytes, expression: str) -> bool:
    return expression == "*" or tag.decode() in expression.split(" || ")


def _stored_ms(one: Kept) -> int:
    return int.from_bytes(one.raw[56:64])


def answer_of(code: int = 0, body: bytes = b"", /, **offsets: int) -> Frame:
    """An answer with these fields."""
    fields = {name: str(at) for name, at in offsets.items()} | {"suggestWhichBrokerId": "0"}
    if "offset" in offsets:
        fields["offset"] = str(offsets["offset"])
    return Frame(code, 1, 1, "", fields, body)


def queue_of(number: int) -> TopicPartition:
    """A queue by its number."""
    return TopicPartition(TOPIC, number, NAME)


def reset_frame(number: int, offset: int) -> Frame:
    """What a broker of 4.x tells its members of a reset; its JSON has objects for names."""
    place = b'{"brokerName":"%b","queueId":%d,"topic":"%b"}' % (NAME.encode(), number, TOPIC.encode())
    return Frame(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, 1, 0, "", {}, b'{"offsetTable":{%b:%d}}' % (place, offset))
