"""Callbacks of the library that wait until the daemon has settled their messages. Standard library only.

A callback only ever returns success: see the child's program.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback

from sidecar.sources.rocketmq.native.child.frames import FrameKind, frame, pack_message
from sidecar.sources.rocketmq.native.child.library import Reader

STUCK_S = 2.0
TOGETHER_BYTES = 64 << 10
"""Limit of the messages in one frame; a single message may be larger."""
EXIT_BROKEN = 70


class _Batch:
    """The messages of a callback, which returns when all are settled."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.settled = threading.Lock()
        self.settled.acquire()


class Turns:
    """A limit of batches at once.

    Args:
        batches_max: The limit; a batch is up to 32 messages of one callback.
    """

    def __init__(self, batches_max: int) -> None:
        self.count = 0
        """Number of batches at present."""
        self._batches_max = batches_max
        self._changed = threading.Condition()

    def enter(self) -> None:
        """Wait for a turn, at most 2 s: messages in flight at a crash may be in more batches now."""
        with self._changed:
            until_s = time.monotonic() + STUCK_S
            while self.count >= self._batches_max and time.monotonic() < until_s:
                self._changed.wait(STUCK_S)
            self.count += 1

    def leave(self, batches: int) -> None:
        """End the turns of this many batches."""
        with self._changed:
            self.count -= batches
            # Waking all of up to 512 waiting threads each time doubled the time per message.
            self._changed.notify(batches)


class Watch:
    """Whether messages arrive or wait, so that the memory read ahead has to be measured."""

    def __init__(self) -> None:
        self.is_on = False
        self.largest_bytes = 0
        """Size of the largest message since the last `end`."""
        self.woken, self._wake = os.pipe()
        """Pipe that becomes readable when messages arrive while it is off."""

    def begin(self) -> None:
        """Messages arrived."""
        if not self.is_on:
            self.is_on = True
            os.write(self._wake, b"\0")

    def end(self, *, waits: bool) -> None:
        """Called once a second: continue only if messages arrived since, or wait."""
        self.is_on = bool(self.largest_bytes) or waits
        self.largest_bytes = 0


class ParkedBatches:
    """Callbacks that wait until their messages are settled.

    Args:
        held_bytes_max: Limit of messages handed over and not settled; a single message may be larger.
        batches_max: Limit of batches at once.
    """

    def __init__(self, reader: Reader, held_bytes_max: int, first: int, batches_max: int) -> None:
        self.out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Frames for the daemon."""
        self.watch = Watch()
        self._reader = reader
        self._held_bytes_max = held_bytes_max
        self._next = first
        self._room = threading.Condition()
        """Messages wait for room in bytes."""
        self._turns = Turns(batches_max)
        self._parked: dict[int, tuple[_Batch, int]] = {}
        self._held_bytes = self._returning = 0
        self._is_closed = False

    def take(self, handles: list[int]) -> None:
        """Hand messages over; returns when all are settled. Ends the process instead of raising: see above."""
        try:
            batch, sizes = _Batch(len(handles)), [self._reader.size(handle) for handle in handles]
            self.watch.begin()
            self._turns.enter()
            while sizes:
                first, count = self._enter(sizes, batch)
                messages = (self._reader.read(i, handle) for i, handle in enumerate(handles[:count], first))
                self.out.put(frame(FrameKind.MESSAGES, b"".join(map(pack_message, messages))))
                del handles[:count], sizes[:count]
            batch.settled.acquire()
            with self._room:
                self._returning -= 1
        except BaseException:  # noqa: BLE001  # an exception in a callback may count as an answer
            traceback.print_exc()
            os._exit(EXIT_BROKEN)

    def _enter(self, sizes: list[int], batch: _Batch) -> tuple[int, int]:
        """Wait until the first message may be handed over; return its number, and how many fit in all."""
        with self._room:
            self.watch.largest_bytes = max(self.watch.largest_bytes, *sizes)
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
                        self._returning += 1
                        batch.settled.release()
            settled = self._returning - returning
            if not self._is_closed:
                self._room.notify_all()
        self._turns.leave(settled)

    @property
    def is_empty(self) -> bool:
        """Whether no callback waits."""
        return not (self._turns.count or self._parked)

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
