"""Messages that a proxy has sent, until the owner takes them, and the room for more."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sidecar.sources.rocketmq.grpc.requests import BATCH_MAX
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.leased.columns import OVERHEAD_BYTES

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
    """Takes messages from an event loop to the owner's thread.

    Args:
        queue_bytes: Limit of messages received ahead.
        loop: The loop on which messages arrive.
        in_order: Whether they come in order.
    """

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
