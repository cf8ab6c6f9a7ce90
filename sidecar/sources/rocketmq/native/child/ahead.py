"""How much the library reads ahead: it asks for messages of each queue by itself, and is let do so within a bound.

A pull brings 256 KiB, or one message that is larger. So before one begins there must be room for it beside what came,
and what other pulls may bring: those of queues that had messages last time. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

AHEAD_MIN, AHEAD_MAX = 32, 1000
"""Messages that may be read ahead of each queue; the library reads 32 at a time."""
HELD_TIMES = 3
"""What the library has allocated is at most so many times what it may read ahead: some of it is handed over."""
FIRST_BYTES, SMALL_BYTES = 1 << 20, 16 << 10
"""What the answer to a pull is taken to have before one came, and at least."""
FADES = 0.99
FIRST_S, LOADED_S = 0.1, 1.0
"""How long room is kept for an answer: of a queue that was not read yet, and of one that had messages last time."""


class _Awaited(NamedTuple):
    """The answer to a pull."""

    until_s: float
    nbytes: int


class Ahead:
    """Room for what the library reads ahead; its threads ask.

    Args:
        bytes_max: Of all that is read ahead.
        queues: How many there are.
        allocated: Tells what the process has allocated.
    """

    def __init__(self, bytes_max: int, queues: int, allocated: Callable[[], int]) -> None:
        self._share_bytes = bytes_max // queues
        self._bytes_max = HELD_TIMES * bytes_max
        self._allocated = allocated
        self._unused = self._idle = allocated()
        """What the process takes without a message, and what it took when it was idle a moment ago."""
        self._held_bytes = 0
        self._answer_bytes = 0
        """Of the largest answer of late, 0 before the first."""
        self._patience_s: dict[int, float] = {}
        """By queue, how long room is kept for its answer; one for each that the library ever had."""
        self._awaited: dict[int, _Awaited] = {}
        self._changed = threading.Condition()

    def messages_max(self, largest_bytes: int) -> int:
        """How many messages of a queue may be read ahead, by the largest of late."""
        # Above this the library waits a second: fewer would be slow, and more than a queue's share is too much.
        return max(AHEAD_MIN, min(AHEAD_MAX, self._share_bytes // max(1, largest_bytes)))

    def rest(self) -> None:
        """Nothing has come for a second, and nothing is held: measure what the process takes without a message.

        An answer may be on its way in even now. So of two such moments in a row the one counts that had less.
        """
        with self._changed:
            before, self._idle = self._idle, self._allocated()
            self._unused = min(before, self._idle)
            self._held_bytes = max(0, self._idle - self._unused)

    def measure(self) -> None:
        """Look at what is held by now."""
        with self._changed:
            self._held_bytes = max(0, self._allocated() - self._unused)
            self._changed.notify_all()

    def may_pull(self, queue: int) -> bool:
        """Whether a queue may be asked now, else in a second; waits while others' answers may take the room."""
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
                        self._awaited[queue] = _Awaited(now_s + patience_s, nbytes)
                    return True
                self._changed.wait(min(answer.until_s for answer in self._awaited.values()) - now_s)
            return False

    def _give_up(self, now_s: float) -> None:
        """What has not come waits for its first message: nothing is kept free for it."""
        for queue, answer in list(self._awaited.items()):
            if answer.until_s <= now_s:
                del self._awaited[queue]
                self._patience_s[queue] = 0.0

    def came(self, queue: int, nbytes: int) -> None:
        """A queue's answer has brought so much."""
        with self._changed:
            self._awaited.pop(queue, None)
            self._patience_s[queue] = LOADED_S
            self._held_bytes += nbytes
            self._answer_bytes = max(SMALL_BYTES, nbytes, int(self._answer_bytes * FADES))
            self._changed.notify_all()
