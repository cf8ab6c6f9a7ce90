"""Leased messages: kept invisible, acknowledged, or given back. For one loop only."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from sidecar.sources.rocketmq.grpc.requests import GrpcRequests, extended

Use: TypeAlias = tuple[str, int]
"""Topic and broker, and the number of the attempt id."""
CONFIRMED = 2
"""Number of requests that must bring fewer messages than requested before an id is no longer doubted."""
SPREAD = 8
"""Limit of queues that one request locks: after a crash they come one after the other, each acknowledged first."""


class Attempts:
    """The attempt ids in use, by topic and broker; without a place, order does not matter and no request has an id."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._uses: Counter[Use] = Counter()
        """Open requests and unacknowledged messages."""
        self._open: Counter[str] = Counter()
        self._doubts: dict[str, dict[int, int]] = {}
        """By topic and broker: ids under which messages unknown to this process may be unacknowledged, each with the
        number of requests that must confirm the opposite."""
        self._asked: dict[Use, int] = {}
        """By open request, the confirmations that its id still needs."""
        self._each: dict[str, float] = {}
        """Number of messages per queue in the last answer."""

    @property
    def in_order(self) -> bool:
        return bool(self._place)

    def attempt_id(self, use: Use | None) -> str:
        """The id as the broker sees it, empty for none."""
        return f"{self._place}-{use[1]}" if use is not None else ""

    def is_doubted(self, where: str) -> bool:
        """Whether an id must be requested as soon as it is free."""
        return bool(self._doubts.get(where))

    def free(self, where: str, queues: int) -> list[Use]:
        """The ids with which requests to a topic and broker are to be made now.

        In doubt, all free ids: the others take the queues that are not locked, so that those of the doubted id are left
        for it. Otherwise one id, if no request is open.
        """
        # Each id in use has a queue locked, so one more id is enough.
        doubts = self._doubts.setdefault(where, dict.fromkeys(range(queues + 1), CONFIRMED))
        if doubts:
            numbers = [*sorted(doubts), *(number for number in range(queues + 1) if number not in doubts)]
            return [use for number in numbers if not self._uses[use := (where, number)]]
        return [] if self._open[where] else [next(use for n in count() if not self._uses[use := (where, n)])]

    def begin_request(self, use: Use | None) -> None:
        """Count a request, until `answered`."""
        if use is None:
            return
        where, number = use
        self._uses[use] += 1
        self._open[where] += 1
        self._asked[use] = self._doubts[where].pop(number, 0)

    def most(self, where: str) -> int:
        """Number of messages that a request should ask for, so that it locks only some queues."""
        return max(SPREAD, int(SPREAD * self._each.get(where, 1.0)))

    def answered(self, use: Use | None, came: Sequence[int], *, wholly: bool, cut: bool) -> None:
        """End a request that brought messages of these queues: fewer than asked (`wholly`), or perhaps more (`cut`)."""
        if use is None:
            return
        where, number = use
        self._open[where] -= 1
        left = self._asked.pop(use)
        if cut:
            left = CONFIRMED
        elif wholly:
            left = left - 1 if came else 0
        if left > 0:
            self._doubts[where][number] = left
        if came:
            self._each[where] = len(came) / len(set(came))
        self.end_request(use)

    def hold(self, use: Use) -> None:
        self._uses[use] += 1

    def end_request(self, use: Use | None) -> None:
        """Stop counting a message that is acknowledged or no longer owned."""
        if use is not None:
            self._uses[use] -= 1


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

    @property
    def is_live(self) -> bool:
        """Whether it has time left, by the time that the proxy granted."""
        return self.until_s > time.monotonic()


def _is_final(code: int) -> bool:
    """Whether a retry would change nothing: the request is done, or the handle is no longer owned."""
    return code == OK or 40_000 <= code < 42_900


