"""Stand-alone batcher for a consumer: messages in, batches per group out. Does not send, and has no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol

from sidecar.core.backoff import Backoff
from sidecar.core.library.batch import BatcherCounts, BatchState, Callbacks, G, M, MessageBatch, _nothing
from sidecar.core.library.budget import Budget
from sidecar.core.library.filling import Filling
from sidecar.core.library.flight import Flight, Retries


class Teller(Protocol[G, M]):
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
        self._teller: Teller[G, M] = self.callbacks
        self._size = size
        self._retries = Retries(backoff, give_up_after, jitter)
        self._budget: Budget[G, M] = Budget(held_max_bytes)
        self._filling: Filling[G, M] = Filling(max_messages, max_bytes, linger_ms)
        self._flight: Flight[G, M] = Flight()
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
            batch = self._filling.begin(group, now_ms)
        self._budget.take(batch, message, size_bytes)
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
            batch = self._flight.take_due(now_ms) or self._filling.take(everything=everything)
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
        self._flight.end(batch)
        self._end(batch, BatchState.DELIVERED)

    def rejected(self, batch: MessageBatch[G, M], reason: str) -> None:
        """Record that the batch will never be accepted: it is dead-lettered.

        Raises:
            ValueError: The batch is not in flight: never handed out, or already answered.
        """
        self._flight.end(batch)
        batch.reason = reason
        self._end(batch, BatchState.DEAD_LETTERED)

    def failed(
        self, batch: MessageBatch[G, M], reason: str, now_ms: float, retry_after_ms: float | None = None
    ) -> None:
        """Record that the batch was not accepted for now: it is sent again after a wait, or given up.

        Raises:
            ValueError: The batch is not in flight: never handed out, or already answered.
        """
        if self._retries.gives_up(batch.attempt):
            self.rejected(batch, reason)
            return
        self._flight.check(batch)
        batch.reason = reason
        wait_ms = self._retries.wait_ms(batch.attempt, retry_after_ms)
        self._flight.put_off(batch, now_ms + wait_ms)
        self._teller.retried(batch, wait_ms)

    def _end(self, batch: MessageBatch[G, M], state: BatchState) -> None:
        self._budget.end(batch, state)
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
            self._budget.end(batch, BatchState.RELEASED)
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
        delivered, dead_lettered = ended(BatchState.DELIVERED), ended(BatchState.DEAD_LETTERED)
        in_flight, waiting = self._flight.counts
        return BatcherCounts(
            batches_filling=len(self._filling.batches()),
            batches_in_flight=in_flight,
            batches_waiting=waiting,
            held_messages=self._budget.added - delivered - dead_lettered - ended(BatchState.RELEASED),
            held_bytes=self.held_bytes,
            added=self._budget.added,
            delivered=delivered,
            dead_lettered=dead_lettered,
            released=ended(BatchState.RELEASED),
        )


def divert(batcher: Batcher[G, M], teller: Teller[G, M]) -> None:
    """Report ends and retries of this batcher to `teller` from now on, instead of calling the callbacks."""
    batcher._teller = teller


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
