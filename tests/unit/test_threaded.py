"""The batcher that sends in threads of its own."""

from __future__ import annotations

import doctest
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sidecar import Backoff, Batcher, BatchState, MessageBatch, Rejected, Retry, ThreadedBatcher, threaded
from tests.support.process import wait_until

Batch = MessageBatch[str, bytes]
WAIT_S = 20.0


class Receiver:
    """Takes batches, holds them until it is let go, or answers as told; remembers every end."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.begun: list[Batch] = []
        self.answers: list[BaseException] = []
        self.ends: list[tuple[bytes, BatchState]] = []
        self.batches: list[BatchState] = []

    def send(self, batch: Batch) -> None:
        """Take a batch."""
        self.begun.append(batch)
        if self.answers:
            raise self.answers.pop(0)
        assert self.open.wait(WAIT_S)

    @contextmanager
    def batcher(self, *, senders: int = 1, **options: Any) -> Iterator[ThreadedBatcher[str, bytes]]:
        """A batcher that sends here, closed at the end."""

        def told(batch: Batch, *_: object) -> None:
            self.batches.append(batch.state)

        options = {"linger_ms": 0, "backoff": Backoff(1, 1), **options}
        options.setdefault("on_message", lambda message, batch: self.ends.append((message, batch.state)))
        batcher: Batcher[str, bytes] = Batcher(on_delivered=told, on_dead_lettered=told, on_released=told, **options)
        with ThreadedBatcher(batcher, self.send, senders=senders) as batches:
            try:
                yield batches
            finally:
                self.open.set()


def delivered(*messages: bytes) -> list[tuple[bytes, BatchState]]:
    """The ends of messages that were taken."""
    return [(message, BatchState.DELIVERED) for message in messages]


def test_documented_example_runs() -> None:
    """The example in the docstring does what it says."""
    done = doctest.testmod(threaded)
    assert (done.attempted > 2, done.failed) == (True, 0)


def test_close_sends_a_batch_that_is_unfilled() -> None:
    """What lingers goes out at once, and its callbacks have been called when close returns."""
    receiver = Receiver()
    with receiver.batcher(linger_ms=600_000) as batches:
        batches.add("g", b"1")
        assert batches.close(WAIT_S)
    assert receiver.ends == delivered(b"1")
    assert receiver.batches == [BatchState.DELIVERED]


def test_close_wakes_who_is_filling() -> None:
    """A message that waits for room while close begins is refused with an error; the taken one has its end."""
    receiver = Receiver()
    receiver.open.clear()
    refused: list[str] = []
    with receiver.batcher(held_max_bytes=1_300, max_messages=1) as batches:
        batches.add("g", b"x" * 200)

        def fill() -> None:
            with pytest.raises(RuntimeError, match="closed or closing") as error:
                batches.add("g", b"y" * 200)
            refused.append(str(error.value))

        filler = threading.Thread(target=fill)
        filler.start()
        closer = threading.Thread(target=batches.close)
        wait_until(lambda: receiver.begun, WAIT_S, "the first batch is being sent")
        closer.start()
        filler.join(WAIT_S)
        receiver.open.set()
        closer.join(WAIT_S)
    assert len(refused) == 1
    assert receiver.ends == delivered(b"x" * 200)


def test_close_waits_for_a_batch_that_runs() -> None:
    """Close returns when the answer is there and was told, not before."""
    receiver = Receiver()
    receiver.open.clear()
    with receiver.batcher() as batches:
        batches.add("g", b"1")
        wait_until(lambda: receiver.begun, WAIT_S, "it is being sent")
        closed: list[tuple[bool, int]] = []
        closer = threading.Thread(target=lambda: closed.append((batches.close(), len(receiver.ends))))
        closer.start()
        wait_until(lambda: is_closing(batches), WAIT_S, "close was called")
        assert not closed
        receiver.open.set()
        closer.join(WAIT_S)
        assert closed == [(True, 1)]


def test_no_thread_is_left_when_close_has_returned() -> None:
    """What they use may be closed then."""
    receiver = Receiver()
    with receiver.batcher(senders=64) as batches:
        batches.add("g", b"1")
        assert batches.close(WAIT_S)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("sender-")]


def is_closing(batches: ThreadedBatcher[str, bytes]) -> bool:
    """Whether messages are refused."""
    try:
        return not batches.add("probe", b"x" * (64 << 20), 0)
    except ValueError:
        return False
    except RuntimeError:
        return True


def test_after_the_timeout_the_rest_is_released() -> None:
    """Close tells what is running or open as released, returns False, and a later answer is told to nobody."""
    receiver = Receiver()
    receiver.open.clear()
    with receiver.batcher(max_messages=1) as batches:
        batches.add("g", b"1")
        batches.add("g", b"2")
        wait_until(lambda: receiver.begun, WAIT_S, "it is being sent")
        assert not batches.close(0)
        assert sorted(receiver.ends) == [(b"1", BatchState.RELEASED), (b"2", BatchState.RELEASED)]
        senders = [thread for thread in threading.enumerate() if thread.name == "sender-0"]
        receiver.open.set()
        for thread in senders:
            thread.join(WAIT_S)
        assert len(receiver.ends) == 2
        assert not batches.close()
        assert batches.counts().released == 2


def test_close_ends_while_a_callback_hangs() -> None:
    """The other callbacks are called all the same, each once, before close returns."""
    hangs, begun, told = threading.Event(), threading.Event(), Counter[bytes]()

    def on_message(message: bytes, _: Batch) -> None:
        told[message] += 1
        if message == b"1":
            begun.set()
            assert hangs.wait(WAIT_S)

    receiver = Receiver()
    with receiver.batcher(max_messages=2, on_message=on_message) as batches:
        for message in (b"1", b"2", b"3"):
            batches.add("g", message)
        assert begun.wait(WAIT_S)
        assert not batches.close(0.05)
        assert told == {b"1": 1, b"2": 1, b"3": 1}
        hangs.set()
    assert told.total() == 3


def test_retries_and_rejections_are_answers() -> None:
    """Any exception is a retry with its text as the reason, `Rejected` dead-letters, and the thread goes on."""
    retried: list[tuple[str, float]] = []
    receiver = Receiver()
    receiver.answers = [OSError("no route"), Retry("503", after_ms=5), SystemExit(3), Rejected("422")]
    with receiver.batcher(on_retry=lambda batch, reason, wait_ms: retried.append((reason, wait_ms))) as batches:
        batches.add("g", b"1")
        assert batches.flush(WAIT_S)
        batches.add("g", b"2")
        assert batches.flush(WAIT_S)
    assert retried == [("no route", 1), ("503", 5.5), ("3", 1)], "a requested wait is exceeded by up to a tenth"
    assert receiver.ends == [(b"1", BatchState.DEAD_LETTERED), *delivered(b"2")]


def test_a_callback_that_raises_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, the other callbacks are called, and batches go on; so if what is told of it raises as well."""
    told: list[bytes] = []

    def on_message(message: bytes, _: Batch) -> None:
        told.append(message)
        raise OSError("disk full")

    receiver = Receiver()
    with caplog.at_level(logging.ERROR), receiver.batcher(max_messages=2, on_message=on_message) as batches:
        for message in (b"1", b"2", b"3"):
            batches.add("g", message)
        assert batches.flush(WAIT_S)
    assert told == [b"1", b"2", b"3"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["disk full"] * 3
    raising = ThreadedBatcher(Batcher(on_delivered=lambda _: 1 / 0), receiver.send, on_error=lambda _: 1 / 0)
    raising.add("g", b"4")
    assert raising.close(WAIT_S)


def test_callbacks_run_outside_the_lock_and_one_at_a_time() -> None:
    """They may add, count and release; those of several senders never run beside each other."""
    running = threading.Semaphore()
    together: list[bool] = []
    again: list[int] = []

    def on_message(message: bytes, _: Batch) -> None:
        together.append(running.acquire(blocking=False))
        if message == b"0":
            again.append(batches.add("again", b"more"))
            again.append(batches.counts().held_messages)
            batches.release(lambda group: group == "again")
        running.release()

    receiver = Receiver()
    with receiver.batcher(senders=4, on_message=on_message) as batches:
        for i in range(200):
            batches.add(f"group {i % 7}", b"%d" % i)
        assert batches.flush(WAIT_S)
    assert together == [True] * 201
    assert again[0]


@pytest.mark.parametrize("method", ["flush", "close"])
def test_a_callback_cannot_wait_for_itself(method: str) -> None:
    """`flush` and `close` in a callback or in `send` are an error, not a deadlock."""
    errors: list[str] = []

    def call(*_: object) -> None:
        with pytest.raises(RuntimeError, match="would wait for itself") as error:
            getattr(batches, method)()
        errors.append(str(error.value))

    batches: ThreadedBatcher[str, bytes] = ThreadedBatcher(Batcher(linger_ms=0, on_delivered=call), call)
    batches.add("g", b"1")
    assert batches.close(WAIT_S)
    assert len(errors) == 2


def test_room_is_waited_for() -> None:
    """`add` waits until something has ended, returns False when that takes too long, and never waits in a callback."""
    receiver = Receiver()
    receiver.open.clear()
    with receiver.batcher(held_max_bytes=1_300) as batches:
        assert batches.add("g", b"x" * 200)
        assert not batches.add("g", b"y" * 200, timeout_s=0)
        assert not batches.add("g", b"y" * 200, timeout_s=0.01)
        wait_until(lambda: receiver.begun, WAIT_S, "it is being sent")
        adder = threading.Thread(target=lambda: batches.add("g", b"z" * 200))
        adder.start()
        receiver.open.set()
        adder.join(WAIT_S)
        assert batches.flush(WAIT_S)
    assert [message[:1] for message, _ in receiver.ends] == [b"x", b"z"]


def test_flush_ends_in_time() -> None:
    """It returns False when the answers take too long, and nothing is lost by that."""
    receiver = Receiver()
    receiver.open.clear()
    with receiver.batcher() as batches:
        batches.add("g", b"1")
        assert not batches.flush(0.01)
        receiver.open.set()
        assert batches.flush(WAIT_S)
    assert receiver.ends == delivered(b"1")


def test_a_released_batch_that_runs_has_no_second_end() -> None:
    """After `release` the answer of a running send is dropped, and the group goes on."""
    receiver = Receiver()
    receiver.open.clear()
    with receiver.batcher() as batches:
        batches.add("g", b"1")
        wait_until(lambda: receiver.begun, WAIT_S, "it is being sent")
        assert batches.release() == [b"1"]
        assert receiver.ends == [(b"1", BatchState.RELEASED)]
        batches.add("g", b"2")
        receiver.open.set()
        assert batches.flush(WAIT_S)
    assert receiver.ends[1:] == delivered(b"2")


def test_batches_go_out_when_they_are_due() -> None:
    """Without another call a batch goes out after its linger, whichever senders sleep meanwhile."""
    receiver = Receiver()
    with receiver.batcher(senders=3, linger_ms=30) as batches:
        for i in range(5):
            batches.add("a", b"%d" % i)
            batches.add(f"other {i}", b"x")
            wait_until(lambda n=i: len(receiver.ends) == 2 * n + 2, WAIT_S, "both were sent")  # type: ignore[misc]


def test_many_threads_lose_nothing() -> None:
    """Adders, senders that fail at random, a close in the midst: each message that was taken has one end."""
    ends: Counter[bytes] = Counter()
    fails = iter(range(1_000_000))

    def send(_: Batch) -> None:
        if next(fails) % 3 == 0:
            raise OSError

    batcher: Batcher[str, bytes] = Batcher(
        max_messages=5,
        linger_ms=1,
        held_max_bytes=60_000,
        backoff=Backoff(1, 2),
        on_message=lambda message, batch: ends.update([message]),
    )
    batches = ThreadedBatcher(batcher, send, senders=3)
    taken: list[bytes] = []

    def add(name: int) -> None:
        for i in range(400):
            message = b"%d-%d" % (name, i)
            try:
                if batches.add(f"group {i % 11}", message):
                    taken.append(message)
            except RuntimeError:
                return

    adders = [threading.Thread(target=add, args=(name,)) for name in range(3)]
    run: list[Callable[[], object]] = [adder.start for adder in adders]
    for start in run:
        start()
    wait_until(lambda: len(taken) > 600, WAIT_S, "half was taken")
    assert batches.close(WAIT_S)
    for adder in adders:
        adder.join(WAIT_S)
    assert ends == Counter(taken)


def test_a_batcher_without_senders_is_refused() -> None:
    """It would send nothing."""
    with pytest.raises(ValueError, match="senders must be at least 1"):
        ThreadedBatcher(Batcher(), print, senders=0)


def test_a_callback_waits_for_the_one_before() -> None:
    """While one runs, those of an answer that came meanwhile do not begin, in whichever thread."""
    begun: list[bytes] = []
    second, together = threading.Event(), []

    def on_message(message: bytes, _: Batch) -> None:
        begun.append(message)
        if len(begun) > 1:
            second.set()
            return
        wait_until(lambda: batches.counts().delivered == 2, WAIT_S, "the other answer is there")
        together.append(second.wait(0.05))

    receiver = Receiver()
    with receiver.batcher(senders=2, on_message=on_message) as batches:
        batches.add("a", b"1")
        batches.add("b", b"2")
        assert batches.flush(WAIT_S)
    assert (together, len(begun)) == ([False], 2)
