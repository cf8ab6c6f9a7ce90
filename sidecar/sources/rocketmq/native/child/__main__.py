"""The child's program: librocketmq calls back, the callback waits until the daemon has settled its message.

A callback returns success and nothing else. With any other answer the library hands the message back to the broker,
ignores whether that worked, and counts it as consumed: with the broker away it would be lost. What the daemon does not
settle stays unanswered until the process is killed; the broker hands it over again, to whoever has the queue then.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from sidecar.allocator import allocated_bytes, give_back_large
from sidecar.sources.rocketmq.native.child.ahead import AHEAD_MAX, Ahead
from sidecar.sources.rocketmq.native.child.frames import (
    Frames,
    Kind,
    frame,
    pack_message,
    unpack_numbers,
    write_all,
)
from sidecar.sources.rocketmq.native.child.library import (
    LibraryError,
    Listener,
    Reader,
    ask_before,
    ask_nothing,
    await_answers,
    begin_at_first,
    check_layout,
    keep_packed,
    load,
    persist,
    read_ahead,
)

BEAT_EVERY_S = 1.0
WATCH_EVERY_S = 0.05
"""Interval at which the memory read ahead is measured while messages arrive."""
STUCK_S = 2.0
LEAVE_S = 1.0
"""How long leaving waits for the callbacks of settled messages to return."""
RETURN_S = 0.1
"""Time that the library may need to record a returned callback."""
FLUSH_S = 0.3
"""Time after which the library's commits have left the process: it sends them on a separate thread."""
TOGETHER_BYTES = 64 << 10
"""Limit of the messages in one frame; a single message may be larger."""
JOINED_BYTES = 16 << 10
"""Frames up to this size are joined into one write."""
PULL_TIMEOUT_MS, PULL_TIMEOUT_PER_QUEUE_MS, PULL_TIMEOUT_MAX_MS = 8_000, 60, 30_000
"""The library asks again after this time. It ignores later answers, and waits as long for a broker that was killed.

Above 133 queues it waits longer, since asking costs CPU.
"""
_PR_SET_PDEATHSIG = 1
_EXIT_BROKEN = 70


