"""The threads that wait for the sink, so that the main loop never does. Decides nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sidecar import threads
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.runtime.worker import Inbox, Worker
from sidecar.sinks.base import Sink


class Answered(NamedTuple):
    """The sink's answer to one batch."""

    batch_id: int
    answer: Answer


class Senders:
    """Threads that deliver batches.

    Args:
        inbox: Takes an `Answered` for each batch.
    """

    def __init__(self, sink: Sink, concurrency: int, inbox: Inbox[Answered]) -> None:
        self.sink = sink
        """Gets the batches from now on."""
        self._inbox = inbox
        self._threads = Worker("sender", concurrency)

    def send(self, batch: Batch) -> None:
        """Deliver a batch; its answer goes to the inbox."""
        self._threads.do(partial(self._deliver, self.sink, batch))

    def replace(self, sink: Sink, concurrency: int) -> None:
        """Deliver later batches to another sink, with so many threads; the present one ends its own, and is closed."""
        threads.start(partial(_retire, self.sink, self._threads), "sender-retiring")
        self.sink, self._threads = sink, Worker("sender", concurrency)

    def _deliver(self, sink: Sink, batch: Batch) -> None:
        begun_s = time.perf_counter()
        try:
            answer = sink.deliver(batch)
        except Exception as error:  # noqa: BLE001  # a mistake in a sink must not end a sender
            answer = Answer(Verdict.RETRY, f"the sink failed: {type(error).__name__}: {error}")
        self._inbox.put(Answered(batch.id, replace(answer, elapsed_ms=(time.perf_counter() - begun_s) * 1000)))

    def close(self, patience_s: float) -> None:
        """Close the sink and end the threads; batches that are being sent are given up."""
        self.sink.close()
        self._threads.close(patience_s)


def _retire(sink: Sink, senders: Worker) -> None:
    senders.close()
    sink.close()
