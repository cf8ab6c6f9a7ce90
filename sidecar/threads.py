"""The start of every background thread: an unexpected exception there ends the process, not only the thread."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

EXIT_INTERNAL = 70
END_S = 10.0
"""Time that the main thread has to end the process after a thread failed."""
LOOK_S = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class ThreadFailedError(RuntimeError):
    """A background thread ended by an unexpected exception: the process cannot continue without it."""


class _Guard:
    on = False
    failure: ThreadFailedError | None = None


def guard() -> None:
    """Have this process end with 70 when a thread fails. Elsewhere, as in a notebook, only the thread ends."""
    _Guard.on = True


def start(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that does not delay the end of the process."""
    thread = threading.Thread(target=_run, args=(target, name), name=name, daemon=True)
    thread.start()
    return thread


def _run(target: Callable[[], object], name: str) -> None:
    try:
        target()
    except BaseException as error:
        if not _Guard.on:
            raise
        fail(name, error)


def fail(name: str, error: BaseException) -> None:
    """Report that a thread, or work whose result nobody reads, failed; a guarded process then ends soon."""
    reason = f"thread {name}: {type(error).__name__}: {error}"
    log = _logger()
    log.error("thread.failed", thread=name, reason=reason, traceback="".join(traceback.format_exception(error)))
    if _Guard.on and _Guard.failure is None:
        failure = ThreadFailedError(reason)
        failure.__cause__ = error
        _Guard.failure = failure
        end_within(END_S)


class Pool(Executor):
    """An executor whose threads end the process if they fail: the library's threads end alone, and leave work undone.

    Exceptions of the work are in its futures.

    Args:
        size: Limit of threads; they start with the first work.
    """

    def __init__(self, name: str, size: int = 1) -> None:
        self._names = [name] if size == 1 else [f"{name}-{number}" for number in range(size)]
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """Have a thread do this work; raises `RuntimeError` after `shutdown`."""
        done: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._names[0]} takes no work after its end")
            self._work.put((done, partial(work, *args, **options)))
            if len(self._threads) < len(self._names):
                self._threads.append(start(self._run, self._names[len(self._threads)]))
        return done

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            done, work = taken
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except Exception as error:  # noqa: BLE001  # raised again by result()
                    done.set_exception(error)
            del taken, done, work  # and the objects that they hold

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads, which finish their work first. Harmless when repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                while cancel_futures and not self._work.empty():
                    if (taken := self._work.get()) is not None:
                        taken[0].cancel()
                for _ in self._threads:
                    self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def watch(work: Future[Any], name: str) -> None:
    """Report the failure of work whose result nobody reads."""

    def look(ended: Future[Any]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            fail(name, error)

    work.add_done_callback(look)


def failure() -> str:
    """The failure of the first thread that failed; empty if there is none."""
    return "" if _Guard.failure is None else str(_Guard.failure)


def check() -> None:
    """Raise the failure of a thread, in a thread that would otherwise wait for it.

    Raises:
        ThreadFailedError: A thread failed.
    """
    if _Guard.failure is not None:
        raise _Guard.failure


def result(work: Future[T], *threads: threading.Thread) -> T:
    """The result of work that these threads do; the wait ends when they are dead.

    Raises:
        ThreadFailedError: They are dead, or any other thread failed.
    """
    while not wait([work], LOOK_S).done:
        check()
        if not any(thread.is_alive() for thread in threads) and not work.done():
            raise ThreadFailedError(f"thread {threads[0].name if threads else ''} has ended without an answer")
    return work.result()


def end_within(seconds: float) -> None:
    """End a guarded process with 70 if it has not ended by then, whatever its threads wait for."""
    if _Guard.on:
        threading.Thread(target=_end, args=(seconds,), name="end", daemon=True).start()


def _end(seconds: float) -> None:
    time.sleep(seconds)
    log = _logger()
    log.error("daemon.not_ended", seconds=seconds, stacks=_stacks())
    os._exit(EXIT_INTERNAL)


def _logger() -> Any:
    import structlog  # takes a third of the time of a command that starts no thread

    return structlog.get_logger()


def _stacks() -> str:
    """The stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