class _Batch:
    """The messages of a callback, which returns when all are settled."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.settled = threading.Lock()
        self.settled.acquire()


class Parking:
    """Callbacks that wait until their messages are settled.

    Args:
        reader: Reads messages.
        held_bytes_max: Limit of messages handed over and not settled; a single message may be larger.
        first: The first message's number.
        batches_max: Limit of batches; a batch is up to 32 messages of one callback.
    """

    def __init__(self, reader: Reader, held_bytes_max: int, first: int, batches_max: int) -> None:
        self.out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Frames for the daemon."""
        self._reader = reader
        self._held_bytes_max = held_bytes_max
        self._next = first
        lock = threading.Lock()
        self._room, self._turns = threading.Condition(lock), threading.Condition(lock)
        """Messages wait for room in bytes, and batches for one of `batches_max` turns."""
        self._parked: dict[int, tuple[_Batch, int]] = {}
        self._held_bytes = self._returning = self._batches = 0
        self._batches_max = batches_max
        self._is_closed = False
        self.largest_bytes = 0
        """Size of the largest message since the last reset to 0."""
        self.woken, self._wake = os.pipe()
        """Pipe that becomes readable when messages arrive while `watched` is false."""
        self.watched = False

    def take(self, handles: list[int]) -> None:
        """Hand messages over; returns when all are settled. Ends the process instead of raising: see above."""
        try:
            batch, sizes = _Batch(len(handles)), [self._reader.size(handle) for handle in handles]
            self._begin()
            while sizes:
                first, count = self._enter(sizes, batch)
                messages = (self._reader.read(i, handle) for i, handle in enumerate(handles[:count], first))
                self.out.put(frame(Kind.MESSAGES, b"".join(map(pack_message, messages))))
                del handles[:count], sizes[:count]
            batch.settled.acquire()
            with self._room:
                self._returning -= 1
        except BaseException:  # noqa: BLE001  # an exception in a callback may count as an answer
            traceback.print_exc()
            os._exit(_EXIT_BROKEN)

    def _begin(self) -> None:
        """Wait for a turn, but not longer than 2 s: messages in flight at a crash may be in more batches now."""
        with self._turns:
            until_s = time.monotonic() + STUCK_S
            if not self.watched:
                self.watched = True
                os.write(self._wake, b"\0")
            while self._batches >= self._batches_max and time.monotonic() < until_s:
                self._turns.wait(STUCK_S)
            self._batches += 1

    def _enter(self, sizes: list[int], batch: _Batch) -> tuple[int, int]:
        """Wait until the first message may be handed over; return its number, and how many fit in all."""
        with self._room:
            self.largest_bytes = max(self.largest_bytes, *sizes)
            while self._is_closed or (self._held_bytes and self._held_bytes + sizes[0] > self._held_bytes_max):
                self._room.wait()
            first, left_bytes = self._next, min(TOGETHER_BYTES, self._held_bytes_max - self._held_bytes)
            for size_bytes in sizes:
                left_bytes -= size_bytes
                if left_bytes < 0 and self._next > first:
                    break
                self._held_bytes += size_bytes
                self._parked[self._next] = batch, size_bytes
                self._next += 1
            return first, self._next - first

    def settle(self, numbers: list[int]) -> None:
        """Mark messages as settled; callbacks without others return."""
        with self._room:
            returning = self._returning
            for number in numbers:
                if number in self._parked:
                    batch, size_bytes = self._parked.pop(number)
                    self._held_bytes -= size_bytes
                    batch.left -= 1
                    if not batch.left:
                        self._batches -= 1
                        self._returning += 1
                        batch.settled.release()
            # Waking all of up to 512 waiting threads each time doubled the time per message.
            self._turns.notify(self._returning - returning)
            if not self._is_closed:
                self._room.notify_all()

    @property
    def is_empty(self) -> bool:
        """Whether no callback waits."""
        return not (self._batches or self._parked)

    def look(self) -> bool:
        """Called once a second: whether messages arrived or wait, and so have to be watched."""
        self.watched = bool(self.largest_bytes) or not self.is_empty
        self.largest_bytes = 0
        return self.watched

    def close(self) -> None:
        """Stop handing over."""
        with self._room:
            self._is_closed = True

    def reopen(self) -> None:
        """Resume handing over."""
        with self._room:
            self._is_closed = False
            self._room.notify_all()

    def await_returned(self, timeout_s: float) -> None:
        """Wait until the callbacks of settled messages have returned."""
        until_s = time.monotonic() + timeout_s
        while self._returning and time.monotonic() < until_s:
            time.sleep(0.01)


