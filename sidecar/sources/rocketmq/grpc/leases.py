"""Messages that are ours for a while: acknowledged many at a time, kept invisible, or given back. One loop's alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from sidecar.sources.rocketmq.grpc.attempts import Attempts, Use
from sidecar.sources.rocketmq.grpc.requests import Requests, renewed

INVISIBLE_S = 15.0
"""After so long a message that nobody acknowledged comes again: a killed process's are waited for so long."""
EXTENDED_S = 60.0
EXTEND_AHEAD_S = 8.0
RELEASED_S = 1.0
ACKS_MAX = 512
"""Messages of one request: 9,100 a second went through so, 2,700 with 32."""
ACK_CALLS, CHANGE_CALLS = 4, 16
RETRY_S = 0.5
OK, MANY, INVALID_HANDLE = 20_000, 30_000, 40_013

Call = Callable[[str, Any], Awaitable[Any]]
"""Makes a request of a name; raises `ConnectionError` when it cannot."""


@dataclass(slots=True, eq=False)
class _Lease:
    topic: str
    message_id: str
    receipt: str
    until_s: float
    use: Use | None = None
    is_asked: bool = False
    """Whether more time is being asked for, or was refused for good."""


class Leases:
    """Keeps receipt handles behind numbers, since a handle changes each time that more time is given.

    Args:
        requests: Makes the requests.
        call: Sends them.
        attempts: Counts unacknowledged messages by attempt id.
    """

    def __init__(self, requests: Requests, call: Call, attempts: Attempts) -> None:
        self._requests = requests
        self._call = call
        self._attempts = attempts
        self._leases: dict[Hashable, _Lease] = {}
        self._given = 0
        self._acks: dict[str, list[_Lease]] = {}
        self._wanted = asyncio.Event()
        self._busy = 0
        self._changes = asyncio.Semaphore(CHANGE_CALLS)
        self._tasks = {asyncio.ensure_future(self._acknowledge()) for _ in range(ACK_CALLS)}

    def add(self, message: Any, use: Use | None = None) -> int:
        """A message that was just received, under this attempt id; its number."""
        system, until_s = message.system_properties, time.monotonic() + INVISIBLE_S
        if use is not None:
            self._attempts.hold(use)
        return self._added(_Lease(message.topic.name, system.message_id, system.receipt_handle, until_s, use))

    def _added(self, lease: _Lease) -> int:
        self._given += 1
        self._leases[self._given] = lease
        return self._given

    def adopt(self, topic: str, message_id: str, receipt: str) -> int:
        """A message that another process received; its number. How long it is ours still is not known."""
        return self._added(_Lease(topic, message_id, renewed(receipt), time.monotonic()))

    def receipt(self, token: Hashable) -> str:
        """The receipt handle at present, empty without one; from any thread."""
        lease = self._leases.get(token)
        return lease.receipt if lease is not None else ""

    def ack(self, tokens: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is not None:
                self._acks.setdefault(lease.topic, []).append(lease)
        self._wanted.set()

    def extend(self, tokens: Collection[Hashable]) -> None:
        """Ask for more time where little is left."""
        soon_s = time.monotonic() + EXTEND_AHEAD_S
        for token in tokens:
            lease = self._leases.get(token)
            if lease is not None and lease.until_s < soon_s and not lease.is_asked:
                lease.is_asked = True
                self._begin(self._extend(lease))

    def release(self, tokens: Collection[Hashable]) -> None:
        """Give back."""
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is not None:
                self._begin(self._release(lease))

    async def acknowledged(self, timeout_s: float) -> None:
        """Wait for what was begun."""
        until_s = time.monotonic() + timeout_s
        while (self._acks or self._busy) and time.monotonic() < until_s:
            await asyncio.sleep(0.01)

    async def close(self, timeout_s: float) -> None:
        """Give all back that is left, and wait for what was begun."""
        self.release(list(self._leases))
        await self.acknowledged(timeout_s)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, change: Coroutine[Any, Any, Any]) -> None:
        self._busy += 1
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Future[Any]) -> None:
        self._busy -= 1
        self._tasks.discard(task)

    # Acknowledging

    async def _acknowledge(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._acks:
                self._wanted.clear()
                continue
            topic = next(iter(self._acks))
            leases = self._acks[topic][:ACKS_MAX]
            self._acks[topic] = self._acks[topic][ACKS_MAX:]
            if not self._acks[topic]:
                del self._acks[topic]
            self._busy += 1
            try:
                await self._acknowledge_once(topic, leases)
            finally:
                self._busy -= 1

    async def _acknowledge_once(self, topic: str, leases: list[_Lease]) -> None:
        left = leases
        with contextlib.suppress(ConnectionError):
            entries = [(lease.message_id, lease.receipt) for lease in leases]
            answer = await self._call("AckMessage", self._requests.ack(topic, entries))
            if answer.status.code == OK:
                left = []
            elif answer.status.code == MANY:
                again = {one.receipt_handle for one in answer.entries if not _is_final(one.status.code)}
                left = [lease for lease in leases if lease.receipt in again]
        left = [lease for lease in left if lease.until_s > time.monotonic()]  # others come again by themselves
        if self._attempts.in_order:
            for lease in set(leases).difference(left):
                self._end_use(lease)
        if left:
            await asyncio.sleep(RETRY_S)
            self._acks.setdefault(topic, []).extend(left)
            self._wanted.set()

    def _end_use(self, lease: _Lease) -> None:
        if lease.use is not None:
            self._attempts.end(lease.use)

    # Changing the time

    async def _release(self, lease: _Lease) -> None:
        await self._change(lease, RELEASED_S)
        self._end_use(lease)

    async def _extend(self, lease: _Lease) -> None:
        code = await self._change(lease, EXTENDED_S)
        lease.is_asked = code == INVALID_HANDLE

    async def _change(self, lease: _Lease, invisible_s: float) -> int:
        async with self._changes:
            request = self._requests.change(lease.topic, lease.message_id, lease.receipt, invisible_s)
            try:
                answer = await self._call("ChangeInvisibleDuration", request)
            except ConnectionError:
                return 0
            if answer.status.code == OK:
                lease.receipt = answer.receipt_handle or lease.receipt
                lease.until_s = time.monotonic() + invisible_s
            return int(answer.status.code)


def _is_final(code: int) -> bool:
    """Whether asking again changes nothing: it is done, or the handle is not ours any more."""
    return code == OK or 40_000 <= code < 42_900
