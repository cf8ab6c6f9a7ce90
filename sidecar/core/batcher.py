"""The batcher for a consumer that uses it alone: messages in, batches per group out. No sending and no clock."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol

from sidecar.core.backoff import Backoff
from sidecar.core.batch import BatcherCounts, BatchState, Callbacks, G, M, MessageBatch, _nothing

HIGH = 0.8
"""The share of the budget from which on everything open is due."""
MESSAGE_BYTES = 56
"""What a message takes beside its size: the object's head, and its slot in a list that grows by an eighth."""
BATCH_BYTES = 1_024
"""What a batch takes that holds nothing yet, with its group."""


class Teller(Protocol[G, M]):
    """Who hears of ends and retries: `Callbacks`, or one who keeps them for later."""

    def ended(self, batch: MessageBatch[G, M]) -> None:
        """The batch has its end."""
        ...

    def retried(self, batch: MessageBatch[G, M], wait_ms: float) -> None:
        """The batch is sent again after a while."""
        ...


def byte_length(message: object) -> int:
    """Bytes of a bytes-like message.

    Raises:
        TypeError: It is none: what `len` says of a text or a tuple is no number of bytes.
    """
    if isinstance(message, memoryview):
        return message.nbytes
    if isinstance(message, bytes | bytearray):
        return len(message)
    raise TypeError(f"a message of type {type(message).__name__} has no size in bytes: give the batcher a size=")


