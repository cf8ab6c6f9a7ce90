"""The batcher for a consumer that uses it alone: messages in, batches per group out. No sending and no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Buffer, Limits, held_bytes
from sidecar.core.records import Fragment

HIGH = 0.8
"""The share of the budget from which on everything open is due."""


@dataclass(slots=True, eq=False)
class MessageBatch:
    """Messages of one group that are sent together."""

    group: str
    messages: list[bytes]
    attempt: int = 0
    """Sends so far, this one included."""
    held_bytes: int = 0


def _nothing(*_: object) -> None: ...


class Batcher:
    """Gathers messages by group, and sees each batch through to its one end: delivered, or dead-lettered.

    A batch is due when a limit is reached, its oldest message has waited for `linger_ms`, or memory grows short. A
    group has one batch outstanding; the next one grows meanwhile. So groups do not wait for each other, and within a
    group the order stays. All times are milliseconds of any one clock that does not go back. Not safe for threads.

    Args:
        max_messages: Upper bound of a batch.
        max_bytes: Upper bound of a batch, one byte added for each message; a larger message travels alone.
        linger_ms: How long a message waits for others.
        held_max_bytes: What may be held, open and outstanding, 9 bytes added for each message.
        backoff: Waits before a batch is sent again.
        give_up_after: Failed sends after which a batch is dead-lettered; None for never.
        on_delivered: Called with the batch; its end.
        on_retry: Called with the batch, the reason and the wait in milliseconds.
        on_dead_lettered: Called with the batch and the reason; its end.
        jitter: Uniform in [0, 1), `random.random` say; full waits by default.

    >>> batcher = Batcher(max_messages=2, linger_ms=100, on_delivered=lambda batch: print("done", batch.messages))
    >>> [batcher.add(group, message, now_ms=0) for group, message in [("paid", b"1"), ("paid", b"2"), ("new", b"3")]]
    [True, True, True]
    >>> [full] = batcher.poll(now_ms=1)
    >>> batcher.failed(full, "503", now_ms=2)
    >>> batcher.poll(now_ms=50)
    []
    >>> [(batch.group, batch.messages, batch.attempt) for batch in batcher.poll(now_ms=1000)]
    [('paid', [b'1', b'2'], 2), ('new', [b'3'], 1)]
    >>> batcher.delivered(full)
    done [b'1', b'2']
    """

    def __init__(
        self,
        *,
        max_messages: int = 5_000,
        max_bytes: int = 4 << 20,
        linger_ms: int = 200,
        held_max_bytes: int = 64 << 20,
        backoff: Backoff = Backoff(200, 5_000),  # noqa: B008  # frozen
        give_up_after: int | None = None,
        on_delivered: Callable[[MessageBatch], object] = _nothing,
        on_retry: Callable[[MessageBatch, str, float], object] = _nothing,
        on_dead_lettered: Callable[[MessageBatch, str], object] = _nothing,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._limits = Limits(max_messages, max_bytes)
        self._linger_ms = linger_ms
        self._held_max_bytes = held_max_bytes
        self._backoff = backoff
        self._give_up_after = give_up_after
        self._on_delivered = on_delivered
        self._on_retry = on_retry
        self._on_dead_lettered = on_dead_lettered
        self._jitter = jitter
        self.held_bytes = 0
        """What is held now; 0 at rest."""
        self._open: dict[str, Buffer] = {}
        self._busy: set[str] = set()
        self._sending: set[MessageBatch] = set()
        self._waiting: list[tuple[float, int, MessageBatch]] = []
        self._sequence = 0
        self._draining = False

    def add(self, group: str, message: bytes, now_ms: float) -> bool:
        """Take a message; False when the budget is used up: poll, deliver, and offer it again.

        Raises:
            ValueError: The message alone is beyond the budget.
        """
        self._sequence += 1
        fragment = Fragment((self._sequence,), message, at_ms=now_ms)
        size_bytes = held_bytes(fragment)
        if size_bytes > self._held_max_bytes:
            raise ValueError(f"a message of {len(message)} bytes is beyond held_max_bytes {self._held_max_bytes}")
        if self.held_bytes + size_bytes > self._held_max_bytes:
            return False
        buffer = self._open.get(group)
        if buffer is None:
            buffer = self._open[group] = Buffer(b"\n")
        buffer.add(fragment)
        self.held_bytes += size_bytes
        return True

    def poll(self, now_ms: float) -> list[MessageBatch]:
        """The batches to send now, each to be followed by `delivered`, `failed` or `rejected`."""
        batches = []
        while self._waiting and (self._waiting[0][0] <= now_ms):
            batches.append(heapq.heappop(self._waiting)[2])
        due = [group for group in self._open if group not in self._busy and self._is_due(group, now_ms)]
        batches += map(self._cut, due)
        for batch in batches:
            batch.attempt += 1
            self._sending.add(batch)
        return batches

    def _is_due(self, group: str, now_ms: float) -> bool:
        buffer = self._open[group]
        full = buffer.count >= self._limits.max_messages or buffer.nbytes >= self._limits.max_bytes
        short = self._draining or self.held_bytes > HIGH * self._held_max_bytes
        return full or short or buffer.fragments[0].at_ms + self._linger_ms <= now_ms

    def _cut(self, group: str) -> MessageBatch:
        buffer = self._open[group]
        taken = buffer.take(self._limits)
        if not buffer.fragments:
            del self._open[group]
        self._busy.add(group)
        return MessageBatch(group, [fragment.data for fragment in taken], held_bytes=sum(map(held_bytes, taken)))

    def delivered(self, batch: MessageBatch) -> None:
        """The batch was taken.

        Raises:
            ValueError: It is not being sent.
        """
        self._returned(batch)
        self._end(batch)
        self._on_delivered(batch)

    def rejected(self, batch: MessageBatch, reason: str) -> None:
        """The batch will never be taken: it is dead-lettered.

        Raises:
            ValueError: It is not being sent.
        """
        self._returned(batch)
        self._end(batch)
        self._on_dead_lettered(batch, reason)

    def failed(self, batch: MessageBatch, reason: str, now_ms: float, retry_after_ms: int | None = None) -> None:
        """The batch was not taken for the moment: it is sent again after a while, or given up.

        Raises:
            ValueError: It is not being sent.
        """
        if self._give_up_after is not None and batch.attempt >= self._give_up_after:
            self.rejected(batch, reason)
            return
        self._returned(batch)
        wait_ms = self._backoff.wait_ms(batch.attempt, self._jitter(), retry_after_ms)
        self._sequence += 1
        heapq.heappush(self._waiting, (now_ms + wait_ms, self._sequence, batch))
        self._on_retry(batch, reason, wait_ms)

    def _returned(self, batch: MessageBatch) -> None:
        if batch not in self._sending:
            raise ValueError(f"this batch of group {batch.group!r} is not being sent: it ended, or waits for its retry")
        self._sending.remove(batch)

    def _end(self, batch: MessageBatch) -> None:
        self._busy.remove(batch.group)
        self.held_bytes -= batch.held_bytes

    def drain(self, now_ms: float) -> list[MessageBatch]:
        """From now on everything open is due; as `poll`. Go on polling until `idle`."""
        self._draining = True
        return self.poll(now_ms)

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self.held_bytes
