"""Requests for messages, as many as there is room for. For one loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

from sidecar.sources.rocketmq.grpc.acks import OK
from sidecar.sources.rocketmq.grpc.arrivals import Arrivals
from sidecar.sources.rocketmq.grpc.attempts import Attempts, Use
from sidecar.sources.rocketmq.grpc.leases import INVISIBLE_S, Leases
from sidecar.sources.rocketmq.grpc.requests import BATCH_MAX, GrpcRequests
from sidecar.sources.rocketmq.grpc.session import Session

MANY_CALLS = 4
"""Limit of concurrent requests while many messages arrive: 16 waiting threads took 36 us per message, 4 took 25."""
RETRY_S, AGAIN_S = 0.3, 0.05
NO_MESSAGE = 40_401


class GrpcReceiver:
    """Receives messages of a session until it breaks.

    Args:
        leases: Keeps the receipts of received messages.
        problems: Problems of topics and brokers are noted here.
    """

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
        self._attempts.begin(use)
        try:
            request = self._requests.receive(queue, count, INVISIBLE_S, self._attempts.attempt_id(use))
            async for parts in session.stream(request):
                messages = [part.message for part in parts if part.HasField("message")]
                came += [message.system_properties.queue_id for message in messages]
                status = next((part.status for part in parts if part.HasField("status")), status)
                await self._arrivals.put([(self._leases.add(message, use), message) for message in messages])
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
