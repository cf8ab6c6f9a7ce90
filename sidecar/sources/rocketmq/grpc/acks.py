"""Acknowledgements of leased messages, many in a request and retried while their lease lasts. For one loop only."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from sidecar.sources.rocketmq.grpc.attempts import Attempts, Use
from sidecar.sources.rocketmq.grpc.requests import GrpcRequests

ACKS_MAX = 512
"""Limit of messages in one request: 9,100 a second with it, 2,700 with 32."""
ACK_CALLS = 4
RETRY_S = 0.5
OK, MANY = 20_000, 30_000

Call = Callable[[str, Any], Awaitable[Any]]
"""Sends a request by its name; raises `ConnectionError` if it cannot."""


@dataclass(slots=True, eq=False)
class Lease:
    """A message that is leased for a limited time."""

    topic: str
    message_id: str
    receipt: str
    until_s: float
    use: Use | None = None
    is_asked: bool = False
    """Whether more time is being requested, or was permanently refused."""


class Acks:
    """Messages to be acknowledged, by topic, and the tasks that do so.

    Args:
        attempts: Counts unacknowledged messages by attempt id.
    """

    def __init__(self, requests: GrpcRequests, call: Call, attempts: Attempts) -> None:
        self._requests = requests
        self._call = call
        self._attempts = attempts
        self._leases: dict[str, list[Lease]] = {}
        self._wanted = asyncio.Event()
        self._busy = 0
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(ACK_CALLS)]

    def add(self, leases: Collection[Lease]) -> None:
        """Begin to acknowledge."""
        for lease in leases:
            self._leases.setdefault(lease.topic, []).append(lease)
        self._wanted.set()

    @property
    def is_busy(self) -> bool:
        """Whether a message is not acknowledged yet."""
        return bool(self._leases or self._busy)

    async def close(self) -> None:
        """Leave the rest unacknowledged."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._leases:
                self._wanted.clear()
                continue
            topic = next(iter(self._leases))
            leases = self._leases[topic][:ACKS_MAX]
            self._leases[topic] = self._leases[topic][ACKS_MAX:]
            if not self._leases[topic]:
                del self._leases[topic]
            self._busy += 1
            try:
                await self._acknowledge(topic, leases)
            finally:
                self._busy -= 1

    async def _acknowledge(self, topic: str, leases: list[Lease]) -> None:
        left = leases
        with contextlib.suppress(ConnectionError):
            entries = [(lease.message_id, lease.receipt) for lease in leases]
            answer = await self._call("AckMessage", self._requests.ack(topic, entries))
            if answer.status.code == OK:
                left = []
            elif answer.status.code == MANY:
                again = {entry.receipt_handle for entry in answer.entries if not _is_final(entry.status.code)}
                left = [lease for lease in leases if lease.receipt in again]
        left = [lease for lease in left if lease.until_s > time.monotonic()]  # others are handed over again
        if self._attempts.in_order:
            for lease in set(leases).difference(left):
                self._attempts.end(lease.use)
        if left:
            await asyncio.sleep(RETRY_S)
            self.add(left)


def _is_final(code: int) -> bool:
    """Whether a retry would change nothing: it is done, or the handle is not owned any more."""
    return code == OK or 40_000 <= code < 42_900
