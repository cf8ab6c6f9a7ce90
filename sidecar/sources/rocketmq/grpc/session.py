"""Successive sessions with proxies, each server in turn, and the state between sessions."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sidecar import threads
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.errors import SidecarError, UnavailableError
from sidecar.sources.rocketmq.config import refused, tls_of
from sidecar.sources.rocketmq.grpc.leases import OK
from sidecar.sources.rocketmq.grpc.requests import POLL_S, REQUEST_S, GrpcRequests
from sidecar.sources.rocketmq.grpc.stubs import Stubs
from sidecar.sources.rocketmq.wire.network import RefusedError

T = TypeVar("T")

HEARTBEAT_S = 10.0
ROUTE_S = 30.0
STREAM_S = POLL_S + 30.0
"""While there is no room, a stream is not read."""
MESSAGE_MAX_BYTES = 64 << 20
TOGETHER_BYTES = 64 << 10
"""Size of messages that are handed on together."""
THREADS_MAX = 10_000
"""Maximum number of concurrent waiting calls."""
UNAUTHORIZED, FORBIDDEN, TOPIC_NOT_FOUND, GROUP_NOT_FOUND = 40_100, 40_300, 40_402, 40_403


class Session:
    """Opens a connection, and serves it until it breaks."""

    def __init__(
        self, stubs: Stubs, settings: RocketMqSettings, requests: GrpcRequests, server: str, credentials: Any
    ) -> None:
        self._grpc = stubs.grpc
        self._settings = settings
        self._requests = requests
        self.server = server
        options = [
            ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES), ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
            ("grpc.enable_retries", 0), (self._grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
        ]  # fmt: skip
        if credentials is None:
            self._channel = self._grpc.insecure_channel(server, options)
        else:
            self._channel = self._grpc.secure_channel(server, credentials, options)
        self._threads = threads.Pool("grpc-call", THREADS_MAX)
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Commands for the telemetry stream, None at its end."""
        self._stub = stubs.service(self._channel)
        self._values = stubs.values
        self.queues: list[Any] = []
        """One queue for each topic and broker, which represents all of its queues there."""
        self.counts: Counter[str] = Counter()
        """Number of those queues, by topic and broker."""

    async def serve(
        self, wait_s: float, is_open: Callable[[], None], work: Callable[[], Sequence[Awaitable[None]]]
    ) -> None:
        """Introduce this client, find topics after `wait_s`, report the open session, and work until an error."""
        try:
            stream = self._stub.Telemetry(iter(self._commands.get, None), metadata=self._requests.metadata())
            await asyncio.wait_for(self._introduce(stream), REQUEST_S)
            await asyncio.sleep(wait_s)
            await self._find_queues()
            is_open()
            tasks = [asyncio.ensure_future(job) for job in (self._listen(stream), self._beat(), self._watch(), *work())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            raise next(error for error in ended if isinstance(error, Exception))
        except (self._grpc.RpcError, TimeoutError) as error:
            raise self._broken(error) from error

    async def close(self) -> None:
        """Disconnect; this ends waiting calls."""
        self._commands.put(None)
        self._channel.close()
        self._threads.shutdown(wait=False)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Wait for an answer on a thread: on the loop, each message of a stream would wake up several threads."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except (ValueError, RuntimeError) as error:  # the channel or the thread pool is closed
            raise ConnectionError("the connection was closed") from error  # by this process, while others waited

    async def call(self, name: str, request: Any, timeout_s: float = REQUEST_S) -> Any:
        """Send a request and return the answer; raises `ConnectionError` if there is no answer."""
        try:
            call = partial(getattr(self._stub, name), metadata=self._requests.metadata(), timeout=timeout_s)
            return await self._in_thread(call, request)
        except self._grpc.RpcError as error:
            raise self._broken(error) from error

    async def stream(self, request: Any) -> AsyncIterator[list[Any]]:
        """Request messages; yield parts of the answer, several together, as they arrive and as long as they may."""
        answer = self._stub.ReceiveMessage(request, metadata=self._requests.metadata(), timeout=STREAM_S)
        try:
            is_over = False
            while not is_over:
                parts, is_over = await self._in_thread(self._some, answer)
                yield parts
        except self._grpc.RpcError as error:
            if error.code() is not self._grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        finally:
            answer.cancel()

    def _some(self, answer: Any) -> tuple[list[Any], bool]:
        """The next parts of an answer, and whether these are the last; a proxy sends all of them at once."""
        parts: list[Any] = []
        size_bytes = 0
        try:
            for part in answer:
                parts.append(part)
                size_bytes += len(part.message.body)
                if size_bytes >= TOGETHER_BYTES:
                    return parts, False
        except self._grpc.RpcError:
            if not parts:
                raise
            return parts, False  # the error is raised at the next call
        return parts, True

    def _broken(self, error: Any) -> Exception:
        if not isinstance(error, self._grpc.RpcError):
            return ConnectionError("no answer in time")
        code, text = error.code(), error.details() or ""
        if code in (self._grpc.StatusCode.UNAUTHENTICATED, self._grpc.StatusCode.PERMISSION_DENIED):
            return RefusedError(text, UNAUTHORIZED)
        if "group not found" in text:
            return RefusedError(text, GROUP_NOT_FOUND)
        return ConnectionError(text or code.name)

    async def _introduce(self, stream: Any) -> None:
        self._commands.put(self._requests.telemetry(self.server))
        while True:
            command = await self._in_thread(next, stream, None)
            if command is None:
                raise ConnectionError("the telemetry stream ended at once")
            if command.HasField("status"):
                self._check(command.status)
            if command.HasField("settings"):
                return

    def _check(self, status: Any) -> None:
        if status.code != OK:
            raise RefusedError(status.message, status.code)

    async def _find_queues(self) -> None:
        shares = []
        for topic in self._settings.topics:
            answer = await self.call("QueryRoute", self._requests.route(topic, self.server))
            self._check(answer.status)
            self.counts |= Counter(f"{routed.topic.name} on {routed.broker.name}" for routed in answer.message_queues)
            brokers = {routed.broker.name: routed for routed in answer.message_queues}
            for _, share in sorted(brokers.items()):
                share.id = -1
                shares.append(share)
        self.queues = shares

    async def _listen(self, stream: Any) -> None:
        """Commands of the proxy need no answer; the end of the stream is the end of the session."""
        while True:
            command = await self._in_thread(next, stream, None)
            if command is None:
                raise ConnectionError("the telemetry stream ended")
            if command.HasField("status"):
                self._check(command.status)

    async def _beat(self) -> None:
        while True:
            self._check((await self.call("Heartbeat", self._requests.heartbeat())).status)
            await asyncio.sleep(HEARTBEAT_S)

    async def _watch(self) -> None:
        """Begin a new session when there are new brokers."""
        while True:
            await asyncio.sleep(ROUTE_S)
            before = [share.broker.name for share in self.queues]
            await self._find_queues()
            if [share.broker.name for share in self.queues] != before:
                raise ConnectionError("the brokers of a topic changed")


RETRY_S = 0.3
RETURN_S = 1.0
"""Time for which a proxy that returned is not asked for topics: it would remember for 20 s that it knows none."""
_HINTS = {
    GROUP_NOT_FOUND: "create the group first, gRPC never does: mqadmin updateSubGroup -n NAMESRV -c CLUSTER -g GROUP",
    TOPIC_NOT_FOUND: "create the topic, or correct source.rocketmq.topics",
}


class Sessions:
    """Keeps a session open; raises `ConfigError` if a certificate cannot be used."""

    def __init__(self, stubs: Stubs, settings: RocketMqSettings, requests: GrpcRequests) -> None:
        self._stubs = stubs
        self._settings = settings
        self._requests = requests
        self._credentials = _credentials(stubs, settings)
        self._session: Session | None = None
        self.opened = threading.Event()
        """Set once messages could be received."""
        self._refused: RefusedError | None = None
        self.problems: dict[str, str] = {}
        """Present problems: a key, and a sentence for an operator."""

    def await_open(self) -> None:
        """Return when messages can be received; on the owner's thread."""
        until_s = time.monotonic() + self._settings.start_timeout_ms / 1000
        while not self.opened.wait(0.05):
            if self._refused is not None and self._refused.code in (UNAUTHORIZED, FORBIDDEN):
                raise refused(self._refused)
            if time.monotonic() >= until_s:
                raise self._unavailable(self._refused)

    def _unavailable(self, refusal: RefusedError | None) -> SidecarError:
        servers = self._settings.endpoints
        waited = f"for {self._settings.start_timeout_ms / 1000:g} s (source.rocketmq.start_timeout)"
        if refusal is None:
            why = self.problems.get("proxy", "no answer")
            hint = "check source.rocketmq.endpoints: it is the gRPC port of a proxy, 8081 by default, not a name server"
            return UnavailableError(f"RocketMQ: the proxy at {servers} could not be reached {waited}: {why}", hint=hint)
        text = f"RocketMQ: the proxy at {servers} refused {waited}: {refusal}"
        return UnavailableError(text, hint=_HINTS.get(refusal.code, "check group and topics under source.rocketmq"))

    async def keep_open(self, workers: Callable[[Session], Sequence[Awaitable[None]]]) -> None:
        """Open one session after another, and run these workers in it."""
        servers, number = (self._settings.endpoints or "").split(","), 0
        wait_s = 0.0
        while True:
            session = Session(
                self._stubs, self._settings, self._requests, servers[number % len(servers)], self._credentials
            )
            number += 1
            try:
                await session.serve(wait_s, partial(self._is_open, session), partial(workers, session))
            except RefusedError as error:
                self._refused = error
                self.problems["proxy"] = f"{session.server} refuses: {error}"
                wait_s = 0.0
            except ConnectionError as error:
                self.problems["proxy"] = f"{session.server} is away: {error}"
                wait_s = RETURN_S if self._session is None and self.opened.is_set() else 0.0
            except Exception as error:  # noqa: BLE001  # a bug here or in the proxy: reported, and tried again
                self.problems["proxy"] = f"{session.server}: {error!r}"
            finally:
                self._session = None
                await session.close()
            await asyncio.sleep(RETRY_S)

    def _is_open(self, session: Session) -> None:
        self._session, self._refused = session, None
        self.problems.clear()
        self.opened.set()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def leave(self) -> None:
        """Report to the proxy that this member has left for good."""
        if self.is_open:
            with contextlib.suppress(ConnectionError):  # the proxy finds out by itself
                await self.call("NotifyClientTermination", self._requests.leave())

    async def call(self, name: str, request: Any) -> Any:
        """Call in the present session, or in the next one if it begins soon; raises like `Session.call`."""
        until_s = time.monotonic() + REQUEST_S
        while self._session is None:
            if time.monotonic() >= until_s:
                raise ConnectionError("there is no connection")
            await asyncio.sleep(0.05)
        try:
            return await self._session.call(name, request)
        except RefusedError as error:
            raise ConnectionError(str(error)) from error


def _credentials(stubs: Stubs, settings: RocketMqSettings) -> Any:
    """TLS credentials of the connections, None without TLS."""
    tls = settings.tls
    if tls is None:
        return None
    tls_of(settings)  # has the better error if a file cannot be used
    files = [path.read_bytes() if path else None for path in (tls.ca, tls.key or tls.cert, tls.cert)]
    return stubs.grpc.ssl_channel_credentials(*files)
