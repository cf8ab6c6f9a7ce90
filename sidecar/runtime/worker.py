"""A thread that does what waits for something slow, in order: disk, database, broker. Knows no message."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """One thread that does everything that waits for the disk, in order.

    Args:
        name: Of the thread.
        threads: More than one, where jobs are in each other's way and have no order.
    """

    def __init__(self, name: str = "writer", threads: int = 1) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, after all given before."""
        self._work.put(job)

    def wait(self, job: Callable[[], T]) -> T:
        """Run `job` after all given before, and wait for its result or exception."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  # raised again by result()
                done.set_exception(error)

        self.do(run)
        return done.result()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            job()
            del job  # with what it holds

    def abandon(self, timeout_s: float) -> None:
        """Drop what was not begun, and wait for what was, at most so long."""
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        self._end(timeout_s)

    def close(self) -> None:
        """Finish what was given, then end."""
        self._end(None)

    def _end(self, timeout_s: float | None) -> None:
        for _ in self._threads:
            self._work.put(None)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
