"""Batcher for consumers with threads: sends batches itself, and closes in order. Decides nothing about batches."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from types import TracebackType
from typing import Generic, TypeVar

from sidecar.core.library.batch import BatcherCounts, BatchState, Callbacks, MessageBatch
from sidecar.core.library.batcher import Batcher, divert

G = TypeVar("G", bound=Hashable)
M = TypeVar("M")


class Rejected(Exception):  # noqa: N818  # an answer, not an error of this program
    """Raise this in `send` if the batch will never be accepted: it is dead-lettered, with this as the reason."""


class Retry(Exception):  # noqa: N818
    """Raise this in `send` to have the batch sent again after a wait.

    Args:
        after_ms: Minimum wait in milliseconds; beyond the backoff, at most 5 minutes of it are honoured.
    """

    def __init__(self, reason: str, after_ms: float = 0) -> None:
        super().__init__(reason)
        self.after_ms = after_ms


def _log(error: BaseException) -> None:
    logging.getLogger("sidecar").error("a callback of a batcher raised", exc_info=error)


class _Calls(Generic[G, M]):
    """Calls of callbacks for ends and retries, kept until the lock is free, and made one at a time and in order.

    Args:
        on_error: Called with each exception of a callback.
        senders: Threads in which no exception may propagate.
    """

    def __init__(
        self,
        callbacks: Callbacks[G, M],
        on_error: Callable[[BaseException], object],
        lock: threading.Lock,
        senders: Collection[threading.Thread],
    ) -> None:
        self.changed = threading.Condition(lock)
        """Notified when all calls have been made, and when anything else has ended."""
        self._callbacks = callbacks
        self._on_error = on_error
        self._lock = lock
        self._senders = senders
        self._kept: deque[Callable[[], object]] = deque()
        self._caller: int | None = None  # the thread that makes calls

    def ended(self, batch: MessageBatch[G, M]) -> None:
        self._kept.extend(self._callbacks.of_end(batch))

    def retried(self, batch: MessageBatch[G, M], wait_ms: float) -> None:
        self._kept.append(lambda: self._callbacks.retried(batch, wait_ms))

    @property
    def made(self) -> bool:
        """Whether all calls have been made; requires the lock."""
        return not self._kept and self._caller is None

    def is_own_thread(self) -> bool:
        """Whether this runs in a callback or in `send`."""
        return threading.current_thread() in self._senders or self._caller == threading.get_ident()

    def take_calls(self) -> list[Callable[[], object]]:
        """Remove and return all kept calls, so that `make` makes none of them; requires the lock."""
        taken = list(self._kept)
        self._kept.clear()
        return taken

    def make(self) -> None:
        """Make the kept calls, or wait until the thread that is making them has finished."""
        with self._lock:
            if self._caller == threading.get_ident():
                return
            self.changed.wait_for(lambda: self._caller is None)
            self._caller = threading.get_ident()
            try:
                while self._kept:
                    self._unlocked(self._kept.popleft())
            finally:
                self._caller = None
                self.changed.notify_all()

    def _unlocked(self, call: Callable[[], object]) -> None:
        self._lock.release()
        try:
            self.guarded(call)
        finally:
            self._lock.acquire()

    def guarded(self, call: Callable[[], object]) -> None:
        """Make this call; report its exception, if any."""
        try:
            call()
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() not in self._senders:
                raise  # Ctrl-C in a thread of the caller
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        try:
            self._on_error(error)
        except Exception as worse:  # noqa: BLE001
            _log(worse)


class ThreadedBatcher(Generic[G, M]):
    """Sends the batches of a `Batcher` in threads that it owns. Every method may be called from any thread.

    Callbacks are those of the batcher. They run outside the lock, one at a time, in the order of the answers, in the
    thread that got the answer (or called `close` or `release`), and may call every method except `flush` and `close`.
    Exceptions of callbacks are reported to `on_error`, and the other callbacks are still called.

    Args:
        batcher: A batcher that nothing else uses from now on. Create it with `jitter=random.random`.
        send: Called with a batch, in up to `senders` threads at once, but never twice at once for the same group.
            Returns if the batch was accepted, raises `Rejected` if it never will be, and any other exception if it is
            to be sent again. Limit its time: a send that hangs blocks a sender.
        on_error: Called with each exception of a callback; by default logs it to the logger `sidecar`.

    Raises:
        ValueError: `senders` is below 1.

    >>> taken = []
    >>> batcher = Batcher(on_delivered=lambda batch: print("done", batch.messages))
    >>> with ThreadedBatcher(batcher, taken.append) as batches:
    ...     batches.add("paid", b"1")
    True
    done [b'1']
    """

    def __init__(
        self,
        batcher: Batcher[G, M],
        send: Callable[[MessageBatch[G, M]], object],
        *,
        senders: int = 1,
        on_error: Callable[[BaseException], object] = _log,
    ) -> None:
        if senders < 1:
            raise ValueError(f"senders must be at least 1, not {senders}")
        self._batcher = batcher
        self._send = send
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Notified when something may be due; senders wait for it."""
        self._senders = [threading.Thread(target=self._run, name=f"sender-{i}", daemon=True) for i in range(senders)]
        self._calls: _Calls[G, M] = _Calls(batcher.callbacks, on_error, self._lock, self._senders)
        divert(batcher, self._calls)
        self._wake_at_ms = float("inf")  # when waiting senders check by themselves
        self._closing = False
        self._clean: bool | None = None  # the result of `close`
        for thread in self._senders:
            thread.start()

    def __enter__(self) -> ThreadedBatcher[G, M]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def add(self, group: G, message: M, timeout_s: float | None = None) -> bool:
        """Take a message; False if there was no room in time. In a callback or in `send`, it does not wait.

        Args:
            timeout_s: Limit of the wait for room; 0 does not wait, None waits without limit.

        Raises:
            RuntimeError: `close` was called, perhaps during the wait; the message was not taken.
            ValueError: The message alone exceeds the budget, or its size is below 0.
            TypeError: There is no `size` function, and the message is not bytes.
        """
        with self._lock:
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not self._closing:
                if self._batcher.add(group, message, _now_ms()):
                    self._wake_senders()
                    return True
                left_s = None if until_s is None else until_s - time.monotonic()
                if self._calls.is_own_thread() or (left_s is not None and left_s <= 0):
                    return False
                self._calls.changed.wait(left_s)
            raise RuntimeError("this batcher is closed or closing: it accepts no message")

    def counts(self) -> BatcherCounts:
        with self._lock:
            return self._batcher.counts()

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Send all open messages, and wait until nothing is held and all callbacks were called; False on timeout.

        Raises:
            RuntimeError: Called in a callback or in `send`, where it would wait for itself.
        """
        self._check_thread("flush")
        with self._lock:
            self._batcher.flush()
            self._wake_senders()
            return self._calls.changed.wait_for(self._is_at_rest, timeout_s)

    def release(self, where: Callable[[G], bool] = lambda _: True) -> list[M]:
        """Release all messages that have not ended, and ignore answers of running sends; returns after the callbacks.

        Returns:
            The messages, in order within each group.
        """
        with self._lock:
            released = self._batcher.release(where)
            self._calls.changed.notify_all()
        self._calls.make()
        return released

    def close(self, timeout_s: float = 30.0) -> bool:
        """Take no more messages, send all open messages, wait for all answers and callbacks, and end the threads.

        Messages that have not ended in time are released. So each message that `add` took has its callback, and no
        callback begins after `close` has returned. A callback that hangs is awaited until the timeout; the others are
        then called in this thread. A repeated call returns the result of the first.

        Returns:
            Whether everything was answered in time and all callbacks were called, so that nothing was released.

        Raises:
            RuntimeError: Called in a callback or in `send`, where it would wait for itself.
        """
        self._check_thread("close")
        until_s = time.monotonic() + timeout_s
        with self._lock:
            first, self._closing = not self._closing, True
            self._batcher.drain(_now_ms(), 0)
            self._wake_all()
            done = self._is_at_rest if first else lambda: self._clean is not None
            in_time = self._calls.changed.wait_for(done, timeout_s)
            if not first:
                return bool(self._clean)
            self._batcher.release()
            calls = self._calls.take_calls()
            self._wake_all()
        for call in calls:
            self._calls.guarded(call)
        for thread in self._senders:
            thread.join(max(0.0, until_s - time.monotonic()))
        with self._lock:
            self._clean = in_time
            self._calls.changed.notify_all()
        return in_time

    # Senders

    def _run(self) -> None:
        while batch := self._take():
            verdict = self._sent(batch)
            with self._lock:
                if batch.state is BatchState.IN_FLIGHT:
                    verdict()
                self._wake_all()
            self._calls.make()

    def _take(self) -> MessageBatch[G, M] | None:
        with self._lock:
            while not (self._closing and self._batcher.idle):
                now_ms = _now_ms()
                if due := self._batcher.poll(now_ms, 1):
                    return due[0]
                wait_ms = self._batcher.wait_ms(now_ms)
                self._wake_at_ms = float("inf") if wait_ms is None else now_ms + wait_ms
                self._work.wait(None if wait_ms is None else wait_ms / 1000)
            return None

    def _sent(self, batch: MessageBatch[G, M]) -> Callable[[], None]:
        try:
            self._send(batch)
        except Rejected as answer:
            reason = str(answer)
            return lambda: self._batcher.rejected(batch, reason)
        except BaseException as error:  # noqa: BLE001  # the thread must survive, and the batch must end
            reason, after_ms = str(error) or repr(error), error.after_ms if isinstance(error, Retry) else None
            return lambda: self._batcher.failed(batch, reason, _now_ms(), after_ms)
        return lambda: self._batcher.delivered(batch)

    def _wake_senders(self) -> None:
        """Wake the senders if something is due before they would check."""
        now_ms = _now_ms()
        wait_ms = self._batcher.wait_ms(now_ms)
        if wait_ms is not None and now_ms + wait_ms < self._wake_at_ms:
            self._wake_at_ms = now_ms + wait_ms
            self._work.notify_all()

    def _wake_all(self) -> None:
        self._work.notify_all()
        self._calls.changed.notify_all()

    def _is_at_rest(self) -> bool:
        return self._batcher.idle and self._calls.made

    def _check_thread(self, method: str) -> None:
        if self._calls.is_own_thread():
            raise RuntimeError(f"{method}() in a callback or in send() would wait for itself")


def _now_ms() -> float:
    return time.monotonic() * 1000
