"""Stand-alone batcher for a consumer: messages in, batches per group out. Does not send, and has no clock."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol

from sidecar.core.backoff import Backoff
from sidecar.core.library.batch import BatcherCounts, BatchState, Callbacks, G, M, MessageBatch, _nothing


class _Filling(Generic[G, M]):
    """Open batches by group, oldest first. While a group is busy, none of its batches is due, which keeps its order.

    Args:
        max_messages: Upper bound of a batch.
        max_bytes: Upper bound of the sizes in a batch; a larger message travels alone.
        linger_ms: Longest time that a message waits for others.
    """

    def __init__(self, max_messages: int, max_bytes: int, linger_ms: float) -> None:
        self._max_messages, self._max_bytes, self._linger_ms = max_messages, max_bytes, linger_ms
        self._open: dict[G, list[MessageBatch[G, M]]] = {}
        self._lingering: OrderedDict[MessageBatch[G, M], None] = OrderedDict()  # open, not due by age; oldest first
        self._idle: OrderedDict[G, None] = OrderedDict()  # groups with open batches and none outstanding
        self._due: OrderedDict[G, None] = OrderedDict()  # idle groups whose first batch is due
        self._busy: set[G] = set()  # groups with a batch outstanding

    def room(self, group: G, size_bytes: int) -> MessageBatch[G, M] | None:
        """The open batch for a message of this size; None if a new one must be begun."""
        batches = self._open.get(group)
        if not batches or self._is_full(batches[-1]) or batches[-1].size_bytes + size_bytes > self._max_bytes:
            return None
        return batches[-1]

    def begin_batch(self, group: G, now_ms: float) -> MessageBatch[G, M]:
        """Begin a new batch, behind the group's others."""
        batch: MessageBatch[G, M] = MessageBatch(group, [], begun_ms=now_ms)
        self._open.setdefault(group, []).append(batch)
        self._lingering[batch] = None
        return batch

    def added(self, batch: MessageBatch[G, M]) -> None:
        """Record that a message was added to this batch."""
        if len(batch.messages) == 1 or self._is_full(batch):
            self._sort(batch.group)

    def _is_full(self, batch: MessageBatch[G, M]) -> bool:
        return len(batch.messages) >= self._max_messages or batch.size_bytes >= self._max_bytes

    def _sort(self, group: G) -> None:
        """Classify the group: busy, idle, or idle and due."""
        batches = self._open.get(group)
        if not batches or group in self._busy:
            self._idle.pop(group, None)
            self._due.pop(group, None)
            return
        self._idle[group] = None
        if len(batches) > 1 or self._is_full(batches[0]) or batches[0] not in self._lingering:
            self._due[group] = None

    def ripen(self, now_ms: float) -> None:
        """Make batches due that have lingered long enough by now."""
        while self._lingering and next(iter(self._lingering)).begun_ms + self._linger_ms <= now_ms:
            batch, _ = self._lingering.popitem(last=False)
            self._sort(batch.group)

    def flush(self) -> None:
        """Make all open batches due, whatever their age."""
        self._lingering.clear()
        self._due.update(self._idle)

    def has_due(self, *, everything: bool) -> bool:
        """Whether `take_batch` would return a batch."""
        return bool(self._due or (everything and self._idle))

    def take_batch(self, *, everything: bool) -> MessageBatch[G, M] | None:
        """Remove and return the next batch that is due, or with `everything` any; its group is busy until `free`."""
        groups = self._due or (self._idle if everything else self._due)
        if not groups:
            return None
        group = next(iter(groups))
        batch = self._open[group].pop(0)
        if not self._open[group]:
            del self._open[group]
        self._lingering.pop(batch, None)
        self._busy.add(group)
        self._sort(group)
        return batch

    def free(self, group: G) -> None:
        """Record that the group's batch is no longer outstanding."""
        self._busy.remove(group)
        self._sort(group)

    def drop(self, group: G) -> None:
        """Remove a group without open and outstanding batches."""
        for batch in self._open.pop(group, ()):
            self._lingering.pop(batch, None)
        self._busy.discard(group)
        self._sort(group)

    def due_ms(self) -> float | None:
        """Time at which the oldest lingering batch is due; None if no batch lingers."""
        return next(iter(self._lingering)).begun_ms + self._linger_ms if self._lingering else None

    def batches(self) -> list[MessageBatch[G, M]]:
        """All open batches."""
        return [batch for batches in self._open.values() for batch in batches]


