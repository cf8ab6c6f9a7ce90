"""The loop that drives a pipeline of the core, and the threads for slow operations, whose results it takes.

The threads decide nothing: they wait for disk, database, broker and sink.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import structlog

from sidecar import threads
from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.effects import Report
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.sinks.base import Sink

T = TypeVar("T")

log = structlog.get_logger()

Call: TypeAlias = Callable[[float], object]
"""Takes a result, on the thread that decides, with its monotonic time in milliseconds."""


class Inbox(Protocol):
    """The queue of workers' results for the thread that decides."""

    def put(self, call: Call, /) -> None:
        """Have this called, from any thread."""
        ...


class Worker:
    """Threads that run jobs, in order if it is one; they start with the first job."""

    def __init__(self, name: str = "writer", count: int = 1) -> None:
        self._names = [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
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
                self._threads = [threads.start(self._run, name) for name in self._names]

    def wait(self, job: Callable[[], T]) -> T:
        """Run `job` after all earlier ones, and wait for its result or exception; not after `close`."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  # raised again by result()
                done.set_exception(error)

        self.do(run)
        return threads.result(done, *self._threads)

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


class Senders:
    """Threads that deliver batches."""

    def __init__(self, sink: Sink, concurrency: int, inbox: Inbox) -> None:
        self.sink = sink
        """The sink for the next batches."""
        self._inbox = inbox
        self._threads = Worker("sender", concurrency)

    def send(self, batch: Batch, answered: Callable[[int, Answer, float], object]) -> None:
        """Deliver a batch; the inbox gets a call with its id and the answer."""
        self._threads.do(partial(self._deliver, self.sink, batch, answered))

    def replace(self, sink: Sink, concurrency: int) -> None:
        """Deliver later batches to another sink, with so many threads; the present one ends its own, and is closed."""
        threads.start(partial(_retire, self.sink, self._threads), "sender-retiring")
        self.sink, self._threads = sink, Worker("sender", concurrency)

    def _deliver(self, sink: Sink, batch: Batch, answered: Callable[[int, Answer, float], object]) -> None:
        begun_s = time.perf_counter()
        try:
            answer = sink.deliver(batch)
        except Exception as error:  # noqa: BLE001  # a mistake in a sink must not end a sender
            answer = Answer(Verdict.UNANSWERED, f"the sink failed: {type(error).__name__}: {error}")
        answer = replace(answer, elapsed_ms=(time.perf_counter() - begun_s) * 1000)
        self._inbox.put(partial(answered, batch.id, answer))

    def close(self, patience_s: float) -> None:
        """Close the sink and end the threads; batches that are being sent are given up."""
        self.sink.close()
        self._threads.close(patience_s)


def _retire(sink: Sink, senders: Worker) -> None:
    senders.close()
    sink.close()


Perform: TypeAlias = Callable[[Any], object]
"""Performs an effect, or begins to: its end goes to the inbox."""

TAKE_S = 0.05
"""Approximate limit of one `take`: restores fill the inbox as fast as it is emptied."""


class PipelineLoop:
    """One pipeline, its inbox, and a performer for each effect; only for the thread that owns them."""

    def __init__(
        self, pipeline: DeliveryPipeline, inbox: queue.SimpleQueue[Call], performers: Mapping[type, Perform]
    ) -> None:
        missing = [effect.__name__ for effect in pipeline.EFFECTS if effect not in performers]
        assert not missing, f"no performer of {', '.join(missing)}"
        self._pipeline = pipeline
        self._inbox = inbox
        self._performers = performers

    def take(self, timeout_s: float = 0.0) -> None:
        """Make the inbox's calls, waiting this long for the first; the next `take` continues with the rest.

        Raises:
            ThreadFailedError: A background thread failed.
        """
        threads.check()
        until_s = time.monotonic() + timeout_s + TAKE_S
        while time.monotonic() < until_s:
            try:
                call = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            timeout_s = 0.0
            call(time.monotonic() * 1000)

    def step(self, now_ms: float) -> bool:
        """Let the pipeline step, and perform its effects; return whether there were any."""
        effects = self._pipeline.step(now_ms)
        for effect in effects:
            self._performers[type(effect)](effect)
        return bool(effects)


def write_report(report: Report) -> None:
    """Write a log event of the core."""
    getattr(log, report.level)(report.event, **report.fields)
