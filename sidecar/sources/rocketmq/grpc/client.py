"""RocketMQ 5 through its proxy over gRPC, as a `LeasedClient`: a separate thread runs the event loop."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sidecar import threads
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.grpc.leases import INVISIBLE_S, OK, Attempts, Lease, Leases, Use
from sidecar.sources.rocketmq.grpc.requests import BATCH_MAX, REQUEST_S, GrpcRequests, renewed
from sidecar.sources.rocketmq.grpc.session import Session, Sessions
from sidecar.sources.rocketmq.grpc.stubs import load
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES

SETTLES_S = 5.0
"""Answers to several requests may overtake each other: an earlier message of the queue may come for this long."""
RECENT_MAX = 64
"""Limit of remembered places of a queue: more than one answer brings."""
_NONE = 1 << 62


@dataclass(slots=True)
class _WatchedQueue:
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    """Commit-log position and offset of the last messages."""
    highest: tuple[int, int] = (-1, -1)
    """The highest of these and of earlier ones."""
    old_end: int | None = None
    """The offset after its last message before the topic was recreated, until the new queue's start is known."""
    first: int = _NONE
    """The first message since then, among those that arrived."""
    told_at_s: float = 0.0
    """Time at which both are compared, once there is a first message."""
    known_of: int = 0
    """The recreation of the topic whose effect on this queue is known."""


@dataclass(slots=True)
class _WatchedTopic:
    queues: dict[int, _WatchedQueue] = field(default_factory=dict)
    recreations: int = 1
    begins_at: int = _NONE
    """Position of the first message since the last recreation, as far as known."""


