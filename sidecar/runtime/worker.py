"""A thread for slow operations, in order: disk, database, broker. Knows no message."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

from sidecar import threads as all_threads

T = TypeVar("T")
Told = TypeVar("Told", contravariant=True)


class Inbox(Protocol[Told]):
    """The queue of workers' results for the thread that decides."""

    def put(self, told: Told, /) -> None:
        """Add a result, from any thread."""
        ...


class Worker:
    """One thread that runs jobs in order; it starts with the first job.

    Args:
        threads: More than one if jobs would delay each other and need no order.
    """

    def __init__(self, name: str = "writer", threads: int = 1) -> None:
        self._names = [name] if threads == 1 else [f"{name}-{number}" for number in range(threads)]
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._closed = False

    def do(self, job: Callable[[], None]) -> None:
        """Run `job` after all earlier ones; if it raises, its thread has failed. Jobs after `close` are dropped."""
        with self._guard:
            if self._closed:
                return
            self._work.put(job)
            if not self._threads:
                self._threads = [all_threads.start(self._run, name) for name in self._names]

    def wait(self, job: Callable[[], T]) -> T:
        """Run `job` after all earlier ones, and wait for its result or exception; not after `close`."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  # raised again by result()
                done.set_exception(error)

        self.do(run)
        return all_threads.result(done, *self._threads)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            job()
            del job  # and the objects that it holds

    def close(self, patience_s: float | None = None) -> None:
        """Finish all jobs, then end. Harmless when repeated.

        Args:
            patience_s: If set, drop jobs that were not begun, and wait at most this long for the others.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
        if patience_s is not None:
            with suppress(queue.Empty):
                while True:
                    self._work.get_nowait()
        for _ in self._threads:
            self._work.put(None)
        until_s = None if patience_s is None else time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
