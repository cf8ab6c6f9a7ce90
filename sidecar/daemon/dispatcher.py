"""The threads that wait for the sink and for the disk, so that the main loop never does. They decide nothing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeVar

from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.sinks.base import Sink

T = TypeVar("T")


class Answered(NamedTuple):
    """The sink's answer to one batch."""

    batch_id: int
    answer: Answer


class Senders:
    """Threads that deliver batches.

    Args:
        sink: Where to.
        concurrency: Threads.
        inbox: Takes an `Answered` for each batch.
    """

    def __init__(self, sink: Sink, concurrency: int, inbox: queue.SimpleQueue[object]) -> None:
        self._sink = sink
        self._inbox = inbox
        self._work: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"sender-{i}", daemon=True) for i in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, batch: Batch) -> None:
        """Deliver a batch; its answer comes to the inbox."""
        self._work.put(batch)

    def _run(self) -> None:
        while (batch := self._work.get()) is not None:
            begun = time.perf_counter()
            try:
                answer = self._sink.deliver(batch)
            except Exception as error:  # noqa: BLE001  # a mistake in a sink must not end a sender
                answer = Answer(Verdict.RETRY, f"the sink failed: {type(error).__name__}: {error}")
            answered = Answered(batch.id, replace(answer, elapsed_ms=(time.perf_counter() - begun) * 1000))
            del batch  # the wait for the next one must not hold it
            self._inbox.put(answered)

    def close(self, timeout_s: float) -> None:
        """End the threads; what is being sent is given up."""
        for _ in self._threads:
            self._work.put(None)
        self._sink.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class Writer:
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
