"""Bytes that the library reads ahead, and its callbacks that wait for the daemon. Standard library only.

A callback only ever returns success: see the child's program.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from sidecar.sources.rocketmq.native.child.frames import FrameKind, frame, pack_message
from sidecar.sources.rocketmq.native.child.library import Reader

AHEAD_MIN, AHEAD_MAX = 32, 1000
"""Limits of messages read ahead of each queue; the library reads 32 at a time."""
HELD_TIMES = 3
"""The library's allocation is at most this many times what it may read ahead, as some of it is handed over."""
FIRST_BYTES, SMALL_BYTES = 1 << 20, 16 << 10
"""Assumed size of a pull's answer before one came, and its minimum."""
FADES = 0.99
FIRST_S, LOADED_S = 0.1, 1.0
"""Time for which room is kept for an answer: of a queue not read yet, and of one that had messages last time."""


class BytesAhead:
    """Room for at most `bytes_max` that the library reads ahead, requested by its threads."""

    def __init__(self, bytes_max: int, queues: int, allocated: Callable[[], int]) -> None:
        self._share_bytes = bytes_max // queues
        self._bytes_max = HELD_TIMES * bytes_max
        self._allocated = allocated
        self._unused = self._idle = allocated()
        """Memory of the process without messages, and the last measurement while idle."""
        self._held_bytes = 0
        self._answer_bytes = 0
        """Size of the largest recent answer, 0 before the first."""
        self._patience_s: dict[int, float] = {}
        """Time for which room is kept for an answer, by queue; has every queue that the library ever read."""
        self._awaited: dict[int, tuple[float, int]] = {}
        """Until when room is kept for a queue's answer, and how many bytes."""
        self._changed = threading.Condition()

    def messages_max(self, largest_bytes: int) -> int:
        """Limit of messages read ahead of a queue, by the size of the largest recent one."""
        # Above this the library waits a second: a lower limit would be slow, and a higher one exceeds a queue's share.
        return max(AHEAD_MIN, min(AHEAD_MAX, self._share_bytes // max(1, largest_bytes)))

    def rest(self) -> None:
        """Measure the process without messages: nothing has arrived for a second, and nothing is held.

        An answer may be arriving even now, so the smaller of two consecutive measurements counts.
        """
        with self._changed:
            before, self._idle = self._idle, self._allocated()
            self._unused = min(before, self._idle)
            self._held_bytes = max(0, self._idle - self._unused)

    def measure(self) -> None:
        with self._changed:
            self._held_bytes = max(0, self._allocated() - self._unused)
            self._changed.notify_all()

    def may_pull(self, queue: int) -> bool:
        """Whether a queue may be asked now, otherwise in a second; waits while other answers may take the room."""
        with self._changed:
            self._awaited.pop(queue, None)
            patience_s = self._patience_s.setdefault(queue, FIRST_S)
            nbytes = self._answer_bytes or FIRST_BYTES
            while self._held_bytes <= self._bytes_max:
                now_s = time.monotonic()
                self._give_up(now_s)
                awaited = sum(answer_bytes for _, answer_bytes in self._awaited.values())
                if not (awaited and patience_s) or self._held_bytes + awaited + nbytes <= self._bytes_max:
                    if patience_s:
                        self._awaited[queue] = now_s + patience_s, nbytes
                    return True
                self._changed.wait(min(self._awaited.values())[0] - now_s)
            return False

    def _give_up(self, now_s: float) -> None:
        """Free the room of overdue answers: these requests wait for their first message."""
        for queue, (until_s, _) in list(self._awaited.items()):
            if until_s <= now_s:
                del self._awaited[queue]
                self._patience_s[queue] = 0.0

    def came(self, queue: int, nbytes: int) -> None:
        with self._changed:
            self._awaited.pop(queue, None)
            self._patience_s[queue] = LOADED_S
            self._held_bytes += nbytes
            self._answer_bytes = max(SMALL_BYTES, nbytes, int(self._answer_bytes * FADES))
            self._changed.notify_all()


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
    """A limit of batches at once, each of up to 32 messages of one callback."""

    def __init__(self, batches_max: int) -> None:
        self.count = 0
        """Number of batches at present."""
        self._batches_max = batches_max
        self._changed = threading.Condition()

    def enter(self) -> None:
        """Wait for a turn, at most 2 s: messages in flight at a crash may be in more batches now."""
        with self._changed:
            self._changed.wait_for(lambda: self.count < self._batches_max, STUCK_S)
            self.count += 1

    def leave(self, batches: int) -> None:
        """End the turns of this many batches."""
        with self._changed:
            self.count -= batches
            # Waking all of up to 512 waiting threads each time doubled the time per message.
            self._changed.notify(batches)


class Watch:
    """Whether messages arrive or wait, so that the memory read ahead must be measured."""

    def __init__(self) -> None:
        self.is_on = False
        self.largest_bytes = 0
        """Size of the largest message since the last `end`."""
        self.woken, self._wake = os.pipe()
        """Pipe that becomes readable when messages arrive while it is off."""

    def begin(self) -> None:
        if not self.is_on:
            self.is_on = True
            os.write(self._wake, b"\0")

    def end(self, *, waits: bool) -> None:
        """Called once a second: continue only if messages arrived since, or wait."""
        self.is_on = bool(self.largest_bytes) or waits
        self.largest_bytes = 0


class ParkedBatches:
    """Callbacks that wait until their messages are settled: up to `held_bytes_max`, or a single larger message."""

    def __init__(self, reader: Reader, held_bytes_max: int, first: int, batches_max: int) -> None:
        self.out: SimpleQueue[bytes] = SimpleQueue()
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
        return not (self._turns.count or self._parked)

    def close(self) -> None:
        with self._room:
            self._is_closed = True

    def reopen(self) -> None:
        with self._room:
            self._is_closed = False
            self._room.notify_all()

    def await_returned(self, timeout_s: float) -> None:
        """Wait until the callbacks of settled messages have returned."""
        until_s = time.monotonic() + timeout_s
        while self._returning and time.monotonic() < until_s:
            time.sleep(0.01)
