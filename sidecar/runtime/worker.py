"""A thread that does what waits for something slow, in order: disk, database, broker. Knows no message."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")
Told = TypeVar("Told", contravariant=True)


class Inbox(Protocol[Told]):
    """Where workers put what they have to tell to the thread that decides."""

    def put(self, told: Told, /) -> None:
        """Hand it over, from any thread."""
        ...


class Worker:
    """One thread that does everything that waits for the disk, in order; it begins with the first job.

    Args:
        name: Of the thread.
        threads: More than one, where jobs are in each other's way and have no order.
    """

    def __init__(self, name: str = "writer", threads: int = 1) -> None:
        self._names = [name] if threads == 1 else [f"{name}-{number}" for number in range(threads)]
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._closed = False

    def do(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, after all given before; nothing is run that comes after `close`."""
        with self._guard:
            if self._closed:
                return
            self._work.put(job)
            if not self._threads:
                self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in self._names]
                for thread in self._threads:
                    thread.start()

    def wait(self, job: Callable[[], T]) -> T:
        """Run `job` after all given before, and wait for its result or exception; not to be called after `close`."""
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

    def close(self, patience_s: float | None = None) -> None:
        """Finish what was given, then end. Harmless when repeated.

        Args:
            patience_s: Drop what was not begun instead, and wait for the rest at most so long.
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