INVISIBLE_S = 15.0
"""Time after which an unacknowledged message is redelivered; messages of a killed process are awaited this long."""
EXTENDED_S = 60.0
EXTEND_AHEAD_S = 8.0
RELEASED_S = 1.0
CHANGE_CALLS = 16
INVALID_HANDLE = 40_013


class Leases:
    """Keeps receipt handles under numbers, since a handle changes with each extension."""

    def __init__(self, requests: GrpcRequests, call: Call, attempts: Attempts) -> None:
        self._requests = requests
        self._call = call
        self._attempts = attempts
        self._leases: dict[Hashable, Lease] = {}
        self._given = 0
        self._settled: dict[str, list[Lease]] = {}
        """Messages to be acknowledged, by topic."""
        self._ackers = 0
        self._changes = asyncio.Semaphore(CHANGE_CALLS)
        self._tasks: set[asyncio.Future[Any]] = set()

    def add_received(self, message: Any, use: Use | None = None) -> int:
        """Add a message that was just received, under this attempt id; return its number."""
        system, until_s = message.system_properties, time.monotonic() + INVISIBLE_S
        if use is not None:
            self._attempts.hold(use)
        return self.add(Lease(message.topic.name, system.message_id, system.receipt_handle, until_s, use))

    def add(self, lease: Lease) -> int:
        """Add a message; return its number."""
        self._given += 1
        self._leases[self._given] = lease
        return self._given

    def get(self, token: Hashable) -> Lease | None:
        """The lease, until it is acknowledged or released; from any thread."""
        return self._leases.get(token)

    def ack(self, tokens: Collection[Hashable]) -> None:
        self._settle([lease for token in tokens if (lease := self._leases.pop(token, None)) is not None])

    def _settle(self, leases: Collection[Lease]) -> None:
        for lease in leases:
            self._settled.setdefault(lease.topic, []).append(lease)
        for _ in range(ACK_CALLS - self._ackers):
            self._ackers += 1
            self._begin(self._acknowledge_all())

    async def _acknowledge_all(self) -> None:
        try:
            while self._settled:
                await self._acknowledge_some()
        finally:  # whatever ends it, another one must take its place
            self._ackers -= 1

    async def _acknowledge_some(self) -> None:
        topic = next(iter(self._settled))
        leases = self._settled.pop(topic)
        if rest := leases[ACKS_MAX:]:
            self._settled[topic] = rest
        left = leases = leases[:ACKS_MAX]
        with contextlib.suppress(ConnectionError):
            entries = [(lease.message_id, lease.receipt) for lease in leases]
            answer = await self._call("AckMessage", self._requests.ack(topic, entries))
            if answer.status.code == OK:
                left = []
            elif answer.status.code == MANY:
                again = {entry.receipt_handle for entry in answer.entries if not _is_final(entry.status.code)}
                left = [lease for lease in leases if lease.receipt in again]
        left = [lease for lease in left if lease.is_live]  # others are handed over again
        for lease in set(leases).difference(left) if self._attempts.in_order else ():
            self._attempts.end_request(lease.use)
        if left:
            await asyncio.sleep(RETRY_S)
            self._settle(left)

    def extend(self, tokens: Collection[Hashable]) -> None:
        soon_s = time.monotonic() + EXTEND_AHEAD_S
        for token in tokens:
            lease = self._leases.get(token)
            if lease is not None and lease.until_s < soon_s and not lease.is_asked:
                lease.is_asked = True
                self._begin(self._extend(lease))

    def release(self, tokens: Collection[Hashable]) -> None:
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is not None:
                self._begin(self._release(lease))

    async def acknowledged(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while self._tasks and time.monotonic() < until_s:
            await asyncio.sleep(0.01)

    async def close(self, timeout_s: float) -> None:
        """Give back all messages that are left, and wait for pending requests."""
        self.release(list(self._leases))
        await self.acknowledged(timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, change: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, lease: Lease) -> None:
        await self._change(lease, RELEASED_S)
        self._attempts.end_request(lease.use)

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
