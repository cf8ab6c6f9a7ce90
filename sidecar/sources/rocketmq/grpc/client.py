"""RocketMQ 5 through its proxy over gRPC, as a `LeasedClient`: a separate thread runs the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sidecar.config.source import RocketMqSource as RocketMqSettings
from sidecar.errors import CredentialsError, SidecarError, UnavailableError
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.config import tls_of
from sidecar.sources.rocketmq.grpc.attempts import Attempts, Use
from sidecar.sources.rocketmq.grpc.leases import INVISIBLE_S, OK, Leases
from sidecar.sources.rocketmq.grpc.requests import BATCH_MAX, REQUEST_S, Requests
from sidecar.sources.rocketmq.grpc.session import (
    FORBIDDEN,
    GROUP_NOT_FOUND,
    TOPIC_NOT_FOUND,
    UNAUTHORIZED,
    RefusedError,
    Session,
)
from sidecar.sources.rocketmq.grpc.skipped import Skipped
from sidecar.sources.rocketmq.grpc.stubs import Stubs, load
from sidecar.sources.rocketmq.leased.client import Handed
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES

T = TypeVar("T")

CALLS = 16
"""Limit of concurrent requests for messages."""
MANY_CALLS = 4
"""Limit while many messages arrive: 16 waiting threads took 36 us per message, 4 took 25."""
SIZE_FIRST = 64 << 10
"""Assumed size of a message until one is seen; after that, the largest recent one counts."""
SIZE_FADES = 0.99
RECEIVED_TIMES = 3
"""While a message is received, it is in memory three times: as received, as bytes, and as a message."""
ORDERED_TIMES = 4
"""Factor by which more may be requested with order, because a request gets no more than its queues give."""
KEEP_EVERY_S = 2.0
RETRY_S, AGAIN_S = 0.3, 0.05
RETURN_S = 1.0
"""How long a proxy that returned is not asked for topics: it would remember for 20 s that it knows none."""
CLOSE_S = 5.0
NO_MESSAGE = 40_401
_HINTS = {
    GROUP_NOT_FOUND: "create the group first, gRPC never does: mqadmin updateSubGroup -n NAMESRV -c CLUSTER -g GROUP",
    TOPIC_NOT_FOUND: "create the topic, or correct source.rocketmq.topics",
}


class GrpcClient:
    """A member of the group by simple consumption: receive, acknowledge, change the invisible time.

    Args:
        settings: `source.rocketmq`.
        expression: The tags that brokers filter by, `a || b`, or `*`.
        queue_bytes: What may be received ahead.
        tell: Writes a log event; from a thread of its own.
        in_order_at: Names this place, the same after a crash, where messages come in order; else empty.

    Raises:
        ConfigError: The package with the stubs cannot be used, or a certificate.
    """

    moves = True

    def __init__(
        self, settings: RocketMqSettings, expression: str, queue_bytes: int, tell: Tell, in_order_at: str = ""
    ) -> None:
        self._settings = settings
        self._stubs: Stubs = load()
        self._credentials = _credentials(self._stubs, settings)
        self._requests = Requests(self._stubs, settings, f"sidecar@{secrets.token_hex(8)}", expression, tell)
        self._skipped = Skipped(tell)
        self._attempts = Attempts(in_order_at)
        self._queue_bytes = queue_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self._arrived: deque[tuple[int, Any, int]] = deque()
        """Numbers, messages and sizes of messages not yet taken; compressed, as the caller accounts the rest."""
        self._arrived_bytes = 0
        self._has_arrived = threading.Condition()
        self._taken_bytes = 0
        """Bytes taken last, until it is known whether they leave room for more."""
        self._awaits_room = False
        self._size: float = SIZE_FIRST
        self._knows_size = self._attempts.in_order  # else the first request asks for one message
        self._problems: dict[str, str] = {}
        self._session: Session | None = None
        self._opened = threading.Event()
        self._refused: RefusedError | None = None
        self._is_full = self._has_adopted = self._closed = False

    # The verbs, on the owner's thread

    def open(self) -> None:
        """Connect and subscribe; returns when messages can be received.

        Raises:
            UnavailableError: Servers cannot be reached, or topic or group is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        self._thread.start()
        self._do(self._begin())
        until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
        while not self._opened.wait(0.05):
            refused = self._refused
            if refused is not None and refused.code in (UNAUTHORIZED, FORBIDDEN):
                self.close()
                raise _no_credentials(refused)
            if time.monotonic() >= until_s:
                self.close()
                raise self._unavailable(refused)

    def receive(self, timeout_s: float) -> Sequence[Handed]:
        """Messages that arrived; waits for the first, at most for the time; none while full."""
        found: list[Handed] = []
        size_bytes = 0
        self._taken_bytes = 0
        self._tell_room()
        if not self._arrived or self._is_full:
            with self._has_arrived:
                self._has_arrived.wait_for(lambda: self._arrived and not self._is_full, timeout_s)
        while self._arrived and not self._is_full and size_bytes < self._queue_bytes:
            found.append(self._unpacked(*self._arrived[0][:2]))
            self._taken_bytes = size_bytes = size_bytes + len(found[-1].body) + OVERHEAD_BYTES
            with self._has_arrived:
                self._arrived_bytes -= self._arrived.popleft()[2]
        self._tell_room()
        self._skipped.turn(time.monotonic())
        return found

    def _tell_room(self) -> None:
        if self._awaits_room:
            self._awaits_room = False
            self._loop.call_soon_threadsafe(self._room.set)

    def _unpacked(self, token: int, message: Any) -> Handed:
        handed = self._requests.handed(token, message)
        self._size = max(len(handed.body) + OVERHEAD_BYTES, self._size * SIZE_FADES if self._knows_size else 0)
        self._knows_size = True
        self._skipped.look(handed, time.monotonic())
        return handed

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        self._loop.call_soon_threadsafe(self._leases.ack, list(handles))

    def extend(self, handles: Collection[Hashable]) -> None:
        """Extend the leases of these messages."""
        self._loop.call_soon_threadsafe(self._leases.extend, list(handles))

    def release(self, handles: Collection[Hashable]) -> None:
        """Give these back."""
        self._loop.call_soon_threadsafe(self._leases.release, list(handles))

    def receipt(self, handle: Hashable) -> str:
        """The receipt, with which another process can acknowledge it; empty after the acknowledgement."""
        return self._leases.receipt(handle)

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """The handle of a message that another process received."""
        self._has_adopted = True

        async def add() -> int:
            return self._leases.adopt(topic, message_id, receipt)

        return self._do(add())

    def pause(self, full: bool) -> None:
        """Stop receiving while `full`, or resume."""
        self._is_full = full
        if not self._opened.is_set():
            return
        if full:
            self._loop.call_soon_threadsafe(self._may_go_on.clear)
        else:
            asyncio.run_coroutine_threadsafe(self._go_on(), self._loop)

    def problems(self) -> Mapping[str, str]:
        """Present problems: a key, and a sentence for an operator."""
        return dict(self._problems)

    def close(self) -> None:
        """Give back what is left, and disconnect; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _unavailable(self, refused: RefusedError | None) -> SidecarError:
        servers = self._settings.endpoints
        waited = f"for {self._settings.start_timeout_ms / 1000:g} s (source.rocketmq.start_timeout)"
        if refused is None:
            why = self._problems.get("proxy", "no answer")
            hint = "check source.rocketmq.endpoints: it is the gRPC port of a proxy, 8081 by default, not a name server"
            return UnavailableError(f"RocketMQ: the proxy at {servers} could not be reached {waited}: {why}", hint=hint)
        text = f"RocketMQ: the proxy at {servers} refused {waited}: {refused}"
        return UnavailableError(text, hint=_HINTS.get(refused.code, "check group and topics under source.rocketmq"))

    # The loop

    async def _begin(self) -> None:
        self._may_go_on, self._room = asyncio.Event(), asyncio.Event()
        if not self._is_full:
            self._may_go_on.set()
        self._leases = Leases(self._requests, self._call, self._attempts)
        self._keepers = [asyncio.ensure_future(self._keep_open()), asyncio.ensure_future(self._keep())]

    async def _end(self) -> None:
        self._may_go_on.clear()
        await self._leases.close(CLOSE_S if self._session is not None else 0.0)
        if self._session is not None:
            with contextlib.suppress(ConnectionError):  # it finds out by itself
                await self._call("NotifyClientTermination", self._requests.leave())
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep_open(self) -> None:
        """One session after another, with each server in turn."""
        servers, number = (self._settings.endpoints or "").split(","), 0
        wait_s = 0.0
        while True:
            session = Session(
                self._stubs, self._settings, self._requests, servers[number % len(servers)], self._credentials
            )
            number += 1
            try:
                await session.serve(wait_s, partial(self._is_open, session), partial(self._workers, session))
            except RefusedError as error:
                self._refused = error
                self._problems["proxy"] = f"{session.server} refuses: {error}"
                wait_s = 0.0
            except ConnectionError as error:
                self._problems["proxy"] = f"{session.server} is away: {error}"
                wait_s = RETURN_S if self._session is None and self._opened.is_set() else 0.0
            except Exception as error:  # noqa: BLE001  # a bug here or in the proxy: reported, and tried again
                self._problems["proxy"] = f"{session.server}: {error!r}"
            finally:
                self._session = None
                await session.close()
            await asyncio.sleep(RETRY_S)

    def _is_open(self, session: Session) -> None:
        self._session, self._refused = session, None
        self._problems.clear()
        self._opened.set()

    async def _go_on(self) -> None:
        """Wait for adopted messages: a request made before their queue is free would wait for all of `POLL_S`."""
        if self._has_adopted:
            self._has_adopted = False
            await self._leases.acknowledged(REQUEST_S)
        if not self._is_full:
            self._may_go_on.set()

    async def _call(self, name: str, request: Any) -> Any:
        """Call in the present session, or in the next one if it begins soon."""
        until_s = time.monotonic() + REQUEST_S
        while self._session is None:
            if time.monotonic() >= until_s:
                raise ConnectionError("there is no connection")
            await asyncio.sleep(0.05)
        try:
            return await self._session.call(name, request)
        except RefusedError as error:
            raise ConnectionError(str(error)) from error

    # Receiving

    def _workers(self, session: Session) -> list[Awaitable[None]]:
        receive = self._receive_in_order if self._attempts.in_order else self._receive
        return [receive(session, queue) for queue in session.queues]

    def _ahead(self, queues: int) -> int:
        """Limit of messages requested at once from one topic and broker."""
        times = ORDERED_TIMES if self._attempts.in_order else 1 / RECEIVED_TIMES
        return max(1, int(times * self._queue_bytes / self._size / queues)) if self._knows_size else 1

    def _share(self, queues: int) -> tuple[int, int]:
        """Limits for one topic and broker: open requests, and messages of each."""
        messages = self._ahead(queues)
        calls = min(max(1, CALLS // queues), messages)
        return calls, min(BATCH_MAX, max(1, messages // calls))

    @property
    def _may_ask(self) -> bool:
        """Whether there is room for one more message of the recent size, or none is being received."""
        waiting_bytes = self._arrived_bytes + self._taken_bytes
        return not waiting_bytes or waiting_bytes + RECEIVED_TIMES * self._size <= self._queue_bytes

    async def _await_room(self, has_room: Callable[[], bool]) -> None:
        while not has_room():
            self._room.clear()
            self._awaits_room = True
            if not has_room():
                await self._room.wait()

    async def _receive(self, session: Session, queue: Any) -> None:
        """Request messages: one request at a time while few arrive, several while there are many.

        A request that waits when its process dies takes a message all the same, which then comes again, and again for
        the next such request; after 16 times a broker gives it to the dead letters.
        """
        wanted = 1
        open_: set[asyncio.Task[bool]] = set()
        done: set[asyncio.Task[bool]] = set()
        try:
            while True:
                if not open_:
                    await self._await_room(lambda: self._may_ask)
                await self._may_go_on.wait()
                calls, count = self._share(len(session.queues))
                while len(open_) < min(wanted, calls) and (self._may_ask or not open_):
                    open_.add(asyncio.create_task(self._receive_once(session, queue, count)))
                done, open_ = await asyncio.wait(open_, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    wanted = min(2 * wanted, MANY_CALLS) if one.result() else max(1, wanted - 1)
        finally:
            await _cancelled(open_ | done)

    async def _receive_in_order(self, session: Session, queue: Any) -> None:
        """Request messages with the attempt ids that are due."""
        name = _name(queue)
        open_: set[asyncio.Task[bool]] = set()
        done: set[asyncio.Task[bool]] = set()
        try:
            while True:
                await self._may_go_on.wait()
                room = self._ahead(len(session.queues))
                count = min(BATCH_MAX, room, self._attempts.most(name))
                for use in self._attempts.free(name, session.counts[name])[: max(0, room // count - len(open_))]:
                    open_.add(asyncio.create_task(self._receive_once(session, queue, count, use)))
                if not open_:  # two ids hold one queue, because the first lock expired
                    await asyncio.sleep(AGAIN_S)
                    continue
                again_s = AGAIN_S if self._attempts.is_doubted(name) else None
                done, open_ = await asyncio.wait(open_, timeout=again_s, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        finally:
            await _cancelled(open_ | done)

    async def _receive_once(self, session: Session, queue: Any, count: int, use: Use | None = None) -> bool:
        """Whether all requested messages arrived."""
        status = None
        came: list[int] = []
        name = _name(queue)
        self._attempts.begin(use)
        try:
            request = self._requests.receive(queue, count, INVISIBLE_S, self._attempts.attempt_id(use))
            async for parts in session.stream(request):
                messages = [part.message for part in parts if part.HasField("message")]
                came += [message.system_properties.queue_id for message in messages]
                status = next((part.status for part in parts if part.HasField("status")), status)
                await self._put(messages, use)
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

    async def _put(self, messages: Sequence[Any], use: Use | None) -> None:
        arrived = []
        for message in messages:
            system = message.system_properties
            token = self._leases.add(message.topic.name, system.message_id, system.receipt_handle, use)
            arrived.append((token, message, len(message.body) + OVERHEAD_BYTES))
        await self._await_room(lambda: self._arrived_bytes < self._queue_bytes)
        with self._has_arrived:
            self._arrived += arrived
            self._arrived_bytes += sum(size_bytes for *_, size_bytes in arrived)
            self._has_arrived.notify()

    async def _keep(self) -> None:
        """Extend the leases of messages that wait to be taken."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            self._leases.extend([token for token, *_ in list(self._arrived)])


def _name(queue: Any) -> str:
    return f"{queue.topic.name} on {queue.broker.name}"


async def _cancelled(tasks: Collection[asyncio.Task[bool]]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _no_credentials(refused: RefusedError) -> CredentialsError:
    hint = "check access_key and secret_key under source.rocketmq, and that this user may read the topics and the group"
    return CredentialsError(f"RocketMQ refused a request: {refused}", hint=hint)


def _credentials(stubs: Stubs, settings: RocketMqSettings) -> Any:
    """TLS credentials of the connections, None without TLS."""
    tls = settings.tls
    if tls is None:
        return None
    tls_of(settings)  # has the better error if a file cannot be used
    files = [path.read_bytes() if path else None for path in (tls.ca, tls.key or tls.cert, tls.cert)]
    return stubs.grpc.ssl_channel_credentials(*files)
