"""The batcher for a consumer that uses it alone: messages in, batches per group out. No sending and no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol

from sidecar.core.backoff import Backoff
from sidecar.core.library.batch import BatcherCounts, BatchState, Callbacks, G, M, MessageBatch, _nothing
from sidecar.core.library.budget import Budget
from sidecar.core.library.filling import Filling
from sidecar.core.library.flight import Flight, Retries


class Teller(Protocol[G, M]):
    """Who hears of ends and retries: `Callbacks`, or one who keeps them for later."""

    def ended(self, batch: MessageBatch[G, M]) -> None:
        """The batch has its end."""
        ...

    def retried(self, batch: MessageBatch[G, M], wait_ms: float) -> None:
        """The batch is sent again after a while."""
        ...


def byte_length(message: M) -> int:
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
        self._teller: Teller[G, M] = self.callbacks
        self._size = size
        self._retries = Retries(backoff, give_up_after, jitter)
        self._budget: Budget[G, M] = Budget(held_max_bytes)
        self._filling: Filling[G, M] = Filling(max_messages, max_bytes, linger_ms)
        self._flight: Flight[G, M] = Flight()
        self._draining = False

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
        """What is held now; 0 at rest."""
        return self._budget.held_bytes

    def poll(self, now_ms: float, batches_max: int | None = None) -> list[MessageBatch[G, M]]:
        """The batches to send now, each to be followed by `delivered`, `failed` or `rejected`.

        Args:
            now_ms: The time.
            batches_max: At most so many, say for a free sender 1; the others stay, and grow. None for all.
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
        """How long to wait until `poll` may have something if nothing else happens; None for ever."""
        if self._filling.has_due(everything=self._draining or self._budget.tight):
            return 0
        times_ms = [at_ms for at_ms in (self._flight.due_ms(), self._filling.due_ms()) if at_ms is not None]
        return max(0, min(times_ms) - now_ms) if times_ms else None

    def delivered(self, batch: MessageBatch[G, M]) -> None:
        """The batch was taken.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
        """
        self._flight.end(batch)
        self._end(batch, BatchState.DELIVERED)

    def rejected(self, batch: MessageBatch[G, M], reason: str) -> None:
        """The batch will never be taken: it is dead-lettered.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
        """
        self._flight.end(batch)
        batch.reason = reason
        self._end(batch, BatchState.DEAD_LETTERED)

    def failed(
        self, batch: MessageBatch[G, M], reason: str, now_ms: float, retry_after_ms: float | None = None
    ) -> None:
        """The batch was not taken for the moment: it is sent again after a while, or given up.

        Raises:
            ValueError: It is not in flight: never handed out, or answered before.
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
        """Make everything due that is open now, whatever its age."""
        self._filling.flush()

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
        """What is held and what became of the rest, now."""
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
    """Ends and retries of this batcher are told to `teller` from now on, instead of calling the callbacks."""
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