class Batcher(Generic[G, M]):
    """Gathers messages by group, and sees each batch through to its one end: delivered, dead-lettered or released.

    A batch is due when a limit is reached, its oldest message has waited for `linger_ms`, or memory grows short. A
    group has one batch outstanding; the next ones grow meanwhile. So groups do not wait for each other, and within a
    group the order stays. All times are milliseconds of any one clock that does not go back. Not safe for threads:
    for those there is `sidecar.ThreadedBatcher`. Callbacks may call the batcher.

    Each message that `add` took ends once, with its batch, and each end is told once. What callbacks raise comes out
    of the method that called them as an ExceptionGroup, after all the others were called; the batch has ended then.

    Args:
        size: Bytes of a message; by default its length, and the message must be bytes then.
        max_messages: Upper bound of a batch.
        max_bytes: Upper bound of the sizes in a batch; a larger message travels alone.
        linger_ms: How long a message waits for others.
        held_max_bytes: What may be held, open and outstanding: for each message its size and 56 bytes, for each batch
            1,024 bytes. Count in `size` what your messages take beside their payload, if that is more.
        backoff: Waits before a batch is sent again: they double, up to a bound.
        give_up_after: Failed sends after which a batch is dead-lettered; None for never.
        on_message: Called with each message and its batch at its end, before the batch's own callback; `batch.state`
            says which end.
        on_delivered: Called with the batch; its end.
        on_retry: Called with the batch, the reason and the wait in milliseconds.
        on_dead_lettered: Called with the batch and the reason; its end.
        on_released: Called with the batch, which was handed back unsettled by `release`; its end.
        jitter: Uniform in [0, 1), `random.random` say: the share of each wait that is waited. Full waits by default.

    Raises:
        ValueError: A limit below 1, or a time below 0.

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
        size: Callable[[M], int] = byte_length,
        max_messages: int = 5_000,
        max_bytes: int = 4 << 20,
        linger_ms: float = 200,
        held_max_bytes: int = 64 << 20,
        backoff: Backoff = Backoff(200, 5_000),  # noqa: B008  # frozen
        give_up_after: int | None = None,
        on_message: Callable[[M, MessageBatch[G, M]], object] | None = None,
        on_delivered: Callable[[MessageBatch[G, M]], object] = _nothing,
        on_retry: Callable[[MessageBatch[G, M], str, float], object] = _nothing,
        on_dead_lettered: Callable[[MessageBatch[G, M], str], object] = _nothing,
        on_released: Callable[[MessageBatch[G, M]], object] = _nothing,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        _check(1, max_messages=max_messages, max_bytes=max_bytes, held_max_bytes=held_max_bytes)
        _check(1, give_up_after=1 if give_up_after is None else give_up_after)
        _check(0, linger_ms=linger_ms)
        self.callbacks = Callbacks(on_message, on_delivered, on_retry, on_dead_lettered, on_released)
        self.teller: Teller[G, M] = self.callbacks
        self.held_bytes = 0
        """What is held now; 0 at rest."""
        self._size = size
        self._max_messages, self._max_bytes, self._linger_ms = max_messages, max_bytes, linger_ms
        self._held_max_bytes = held_max_bytes
        self._backoff, self._give_up_after, self._jitter = backoff, give_up_after, jitter
        self._open: dict[G, list[MessageBatch[G, M]]] = {}
        self._lingering: OrderedDict[MessageBatch[G, M], None] = OrderedDict()  # open, not due by age; oldest first
        self._idle: OrderedDict[G, None] = OrderedDict()  # groups with open batches and none outstanding
        self._due: OrderedDict[G, None] = OrderedDict()  # those of them whose first batch is due
        self._in_flight: set[MessageBatch[G, M]] = set()
        self._waiting: list[tuple[float, int, MessageBatch[G, M]]] = []
        self._busy: set[G] = set()  # groups of `_in_flight` and `_waiting`
        self._sequence = 0
        self._draining = False
        self._added = 0
        self._ended = dict.fromkeys((BatchState.DELIVERED, BatchState.DEAD_LETTERED, BatchState.RELEASED), 0)

    def add(self, group: G, message: M, now_ms: float) -> bool:
        """Take a message; False when the budget is used up: poll, deliver, and offer it again.

        Raises:
            ValueError: The message alone is beyond the budget, or its size is below 0.
            TypeError: There is no `size` function, and the message is not bytes.
            RuntimeError: `drain` was called.
        """
        if self._draining:
            raise RuntimeError("this batcher drains: after drain() it takes no message")
        size_bytes = self._size(message)
        if size_bytes < 0:
            raise ValueError(f"size said {size_bytes} of a message: it must be at least 0")
        if size_bytes + MESSAGE_BYTES + BATCH_BYTES > self._held_max_bytes:
            raise ValueError(f"a message of {size_bytes} bytes is beyond held_max_bytes {self._held_max_bytes}")
        batch = self._last_open(group)
        begins = batch is None or self._is_full(batch) or batch.size_bytes + size_bytes > self._max_bytes
        held_bytes = size_bytes + MESSAGE_BYTES + (BATCH_BYTES if begins else 0)
        if self.held_bytes + held_bytes > self._held_max_bytes:
            return False
        if batch is None or begins:
            batch = self._begin(group, now_ms)
        batch.messages.append(message)
        batch.size_bytes += size_bytes
        batch.held_bytes += held_bytes
        self.held_bytes += held_bytes
        self._added += 1
        if begins or self._is_full(batch):
            self._sort(group)
        return True

    def _last_open(self, group: G) -> MessageBatch[G, M] | None:
        batches = self._open.get(group)
        return batches[-1] if batches else None

    def _is_full(self, batch: MessageBatch[G, M]) -> bool:
        return len(batch.messages) >= self._max_messages or batch.size_bytes >= self._max_bytes

    def _begin(self, group: G, now_ms: float) -> MessageBatch[G, M]:
        batch: MessageBatch[G, M] = MessageBatch(group, [], begun_ms=now_ms)
        self._open.setdefault(group, []).append(batch)
        self._lingering[batch] = None
        return batch

    def _sort(self, group: G) -> None:
        """Put the group where it belongs: busy, idle, or idle and due."""
        batches = self._open.get(group)
        if not batches or group in self._busy:
            self._idle.pop(group, None)
            self._due.pop(group, None)
            return
        self._idle[group] = None
        if len(batches) > 1 or self._is_full(batches[0]) or batches[0] not in self._lingering:
            self._due[group] = None

    def poll(self, now_ms: float, batches_max: int | None = None) -> list[MessageBatch[G, M]]:
        """The batches to send now, each to be followed by `delivered`, `failed` or `rejected`.

        Args:
            now_ms: The time.
            batches_max: At most so many, say for a free sender 1; the others stay, and grow. None for all.
        """
        while self._lingering and self._is_old(next(iter(self._lingering)), now_ms):
            batch, _ = self._lingering.popitem(last=False)
            self._sort(batch.group)
        batches: list[MessageBatch[G, M]] = []
        while (batches_max is None or len(batches) < batches_max) and (due := self._next(now_ms)):
            due.attempt += 1
            due.state = BatchState.IN_FLIGHT
            self._in_flight.add(due)
            batches.append(due)
        return batches

    def _is_old(self, batch: MessageBatch[G, M], now_ms: float) -> bool:
        return batch.begun_ms + self._linger_ms <= now_ms

    def _next(self, now_ms: float) -> MessageBatch[G, M] | None:
        if self._waiting and self._waiting[0][0] <= now_ms:
            return heapq.heappop(self._waiting)[2]
        if self._due:
            return self._cut(next(iter(self._due)))
        return self._cut(next(iter(self._idle))) if self._idle and self._all_due else None

    @property
    def _all_due(self) -> bool:
        return self._draining or self.held_bytes > HIGH * self._held_max_bytes

    def _cut(self, group: G) -> MessageBatch[G, M]:
        batch = self._open[group].pop(0)
        if not self._open[group]:
            del self._open[group]
        self._lingering.pop(batch, None)
        self._busy.add(group)
        self._sort(group)
        return batch

    def wait_ms(self, now_ms: float) -> float | None:
        """How long to wait until `poll` may have something if nothing else happens; None for ever."""
        if self._due or (self._idle and self._all_due):
            return 0
        times_ms = [self._waiting[0][0]] if self._waiting else []
        if self._lingering:
            times_ms.append(next(iter(self._lingering)).begun_ms + self._linger_ms)
        return max(0, min(times_ms) - now_ms) if times_ms else None

    def delivered(self, batch: MessageBatch[G, M]) -> None:
        """The batch was taken.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
        """
        self._answered(batch)
        self._end(batch, BatchState.DELIVERED)

    def rejected(self, batch: MessageBatch[G, M], reason: str) -> None:
        """The batch will never be taken: it is dead-lettered.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
        """
        self._answered(batch)
        batch.reason = reason
        self._end(batch, BatchState.DEAD_LETTERED)

    def failed(
        self, batch: MessageBatch[G, M], reason: str, now_ms: float, retry_after_ms: float | None = None
    ) -> None:
        """The batch was not taken for the moment: it is sent again after a while, or given up.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
        """
        if self._give_up_after is not None and batch.attempt >= self._give_up_after:
            self.rejected(batch, reason)
            return
        self._answered(batch)
        batch.reason, batch.state = reason, BatchState.WAITING
        wait_ms = self._backoff.wait_ms(batch.attempt, self._jitter(), retry_after_ms)
        self._sequence += 1
        heapq.heappush(self._waiting, (now_ms + wait_ms, self._sequence, batch))
        self.teller.retried(batch, wait_ms)

    def _answered(self, batch: MessageBatch[G, M]) -> None:
        if batch not in self._in_flight:
            raise ValueError(f"this batch of group {batch.group!r} is not in flight: it {batch.state.value}")
        self._in_flight.remove(batch)

    def _end(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        self._busy.remove(batch.group)
        self._close_book(batch, state)
        self._sort(batch.group)
        self.teller.ended(batch)

    def _close_book(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        batch.state = state
        self.held_bytes -= batch.held_bytes
        self._ended[state] += len(batch.messages)

    def flush(self) -> None:
        """Make everything due that is open now, whatever its age."""
        self._lingering.clear()
        self._due.update(self._idle)

    def drain(self, now_ms: float, batches_max: int | None = None) -> list[MessageBatch[G, M]]:
        """Take no more messages, and from now on all that is open is due; as `poll`. Poll on until `idle`.

        A second call does the same again.
        """
        self._draining = True
        return self.poll(now_ms, batches_max)

    def release(self, where: Callable[[G], bool] = lambda _: True) -> list[M]:
        """Let go of what has not ended, open or outstanding: for a partition that was lost, or a stop in haste.

        A batch that is in flight may arrive all the same; who answers it afterwards gets the ValueError.

        Args:
            where: Which groups; all by default.

        Returns:
            The messages, in order within each group.
        """
        outstanding = [*self._in_flight, *(entry[2] for entry in self._waiting)]
        open_ = [batch for batches in self._open.values() for batch in batches]
        released = [batch for batch in (*outstanding, *open_) if where(batch.group)]
        for batch in released:
            self._in_flight.discard(batch)
            self._lingering.pop(batch, None)
            self._close_book(batch, BatchState.RELEASED)
        self._waiting = [entry for entry in self._waiting if entry[2].state is BatchState.WAITING]
        heapq.heapify(self._waiting)
        for group in {batch.group for batch in released}:
            self._open.pop(group, None)
            self._busy.discard(group)
            self._sort(group)
        _tell_all(self.teller, released)
        return [message for batch in released for message in batch.messages]

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self.held_bytes

    def counts(self) -> BatcherCounts:
        """What is held and what became of the rest, now."""
        ended = self._ended
        return BatcherCounts(
            batches_filling=sum(map(len, self._open.values())),
            batches_in_flight=len(self._in_flight),
            batches_waiting=len(self._waiting),
            held_messages=self._added - sum(ended.values()),
            held_bytes=self.held_bytes,
            added=self._added,
            delivered=ended[BatchState.DELIVERED],
            dead_lettered=ended[BatchState.DEAD_LETTERED],
            released=ended[BatchState.RELEASED],
        )


def _check(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name} must be at least {least}, not {number}")


def _tell_all(teller: Teller[G, M], batches: list[MessageBatch[G, M]]) -> None:
    errors: list[Exception] = []
    for batch in batches:
        try:
            teller.ended(batch)
        except ExceptionGroup as group:
            errors += group.exceptions
    if errors:
        raise ExceptionGroup("callbacks of released batches failed", errors)