HIGH = 0.8
"""Share of the budget above which everything open is due."""
MESSAGE_BYTES = 56
"""Memory of a message beyond its size: the object's head, and its slot in a list that grows by an eighth."""
BATCH_BYTES = 1_024
"""Memory of an empty batch, with its group."""


class _Budget(Generic[G, M]):
    """Counts each message in, and out with the end of its batch: added = ended + held, at any time."""

    def __init__(self, held_max_bytes: int) -> None:
        self._held_max_bytes = held_max_bytes
        self.held_bytes = 0
        """The bytes held now; 0 at rest."""
        self.added = 0
        """Number of messages added."""
        self.ended = dict.fromkeys((BatchState.DELIVERED, BatchState.DEAD_LETTERED, BatchState.RELEASED), 0)
        """Number of messages by end."""

    @property
    def tight(self) -> bool:
        """Whether the budget is so full that everything open is due."""
        return self.held_bytes > HIGH * self._held_max_bytes

    def check(self, size_bytes: int) -> None:
        """Raise a ValueError unless a message of this size can be held at all."""
        if size_bytes < 0:
            raise ValueError(f"size said {size_bytes} of a message: it must be at least 0")
        if size_bytes + MESSAGE_BYTES + BATCH_BYTES > self._held_max_bytes:
            raise ValueError(f"a message of {size_bytes} bytes is beyond held_max_bytes {self._held_max_bytes}")

    def admits(self, size_bytes: int, *, begins: bool) -> bool:
        """Whether a message of this size may be held now, with a new batch if it begins one."""
        return self.held_bytes + _bytes(size_bytes, begins=begins) <= self._held_max_bytes

    def take_message(self, batch: MessageBatch[G, M], message: M, size_bytes: int) -> None:
        """Add the message to the batch."""
        held_bytes = _bytes(size_bytes, begins=not batch.messages)
        batch.messages.append(message)
        batch.size_bytes += size_bytes
        batch.held_bytes += held_bytes
        self.held_bytes += held_bytes
        self.added += 1

    def end_batch(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        """Record the end of the batch."""
        batch.state = state
        self.held_bytes -= batch.held_bytes
        self.ended[state] += len(batch.messages)


def _bytes(size_bytes: int, *, begins: bool) -> int:
    return size_bytes + MESSAGE_BYTES + (BATCH_BYTES if begins else 0)


class _Flight(Generic[G, M]):
    """Batches in flight between `send` and their answer; a second answer, or another batcher's batch, is an error."""

    def __init__(self) -> None:
        self._in_flight: set[MessageBatch[G, M]] = set()
        self._waiting: list[tuple[float, int, MessageBatch[G, M]]] = []
        self._sequence = 0

    def send(self, batch: MessageBatch[G, M]) -> None:
        """Add a batch that is handed out."""
        batch.attempt += 1
        batch.state = BatchState.IN_FLIGHT
        self._in_flight.add(batch)

    def check(self, batch: MessageBatch[G, M]) -> None:
        """Raise a ValueError unless the batch is in flight."""
        if batch not in self._in_flight:
            raise ValueError(f"this batch of group {batch.group!r} is not in flight: it {batch.state.value}")

    def end_batch(self, batch: MessageBatch[G, M]) -> None:
        """Remove a batch that was answered and has ended."""
        self.check(batch)
        self._in_flight.remove(batch)

    def put_off(self, batch: MessageBatch[G, M], due_ms: float) -> None:
        """Schedule a batch that was answered to be sent again at `due_ms`."""
        self.end_batch(batch)
        batch.state = BatchState.WAITING
        self._sequence += 1
        heapq.heappush(self._waiting, (due_ms, self._sequence, batch))

    def take_due(self, now_ms: float) -> MessageBatch[G, M] | None:
        """Remove and return the next batch whose retry is due by now; None if there is none."""
        return heapq.heappop(self._waiting)[2] if self._waiting and self._waiting[0][0] <= now_ms else None

    def due_ms(self) -> float | None:
        """Time of the next retry; None if no batch waits."""
        return self._waiting[0][0] if self._waiting else None

    def batches(self) -> list[MessageBatch[G, M]]:
        """All batches that have not ended."""
        return [*self._in_flight, *(batch for _, _, batch in self._waiting)]

    def drop(self, batches: set[MessageBatch[G, M]]) -> None:
        """Remove these batches, which have ended; later answers are errors."""
        self._in_flight -= batches
        self._waiting = [entry for entry in self._waiting if entry[2] not in batches]
        heapq.heapify(self._waiting)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of batches in flight and waiting."""
        return len(self._in_flight), len(self._waiting)


class _Teller(Protocol[G, M]):
    """Observer of ends and retries: `Callbacks`, or an object that keeps them for later."""

    def ended(self, batch: MessageBatch[G, M]) -> None:
        """The batch has ended."""
        ...

    def retried(self, batch: MessageBatch[G, M], wait_ms: float) -> None:
        """The batch will be sent again after a wait."""
        ...


def byte_length(message: M) -> int:
    """Bytes of a bytes-like message.

    Raises:
        TypeError: The message is not bytes-like: the `len` of a text or a tuple is not a number of bytes.
    """
    if isinstance(message, memoryview):
        return message.nbytes
    if isinstance(message, bytes | bytearray):
        return len(message)
    raise TypeError(f"a message of type {type(message).__name__} has no size in bytes: give the batcher a size=")


class Batcher(Generic[G, M]):
    """Batches messages by group, and tracks each batch until its end: delivered, dead-lettered or released.

    A batch is due when a limit is reached, its oldest message has waited for `linger_ms`, or memory is short. A group
    has one outstanding batch; its next batches grow meanwhile. So groups do not wait for each other, and the order
    within a group is kept. All times are milliseconds of a single monotonic clock of your choice. Not thread-safe:
    with threads, use `sidecar.ThreadedBatcher`. Callbacks may call the batcher.

    Each message that `add` took ends once, with its batch, and each end is reported once. A method that calls
    callbacks calls all of them before it raises their exceptions as an ExceptionGroup; the batch has ended by then.

    Args:
        size: Returns the bytes of a message; by default its length, and messages must then be bytes.
        max_messages: Maximum number of messages in a batch.
        max_bytes: Maximum sum of the sizes in a batch; a larger message travels alone.
        linger_ms: How long a message waits for others.
        held_max_bytes: Maximum memory of open and outstanding messages: the size and 56 bytes for each message, and
            1,024 bytes for each batch. If messages take more beside their payload, include that in `size`.
        backoff: Waits before a batch is sent again; they double up to a maximum.
        give_up_after: Number of failed sends after which a batch is dead-lettered; None for no limit.
        on_message: Called with each message and its batch when it ends, before the batch's own callback;
            `batch.state` is the kind of end.
        on_delivered: Called with a batch that ended because it was delivered.
        on_retry: Called with the batch, the reason and the wait in milliseconds.
        on_dead_lettered: Called with a batch that ended because it was dead-lettered, and the reason.
        on_released: Called with a batch that ended because `release` handed it back unsettled.
        jitter: Returns the fraction of a wait to apply, uniform in [0, 1), such as `random.random`; by default 1.

    Raises:
        ValueError: A limit is below 1, or a time is below 0.

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
        self._teller: _Teller[G, M] = self.callbacks
        self._size = size
        self._backoff, self._give_up_after, self._jitter = backoff, give_up_after, jitter
        self._budget: _Budget[G, M] = _Budget(held_max_bytes)
        self._filling: _Filling[G, M] = _Filling(max_messages, max_bytes, linger_ms)
        self._flight: _Flight[G, M] = _Flight()
        self._draining = False

    def add(self, group: G, message: M, now_ms: float) -> bool:
        """Take a message; False if the budget is used up: poll, deliver, and offer it again.

        Raises:
            ValueError: The message alone exceeds the budget, or its size is below 0.
            TypeError: There is no `size` function, and the message is not bytes.
            RuntimeError: `drain` was called.
        """
        if self._draining:
            raise RuntimeError("this batcher drains: after drain() it takes no message")
        size_bytes = self._size(message)
        self._budget.check(size_bytes)
        batch = self._filling.room(group, size_bytes)
        if not self._budget.admits(size_bytes, begins=batch is None):
            return False
        if batch is None:
            batch = self._filling.begin_batch(group, now_ms)
        self._budget.take_message(batch, message, size_bytes)
        self._filling.added(batch)
        return True

    @property
    def held_bytes(self) -> int:
        """Memory held at present, as counted for `held_max_bytes`; 0 at rest."""
        return self._budget.held_bytes

    def poll(self, now_ms: float, batches_max: int | None = None) -> list[MessageBatch[G, M]]:
        """The batches to send now; call `delivered`, `failed` or `rejected` for each.

        Args:
            batches_max: Maximum number of batches, such as 1 for a free sender; the others stay and grow. None for all.
        """
        self._filling.ripen(now_ms)
        batches: list[MessageBatch[G, M]] = []
        while batches_max is None or len(batches) < batches_max:
            everything = self._draining or self._budget.tight
            batch = self._flight.take_due(now_ms) or self._filling.take_batch(everything=everything)
            if batch is None:
                break
            self._flight.send(batch)
            batches.append(batch)
        return batches

    def wait_ms(self, now_ms: float) -> float | None:
        """Time until `poll` may return a batch if nothing else happens; None if it would never."""
        if self._filling.has_due(everything=self._draining or self._budget.tight):
            return 0
        times_ms = [at_ms for at_ms in (self._flight.due_ms(), self._filling.due_ms()) if at_ms is not None]
        return max(0, min(times_ms) - now_ms) if times_ms else None

    def delivered(self, batch: MessageBatch[G, M]) -> None:
        """Record that the batch was accepted.

        Raises:
            ValueError: The batch is not in flight: never handed out, or already answered.
        """
        self._flight.end_batch(batch)
        self._end(batch, BatchState.DELIVERED)

    def rejected(self, batch: MessageBatch[G, M], reason: str) -> None:
        """Record that the batch will never be accepted: it is dead-lettered.

        Raises:
            ValueError: The batch is not in flight: never handed out, or already answered.
        """
        self._flight.end_batch(batch)
        batch.reason = reason
        self._end(batch, BatchState.DEAD_LETTERED)

    def failed(
        self, batch: MessageBatch[G, M], reason: str, now_ms: float, retry_after_ms: float | None = None
    ) -> None:
        """Record that the batch was not accepted for now: it is sent again after a wait, or given up.

        Raises:
            ValueError: The batch is not in flight: never handed out, or already answered.
        """
        if self._give_up_after is not None and batch.attempt >= self._give_up_after:
            self.rejected(batch, reason)
            return
        self._flight.check(batch)
        batch.reason = reason
        wait_ms = self._backoff.wait_ms(batch.attempt, self._jitter(), retry_after_ms)
        self._flight.put_off(batch, now_ms + wait_ms)
        self._teller.retried(batch, wait_ms)

    def _end(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        self._budget.end_batch(batch, state)
        self._filling.free(batch.group)
        self._teller.ended(batch)

    def flush(self) -> None:
        """Make all open messages due, whatever their age."""
        self._filling.flush()

    def drain(self, now_ms: float, batches_max: int | None = None) -> list[MessageBatch[G, M]]:
        """Take no more messages, and treat open messages as due from now on; else as `poll`. Poll until `idle`.

        A repeated call does the same again.
        """
        self._draining = True
        return self.poll(now_ms, batches_max)

    def release(self, where: Callable[[G], bool] = lambda _: True) -> list[M]:
        """Release all open and outstanding messages: for a lost partition, or a fast stop.

        A batch that is in flight may still arrive; answering it afterwards raises the ValueError.

        Args:
            where: Selects groups; all by default.

        Returns:
            The messages, in order within each group.
        """
        every = (*self._flight.batches(), *self._filling.batches())
        released = [batch for batch in every if where(batch.group)]
        for batch in released:
            self._budget.end_batch(batch, BatchState.RELEASED)
        self._flight.drop(set(released))
        for group in {batch.group for batch in released}:
            self._filling.drop(group)
        _tell_all(self._teller, released)
        return [message for batch in released for message in batch.messages]

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self.held_bytes

    def counts(self) -> BatcherCounts:
        """Present counts of held and ended messages and batches."""
        ended = self._budget.ended
        delivered, dead_lettered = ended[BatchState.DELIVERED], ended[BatchState.DEAD_LETTERED]
        in_flight, waiting = self._flight.counts
        return BatcherCounts(
            batches_filling=len(self._filling.batches()),
            batches_in_flight=in_flight,
            batches_waiting=waiting,
            held_messages=self._budget.added - delivered - dead_lettered - ended[BatchState.RELEASED],
            held_bytes=self.held_bytes,
            added=self._budget.added,
            delivered=delivered,
            dead_lettered=dead_lettered,
            released=ended[BatchState.RELEASED],
        )


def divert(batcher: Batcher[G, M], teller: _Teller[G, M]) -> None:
    """Report ends and retries of this batcher to `teller` from now on, instead of calling the callbacks."""
    batcher._teller = teller


def _check(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name} must be at least {least}, not {number}")


def _tell_all(teller: _Teller[G, M], batches: list[MessageBatch[G, M]]) -> None:
    errors: list[Exception] = []
    for batch in batches:
        try:
            teller.ended(batch)
        except ExceptionGroup as group:
            errors += group.exceptions
    if errors:
        raise ExceptionGroup("callbacks of released batches failed", errors)
