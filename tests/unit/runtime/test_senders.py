"""Threads that wait hold nothing of what they did."""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque

from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.runtime.worker import Call, Senders, Worker
from tests.support.process import wait_until

PATIENCE_S = 10.0


class Taking:
    """Takes everything."""

    def deliver(self, batch: Batch) -> Answer:
        """It is taken."""
        return Answer(Verdict.ACK)

    def close(self) -> None:
        """Nothing to do."""


def test_a_sender_lets_go_of_what_it_has_sent() -> None:
    """Four senders would else hold four batches that nobody counts, until the next ones come."""
    inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    senders = Senders(Taking(), 4, inbox)  # type: ignore[arg-type]
    batches = [Batch(number, "g", []) for number in range(4)]
    deque((senders.send(batch, print) for batch in batches), 0)
    for _ in range(4):
        inbox.get(timeout=PATIENCE_S)
    counts = [3] * 4  # the list's, this loop's and the call's
    wait_until(lambda: [sys.getrefcount(batch) for batch in batches] == counts, PATIENCE_S, "only this test has them")
    assert [sys.getrefcount(batch) for batch in batches] == counts
    senders.close(PATIENCE_S)


def test_another_sink_gets_what_comes_later() -> None:
    """What the one before is delivering ends there, and it is closed then."""
    entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Taking):
        def deliver(self, batch: Batch) -> Answer:
            entered.set()
            go_on.wait(PATIENCE_S)
            return Answer(Verdict.ACK, "slow")

        def close(self) -> None:
            closed.set()

    inbox, told = queue.SimpleQueue[Call](), list[tuple[int, str]]()

    def answered(batch_id: int, answer: Answer, _: float) -> None:
        told.append((batch_id, answer.reason))

    senders = Senders(Slow(), 1, inbox)  # type: ignore[arg-type]
    senders.send(Batch(1, "g", []), answered)
    assert entered.wait(PATIENCE_S)
    senders.replace(Taking(), 1)  # type: ignore[arg-type]
    senders.send(Batch(2, "g", []), answered)
    inbox.get(timeout=PATIENCE_S)(0.0)
    assert told == [(2, "")]
    assert not closed.is_set()
    go_on.set()
    inbox.get(timeout=PATIENCE_S)(0.0)
    assert told == [(2, ""), (1, "slow")]
    assert closed.wait(PATIENCE_S)
    senders.close(PATIENCE_S)


def test_what_comes_after_a_close_is_not_run() -> None:
    """What was given before is; a second close waits for nothing."""
    worker, done = Worker(), list[int]()
    worker.do(lambda: done.append(1))
    worker.close()
    worker.do(lambda: done.append(2))
    worker.close()
    assert done == [1]


def test_a_writer_lets_go_of_what_it_has_done() -> None:
    """A job may hold dead letters with their rows."""
    writer = Worker()

    def job() -> None:
        """Nothing to do."""

    writer.do(job)
    wait_until(lambda: sys.getrefcount(job) == 2, PATIENCE_S, "only this test has the job")
    assert sys.getrefcount(job) == 2
    writer.close()
