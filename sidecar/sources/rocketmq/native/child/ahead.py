"""Bounds what the library reads ahead: it pulls each queue by itself, but only while there is room.

A pull brings 256 KiB, or one larger message. So before it begins there must be room for it, beside the messages held
and the answers that other pulls may bring, those of queues that had messages last time. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

AHEAD_MIN, AHEAD_MAX = 32, 1000
"""Limits of messages read ahead of each queue; the library reads 32 at a time."""
HELD_TIMES = 3
"""The library's allocation is at most this many times what it may read ahead, as some of it is handed over."""
FIRST_BYTES, SMALL_BYTES = 1 << 20, 16 << 10
"""Assumed size of a pull's answer before one came, and its minimum."""
FADES = 0.99
FIRST_S, LOADED_S = 0.1, 1.0
"""Time for which room is kept for an answer: of a queue not read yet, and of one that had messages last time."""


class _AwaitedPull(NamedTuple):
    """The answer to a pull."""

    until_s: float
    nbytes: int


class BytesAhead:
    """Room for what the library reads ahead; its threads ask.

    Args:
        bytes_max: Limit of all that is read ahead.
        allocated: Returns the bytes that the process has allocated.
    """

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
        self._awaited: dict[int, _AwaitedPull] = {}
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
        """Measure the memory held now."""
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
                awaited = sum(answer.nbytes for answer in self._awaited.values())
                if not (awaited and patience_s) or self._held_bytes + awaited + nbytes <= self._bytes_max:
                    if patience_s:
                        self._awaited[queue] = _AwaitedPull(now_s + patience_s, nbytes)
                    return True
                self._changed.wait(min(answer.until_s for answer in self._awaited.values()) - now_s)
            return False

    def _give_up(self, now_s: float) -> None:
        """Free the room of overdue answers: these requests wait for their first message."""
        for queue, answer in list(self._awaited.items()):
            if answer.until_s <= now_s:
                del self._awaited[queue]
                self._patience_s[queue] = 0.0

    def came(self, queue: int, nbytes: int) -> None:
        """Record the size of a queue's answer."""
        with self._changed:
            self._awaited.pop(queue, None)
            self._patience_s[queue] = LOADED_S
            self._held_bytes += nbytes
            self._answer_bytes = max(SMALL_BYTES, nbytes, int(self._answer_bytes * FADES))
            self._changed.notify_all()