def subscribe(settings: dict[str, Any]) -> tuple[Parking, Ahead, Any, Any]:
    """Load, test and start the library; returns parking, read-ahead, library, and the objects to keep alive.

    Raises:
        LibraryError: The library cannot be used.
    """
    client = load(Path(settings["folder"]))
    from rocketmq.exceptions import RocketMQException
    from rocketmq.ffi import _CLogLevel, dll

    reader = Reader(dll)
    reader.check()
    ahead = Ahead(settings["ahead_bytes_max"], settings["queues"], allocated_bytes)
    kept = keep_packed(dll), ask_before(dll, ahead.may_pull, ahead.came)
    parking = Parking(reader, settings["held_bytes_max"], settings["first"], settings["threads"] // 4)

    try:
        consumer = client.PushConsumer(settings["group"])
        consumer.set_name_server_address(settings["name_servers"])
        consumer.set_instance_name(settings["instance"])
        consumer.set_thread_count(settings["threads"])
        if settings["access_key"]:
            consumer.set_session_credentials(settings["access_key"], settings["secret_key"], "ALIYUN")
        dll.SetPushConsumerLogLevel(consumer._handle, _CLogLevel.WARN)
        dll.SetPushConsumerLogFileNumAndSize(consumer._handle, settings["log_files"], settings["log_file_mb"])
        check_layout(consumer._handle)
        begin_at_first(dll, consumer._handle)
        timeout_ms = max(PULL_TIMEOUT_MS, min(PULL_TIMEOUT_MAX_MS, PULL_TIMEOUT_PER_QUEUE_MS * settings["queues"]))
        await_answers(consumer._handle, timeout_ms)
        for topic, expression in settings["topics"].items():
            consumer.subscribe(topic, _never, expression)
        listener = Listener(dll, consumer._handle, parking.take)
        consumer.start()
    except RocketMQException as error:
        raise RuntimeError(str(error)) from error
    return parking, ahead, dll, (consumer, listener, kept)


def _never(_: Any) -> Any:
    """The callback of the Python package; never called, because `Listener` replaces it."""
    os._exit(_EXIT_BROKEN)


def main() -> None:
    """Serve the daemon until it sends LEAVE or ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):  # the daemon decides what follows
        signal.signal(number, signal.SIG_IGN)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints to stdout
    give_back_large()
    frames = Frames()
    (_, payload), *_ = _read(frames, None)
    try:
        settings = json.loads(payload)
        parking, ahead, dll, (consumer, *_) = subscribe(settings)
    except (LibraryError, RuntimeError) as error:
        kind = Kind.UNUSABLE if isinstance(error, LibraryError) else Kind.FAILED
        write_all(output, frame(kind, str(error).encode()))
        os._exit(_EXIT_BROKEN)
    parking.out.put(frame(Kind.READY))
    threading.Thread(target=_write, args=(output, parking.out), daemon=True).start()
    beat_at_s, is_away, messages_max = time.monotonic() + BEAT_EVERY_S, False, AHEAD_MAX
    watch_at_s = 0.0
    while True:
        for kind, payload in _read(frames, WATCH_EVERY_S if parking.watched else BEAT_EVERY_S, parking.woken):
            if kind is Kind.ACK:
                parking.settle(unpack_numbers(payload))
            elif kind is Kind.RESUME:
                parking.reopen()
            elif kind is Kind.AWAY:
                is_away = True
                ask_nothing(consumer._handle)
            elif kind is Kind.BACK:
                is_away = False
                read_ahead(dll, consumer._handle, messages_max)
            else:
                parking.close()
            if kind is Kind.LEAVE:
                _leave(parking, dll, consumer)
        if time.monotonic() >= beat_at_s and parking.out.empty():
            beat_at_s = time.monotonic() + BEAT_EVERY_S
            parking.out.put(frame(Kind.BEAT))
            messages_max = ahead.messages_max(parking.largest_bytes)
            if not parking.look():
                ahead.rest()
            if not is_away:
                read_ahead(dll, consumer._handle, messages_max)
        if parking.watched and time.monotonic() >= watch_at_s:  # it takes 0.8 ms, and acknowledgements come more often
            watch_at_s = time.monotonic() + WATCH_EVERY_S
            ahead.measure()


def _read(frames: Frames, timeout_s: float | None, woken: int = 0) -> list[tuple[Kind, bytes]]:
    """Frames from the daemon, none on a time-out or wake-up; ends the process if the daemon is gone."""
    while True:
        ready = select.select({0, woken}, [], [], timeout_s)[0]
        if woken and woken in ready:
            os.read(woken, 1)
        if 0 not in ready:
            return []
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        if found := list(frames.feed(data)):
            return found


def _write(output: int, frames: queue.SimpleQueue[bytes]) -> None:
    while True:
        found = [frames.get()]
        with contextlib.suppress(queue.Empty):
            while len(found) < 64 and len(found[-1]) < JOINED_BYTES:
                found.append(frames.get_nowait())
        try:
            write_all(output, b"".join(found))
        except OSError:
            os._exit(0)
        found.clear()  # frees the frames before the next wait


def _leave(parking: Parking, dll: Any, consumer: Any) -> None:
    """End the process: the library's own shutdown would wait for callbacks and hand over everything read ahead."""
    parking.await_returned(LEAVE_S)
    time.sleep(RETURN_S)
    persist(dll, consumer._handle)
    time.sleep(FLUSH_S)
    os._exit(0)


if __name__ == "__main__":
    main()
