"""The threads that wait for the sink, so that the main loop never does. They decide nothing."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import NamedTuple

from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.sinks.base import Sink


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
