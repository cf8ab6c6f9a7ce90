"""Leased messages: kept invisible, acknowledged, or given back. For one loop only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Hashable
from typing import Any

from sidecar.sources.rocketmq.grpc.acks import OK, Acks, Call, Lease
from sidecar.sources.rocketmq.grpc.attempts import Attempts, Use
from sidecar.sources.rocketmq.grpc.requests import GrpcRequests, extended, renewed

INVISIBLE_S = 15.0
"""Time after which an unacknowledged message is redelivered; messages of a killed process are awaited this long."""
EXTENDED_S = 60.0
EXTEND_AHEAD_S = 8.0
RELEASED_S = 1.0
CHANGE_CALLS = 16
INVALID_HANDLE = 40_013


class Leases:
    """Keeps receipt handles under numbers, since a handle changes with each extension.

    Args:
        attempts: Counts unacknowledged messages by attempt id.
    """

    def __init__(self, requests: GrpcRequests, call: Call, attempts: Attempts) -> None:
        self._requests = requests
        self._call = call
        self._attempts = attempts
        self._leases: dict[Hashable, Lease] = {}
        self._given = 0
        self._acks = Acks(requests, call, attempts)
        self._changes = asyncio.Semaphore(CHANGE_CALLS)
        self._tasks: set[asyncio.Future[Any]] = set()

    def add(self, message: Any, use: Use | None = None) -> int:
        """Add a message that was just received, under this attempt id; return its number."""
        system, until_s = message.system_properties, time.monotonic() + INVISIBLE_S
        if use is not None:
            self._attempts.hold(use)
        return self._added(Lease(message.topic.name, system.message_id, system.receipt_handle, until_s, use))

    def _added(self, lease: Lease) -> int:
        self._given += 1
        self._leases[self._given] = lease
        return self._given

    def adopt(self, topic: str, message_id: str, receipt: str) -> int:
        """Add a message that another process received; return its number. The end of its lease is not known."""
        return self._added(Lease(topic, message_id, renewed(receipt), time.monotonic()))

    def receipt(self, token: Hashable) -> str:
        """The present receipt handle, empty without one; from any thread."""
        lease = self._leases.get(token)
        return lease.receipt if lease is not None else ""

    def is_live(self, token: Hashable) -> bool:
        """Whether a lease has time left; from any thread."""
        lease = self._leases.get(token)
        return lease is not None and lease.until_s > time.monotonic()

    def ack(self, tokens: Collection[Hashable]) -> None:
        """Begin to acknowledge."""
        self._acks.add([lease for token in tokens if (lease := self._leases.pop(token, None)) is not None])

    def extend(self, tokens: Collection[Hashable]) -> None:
        """Extend leases that end soon."""
        soon_s = time.monotonic() + EXTEND_AHEAD_S
        for token in tokens:
            lease = self._leases.get(token)
            if lease is not None and lease.until_s < soon_s and not lease.is_asked:
                lease.is_asked = True
                self._begin(self._extend(lease))

    def release(self, tokens: Collection[Hashable]) -> None:
        """Give messages back."""
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is not None:
                self._begin(self._release(lease))

    async def acknowledged(self, timeout_s: float) -> None:
        """Wait for pending acknowledgements."""
        until_s = time.monotonic() + timeout_s
        while (self._acks.is_busy or self._tasks) and time.monotonic() < until_s:
            await asyncio.sleep(0.01)

    async def close(self, timeout_s: float) -> None:
        """Give back all messages that are left, and wait for pending requests."""
        self.release(list(self._leases))
        await self.acknowledged(timeout_s)
        await self._acks.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Changing the time

    def _begin(self, change: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, lease: Lease) -> None:
        await self._change(lease, RELEASED_S)
        self._attempts.end(lease.use)

    async def _extend(self, lease: Lease) -> None:
        code = await self._change(lease, EXTENDED_S)
        lease.is_asked = code == INVALID_HANDLE

    async def _change(self, lease: Lease, invisible_s: float) -> int:
        async with self._changes:
            request = self._requests.change(lease.topic, lease.message_id, lease.receipt, invisible_s)
            try:
                answer = await self._call("ChangeInvisibleDuration", request)
            except ConnectionError:
                return 0
            if answer.status.code == OK:
                lease.receipt = extended(answer.receipt_handle or lease.receipt)
                lease.until_s = time.monotonic() + invisible_s
            return int(answer.status.code)
