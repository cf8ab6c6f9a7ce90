"""RocketMQ 5 through its proxy over gRPC, as a `LeasedClient`: a separate thread runs the event loop."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from sidecar import threads
from sidecar.config.source.rocketmq import RocketMqSource as RocketMqSettings
from sidecar.sources.base import Tell
from sidecar.sources.rocketmq.grpc.arrivals import Arrivals
from sidecar.sources.rocketmq.grpc.attempts import Attempts
from sidecar.sources.rocketmq.grpc.leases import Leases
from sidecar.sources.rocketmq.grpc.receiver import GrpcReceiver
from sidecar.sources.rocketmq.grpc.requests import REQUEST_S, GrpcRequests
from sidecar.sources.rocketmq.grpc.sessions import Sessions
from sidecar.sources.rocketmq.grpc.skipped import Skipped
from sidecar.sources.rocketmq.grpc.stubs import load
from sidecar.sources.rocketmq.leased.client import HandedMessage

T = TypeVar("T")

KEEP_EVERY_S = 2.0
CLOSE_S = 5.0


class GrpcClient:
    """A group member by simple consumption: receive, acknowledge, change the invisible time.

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
        self._thread: threading.Thread | None = None
        self._has_adopted = self._closed = False

    # Methods on the owner's thread

    def open(self) -> None:
        """Connect and subscribe; returns when messages can be received.

        Raises:
            UnavailableError: Servers cannot be reached, or topic or group is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        self._thread = threads.start(self._loop.run_forever, "grpc")
        self._do(self._begin())
        try:
            self._sessions.await_open()
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        """Messages that arrived; waits for the first, at most for the time; none while full."""
        messages = self._arrivals.take(timeout_s, self._requests.handed)
        now_s = time.monotonic()
        for message in messages:
            self._skipped.look(message, now_s)
        self._skipped.turn(now_s)
        return messages

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        self._loop.call_soon_threadsafe(self._leases.ack, list(handles))

    def extend(self, handles: Collection[Hashable]) -> None:
        """Extend the leases of these messages."""
        self._loop.call_soon_threadsafe(self._leases.extend, list(handles))

    def is_leased(self, handle: Hashable) -> bool:
        """Whether the proxy granted more time than has passed."""
        return self._leases.is_live(handle)

    def release(self, handles: Collection[Hashable]) -> None:
        """Give these messages back."""
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
        self._arrivals.is_full = full
        if not self._sessions.opened.is_set():
            return
        if full:
            self._loop.call_soon_threadsafe(self._receiver.may_go_on.clear)
        else:
            threads.watch(asyncio.run_coroutine_threadsafe(self._go_on(), self._loop), "grpc")

    def problems(self) -> Mapping[str, str]:
        """Present problems: a key, and a sentence for an operator."""
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
        self._leases = Leases(self._requests, self._sessions.call, self._attempts)
        self._receiver = GrpcReceiver(
            self._requests, self._attempts, self._leases, self._arrivals, self._sessions.problems
        )
        if not self._arrivals.is_full:
            self._receiver.may_go_on.set()
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

    async def _go_on(self) -> None:
        """Wait for adopted messages: a request made before their queue is free would wait for all of `POLL_S`."""
        if self._has_adopted:
            self._has_adopted = False
            await self._leases.acknowledged(REQUEST_S)
        if not self._arrivals.is_full:
            self._receiver.may_go_on.set()


def _failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a callback or a forgotten task raised on the loop."""
    threads.fail("grpc", context.get("exception") or RuntimeError(context["message"]))


def _ended(keeper: asyncio.Future[None]) -> None:
    if not keeper.cancelled() and (error := keeper.exception()) is not None:
        threads.fail("grpc", error)


async def _keep(leases: Leases, arrivals: Arrivals) -> None:
    """Extend the leases of messages that wait to be taken."""
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        leases.extend(arrivals.numbers())