class Skipped:
    """Watches the messages that are handed over."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._topics: dict[tuple[str, str], _WatchedTopic] = {}

    def look(self, handed: HandedMessage, now_s: float) -> None:
        name, broker, number, offset = handed.place
        if name != handed.topic or offset < 0 or not handed.offset_message_id:
            return
        where = name, broker
        topic = self._topics.get(where) or self._topics.setdefault(where, _WatchedTopic())
        queue = topic.queues.get(number) or topic.queues.setdefault(number, _WatchedQueue())
        position = int(handed.offset_message_id[-16:], 16)
        stored = position, offset
        if position > queue.highest[0] and offset <= queue.highest[1]:
            old_end_at = queue.highest[0]
            topic.queues[number] = queue = _WatchedQueue()
            _begin(topic, old_end_at, position, now_s)
            queue.known_of = topic.recreations
        queue.recent.append(stored)
        queue.highest = max(queue.highest, stored)
        if queue.old_end is not None:
            _note(queue, [stored], topic.begins_at, now_s)

    def turn(self, now_s: float) -> None:
        """Report the queues that are certain by now."""
        for (name, broker), topic in self._topics.items():
            for number, queue in topic.queues.items():
                if queue.old_end is not None and queue.first < _NONE and now_s >= queue.told_at_s:
                    if queue.first >= queue.old_end:
                        self._say(TopicPartition(name, number, broker), queue.first)
                    queue.old_end, queue.known_of = None, topic.recreations

    def _say(self, tp: TopicPartition, offset: int) -> None:
        action = "reset the group's offset to read them"
        self._tell("offset.skipped", "error", {**tp.fields(), "offset": offset, "skipped": offset, "action": action})


def _begin(topic: _WatchedTopic, old_end_at: int, first: int, now_s: float) -> None:
    """Handle a queue that was recreated: so were the others, somewhere after their earlier messages.

    The queues of a topic may begin minutes apart. It is another recreation only if the queue had a message after the
    last one.
    """
    if old_end_at >= topic.begins_at:
        topic.recreations, topic.begins_at = topic.recreations + 1, first
    topic.begins_at = min(topic.begins_at, first)
    for queue in topic.queues.values():
        older = [offset for position, offset in queue.recent if position < topic.begins_at]
        if older and queue.known_of < topic.recreations:
            queue.old_end, queue.first = max(older) + 1, _NONE
            _note(queue, queue.recent, topic.begins_at, now_s)


def _note(queue: _WatchedQueue, places: Iterable[tuple[int, int]], begins_at: int, now_s: float) -> None:
    """Record the first of these since the topic was recreated, if it is earlier than the known one."""
    first = min((offset for position, offset in places if position >= begins_at), default=_NONE)
    if queue.first == _NONE > first:
        queue.told_at_s = now_s + SETTLES_S
    queue.first = min(queue.first, first)


CALLS = 16
"""Limit of concurrent requests for messages."""
SIZE_FIRST = 64 << 10
"""Assumed size of a message until one is seen; after that, the largest recent one counts."""
SIZE_FADES = 0.99
RECEIVED_TIMES = 3
"""While a message is received, it is in memory three times: as received, as bytes, and as a message."""
ORDERED_TIMES = 4
"""Factor by which more may be requested with order, because a request gets no more than its queues give."""


class Arrivals:
    """Takes messages from an event loop to the owner's thread, at most `queue_bytes` ahead."""

    def __init__(self, queue_bytes: int, loop: asyncio.AbstractEventLoop, *, in_order: bool) -> None:
        self._queue_bytes = queue_bytes
        self._loop = loop
        self._times = ORDERED_TIMES if in_order else 1 / RECEIVED_TIMES
        self._messages: deque[tuple[int, Any, int]] = deque()
        """Numbers, messages and sizes; compressed, as the caller accounts the rest."""
        self._nbytes = 0
        self._changed = threading.Condition()
        self._taken_bytes = 0
        """Bytes taken last, until it is known whether they leave room for more."""
        self._room = asyncio.Event()
        self._awaits_room = False
        self._size: float = SIZE_FIRST
        self._knows_size = in_order  # else the first request asks for one message
        self.is_full = False
        """Whether the owner takes no messages."""

    # On the owner's thread

    def take(self, timeout_s: float, handed: Callable[[int, Any], HandedMessage]) -> list[HandedMessage]:
        """Messages that arrived; waits for the first, at most for the time; none while full."""
        messages: list[HandedMessage] = []
        size_bytes = 0
        self._taken_bytes = 0
        self._tell_room()
        if not self._messages or self.is_full:
            with self._changed:
                self._changed.wait_for(lambda: self._messages and not self.is_full, timeout_s)
        arrived_bytes = 0
        while self._messages and not self.is_full and size_bytes < self._queue_bytes:
            number, message, one_bytes = self._messages.popleft()
            arrived_bytes += one_bytes
            messages.append(handed(number, message))
            self._taken_bytes = size_bytes = size_bytes + self._measured(messages[-1])
        with self._changed:
            self._nbytes -= arrived_bytes
        self._tell_room()
        return messages

    def _measured(self, message: HandedMessage) -> int:
        size_bytes = len(message.body) + OVERHEAD_BYTES
        self._size = max(size_bytes, self._size * SIZE_FADES if self._knows_size else 0)
        self._knows_size = True
        return size_bytes

    def _tell_room(self) -> None:
        if self._awaits_room:
            self._awaits_room = False
            self._loop.call_soon_threadsafe(self._room.set)

    # On the loop

    async def put(self, messages: Sequence[tuple[int, Any]]) -> None:
        """Add numbers and messages that were received together, as soon as there is room."""
        arrived = [(number, message, len(message.body) + OVERHEAD_BYTES) for number, message in messages]
        await self._await_room(lambda: self._nbytes < self._queue_bytes)
        with self._changed:
            self._messages += arrived
            self._nbytes += sum(size_bytes for *_, size_bytes in arrived)
            self._changed.notify()

    async def room(self) -> None:
        """Wait until a message may be requested."""
        await self._await_room(lambda: self.may_ask)

    async def _await_room(self, has_room: Callable[[], bool]) -> None:
        while not has_room():
            self._room.clear()
            self._awaits_room = True
            if not has_room():
                await self._room.wait()

    @property
    def may_ask(self) -> bool:
        """Whether there is room for one more message of the recent size, or none is being received."""
        waiting_bytes = self._nbytes + self._taken_bytes
        return not waiting_bytes or waiting_bytes + RECEIVED_TIMES * self._size <= self._queue_bytes

    def ahead(self, queues: int) -> int:
        """Limit of messages requested at once from one topic and broker."""
        return max(1, int(self._times * self._queue_bytes / self._size / queues)) if self._knows_size else 1

    def share(self, queues: int) -> tuple[int, int]:
        """Limits for one topic and broker: open requests, and messages of each."""
        messages = self.ahead(queues)
        calls = min(max(1, CALLS // queues), messages)
        return calls, min(BATCH_MAX, max(1, messages // calls))

    def numbers(self) -> list[int]:
        """Numbers of the messages that wait to be taken."""
        return [number for number, *_ in list(self._messages)]


MANY_CALLS = 4
"""Limit of concurrent requests while many messages arrive: 16 waiting threads took 36 us per message, 4 took 25."""
RETRY_S, AGAIN_S = 0.3, 0.05
NO_MESSAGE = 40_401


class GrpcReceiver:
    """Receives messages of a session until it breaks."""

    def __init__(
        self, requests: GrpcRequests, attempts: Attempts, leases: Leases, arrivals: Arrivals, problems: dict[str, str]
    ) -> None:
        self._requests = requests
        self._attempts = attempts
        self._leases = leases
        self._arrivals = arrivals
        self._problems = problems
        self.may_go_on = asyncio.Event()
        """Set while messages may be requested."""

    async def go_on(self, *, adopted: bool) -> None:
        """Request messages from now on, unless the owner is full.

        Args:
            adopted: Whether messages of another process are acknowledged first: a request made before their queue is
                free would wait for all of `POLL_S`.
        """
        if adopted:
            await self._leases.acknowledged(REQUEST_S)
        if not self._arrivals.is_full:
            self.may_go_on.set()

    def workers(self, session: Session) -> list[Awaitable[None]]:
        """Workers, one for each topic and broker."""
        receive = self._receive_in_order if self._attempts.in_order else self._receive
        return [receive(session, queue) for queue in session.queues]

    async def _receive(self, session: Session, queue: Any) -> None:
        """Request messages: one request at a time while few arrive, several while there are many.

        A request that waits when its process dies still takes a message, which then comes again, and again for the next
        such request; after 16 times a broker moves it to the dead letters.
        """
        wanted = 1
        open_: set[asyncio.Task[bool]] = set()
        done: set[asyncio.Task[bool]] = set()
        try:
            while True:
                if not open_:
                    await self._arrivals.room()
                await self.may_go_on.wait()
                calls, count = self._arrivals.share(len(session.queues))
                while len(open_) < min(wanted, calls) and (self._arrivals.may_ask or not open_):
                    open_.add(asyncio.create_task(self._receive_once(session, queue, count)))
                done, open_ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    wanted = min(2 * wanted, MANY_CALLS) if task.result() else max(1, wanted - 1)
        finally:
            await _cancelled(open_ | done)

    async def _receive_in_order(self, session: Session, queue: Any) -> None:
        """Request messages with the attempt ids that are due."""
        name = _name(queue)
        open_: set[asyncio.Task[bool]] = set()
        done: set[asyncio.Task[bool]] = set()
        try:
            while True:
                await self.may_go_on.wait()
                room = self._arrivals.ahead(len(session.queues))
                count = min(BATCH_MAX, room, self._attempts.most(name))
                for use in self._attempts.free(name, session.counts[name])[: max(0, room // count - len(open_))]:
                    open_.add(asyncio.create_task(self._receive_once(session, queue, count, use)))
                if not open_:  # two ids hold one queue, because the first lock expired
                    await asyncio.sleep(AGAIN_S)
                    continue
                again_s = AGAIN_S if self._attempts.is_doubted(name) else None
                done, open_ = await asyncio.wait(open_, timeout=again_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await _cancelled(open_ | done)

    async def _receive_once(self, session: Session, queue: Any, count: int, use: Use | None = None) -> bool:
        """Whether all requested messages arrived."""
        status = None
        came: list[int] = []
        name = _name(queue)
        self._attempts.begin_request(use)
        try:
            request = self._requests.receive(queue, count, INVISIBLE_S, self._attempts.attempt_id(use))
            async for parts in session.stream(request):
                messages = [part.message for part in parts if part.HasField("message")]
                came += [message.system_properties.queue_id for message in messages]
                status = next((part.status for part in parts if part.HasField("status")), status)
                await self._arrivals.put([(self._leases.add_received(message, use), message) for message in messages])
            if status is None or status.code in (OK, NO_MESSAGE):
                self._problems.pop(name, None)
                return len(came) >= count
            self._problems[name] = f"{name}: {status.message} (code {status.code})"
            if "settings" in status.message:
                raise ConnectionError("the proxy has forgotten this member")
            await asyncio.sleep(RETRY_S)
            return False
        finally:
            wholly = len(came) < count and status is not None and status.code in (OK, NO_MESSAGE)
            self._attempts.answered(use, came, wholly=wholly, cut=status is None)


def _name(queue: Any) -> str:
    return f"{queue.topic.name} on {queue.broker.name}"


async def _cancelled(tasks: Collection[asyncio.Task[bool]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


T = TypeVar("T")

KEEP_EVERY_S = 2.0
CLOSE_S = 5.0


class GrpcClient:
    """A `LeasedClient` by simple consumption: receive, acknowledge, change the invisible time.

    Args:
        expression: The tags that brokers filter by, `a || b`, or `*`.
        queue_bytes: Limit of messages received ahead.
        tell: Writes a log event; called from a separate thread.
        in_order_at: Name of this place, the same after a crash, if messages come in order; otherwise empty.

    Raises:
        ConfigError: The package with the stubs, or a certificate, cannot be used.
    """

    moves = True

    def __init__(
        self, settings: RocketMqSettings, expression: str, queue_bytes: int, tell: Tell, in_order_at: str = ""
    ) -> None:
        stubs = load()
        self._requests = GrpcRequests(stubs, settings, f"sidecar@{secrets.token_hex(8)}", expression, tell)
        self._sessions = Sessions(stubs, settings, self._requests)
        self._skipped = Skipped(tell)
        self._attempts = Attempts(in_order_at)
        self._loop = asyncio.new_event_loop()
        self._arrivals = Arrivals(queue_bytes, self._loop, in_order=self._attempts.in_order)
        self._loop.set_exception_handler(_failed)
        self._leases = Leases(self._requests, self._sessions.call, self._attempts)
        self._receiver = GrpcReceiver(
            self._requests, self._attempts, self._leases, self._arrivals, self._sessions.problems
        )
        self._thread: threading.Thread | None = None
        self._has_adopted = self._closed = False

    # Methods on the owner's thread

    def open(self) -> None:
        self._thread = threads.start(self._loop.run_forever, "grpc")
        self._do(self._begin())
        try:
            self._sessions.await_open()
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        messages = self._arrivals.take(timeout_s, self._requests.handed)
        now_s = time.monotonic()
        for message in messages:
            self._skipped.look(message, now_s)
        self._skipped.turn(now_s)
        return messages

    def ack(self, handles: Collection[Hashable]) -> None:
        self._loop.call_soon_threadsafe(self._leases.ack, list(handles))

    def extend(self, handles: Collection[Hashable]) -> None:
        self._loop.call_soon_threadsafe(self._leases.extend, list(handles))

    def is_leased(self, handle: Hashable) -> bool:
        lease = self._leases.get(handle)
        return lease is not None and lease.is_live

    def release(self, handles: Collection[Hashable]) -> None:
        self._loop.call_soon_threadsafe(self._leases.release, list(handles))

    def receipt(self, handle: Hashable) -> str:
        lease = self._leases.get(handle)
        return lease.receipt if lease is not None else ""

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        self._has_adopted = True

        async def add() -> int:  # the end of its lease is not known
            return self._leases.add(Lease(topic, message_id, renewed(receipt), time.monotonic()))

        return self._do(add())

    def pause(self, full: bool) -> None:
        self._arrivals.is_full = full
        if not self._sessions.opened.is_set():
            return
        if full:
            self._loop.call_soon_threadsafe(self._receiver.may_go_on.clear)
        else:
            adopted, self._has_adopted = self._has_adopted, False
            go_on = self._receiver.go_on(adopted=adopted)
            threads.watch(asyncio.run_coroutine_threadsafe(go_on, self._loop), "grpc")

    def problems(self) -> Mapping[str, str]:
        return dict(self._sessions.problems)

    def close(self) -> None:
        """Give back the messages that are left, and disconnect; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None and self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return threads.result(asyncio.run_coroutine_threadsafe(work, self._loop), self._thread)

    # The loop

    async def _begin(self) -> None:
        await self._receiver.go_on(adopted=False)
        keep_open = self._sessions.keep_open(self._receiver.workers)
        self._keepers = [asyncio.ensure_future(keep_open), asyncio.ensure_future(_keep(self._leases, self._arrivals))]
        for keeper in self._keepers:
            keeper.add_done_callback(_ended)

    async def _end(self) -> None:
        self._receiver.may_go_on.clear()
        await self._leases.close(CLOSE_S if self._sessions.is_open else 0.0)
        await self._sessions.leave()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)


def _failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Fail on an error that a callback or a forgotten task raised on the loop."""
    threads.fail("grpc", context.get("exception") or RuntimeError(context["message"]))


def _ended(keeper: asyncio.Future[None]) -> None:
    if not keeper.cancelled() and (error := keeper.exception()) is not None:
        threads.fail("grpc", error)


async def _keep(leases: Leases, arrivals: Arrivals) -> None:
    """Extend the leases of messages that wait to be taken."""
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        leases.extend(arrivals.numbers())
