"""When to try again, and when to doubt the receiver instead of the messages. Time and chance come in as numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.core.records import TopicPartition

REFUSED_WINDOW = 1_000
REFUSED_MAX = 100
RETRY_AFTER_MAX_MS = 300_000

MessageOffset = tuple[TopicPartition, int]
"""Partition and offset of a message."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling waits with full jitter: AWS Architecture Blog, "Exponential Backoff And Jitter", 2015.

    Args:
        base_ms: Upper bound of the first wait.
        max_ms: Upper bound of every wait.
    """

    base_ms: int
    max_ms: int

    def wait_ms(self, attempt: int, jitter: float, retry_after_ms: float | None = None) -> float:
        """Milliseconds to wait after the failed send number `attempt`, counted from 1.

        Args:
            attempt: How many sends failed.
            jitter: Uniform in [0, 1).
            retry_after_ms: What the receiver asked for; at most 5 minutes of it are honoured.
        """
        bound = min(self.max_ms, self.base_ms << min(attempt - 1, 32))
        return max(bound * jitter, min(retry_after_ms or 0, RETRY_AFTER_MAX_MS))


class RefusalGuard:
    """Notices a receiver that refuses too much: more than a tenth of the last 1,000 messages.

    While it is tripped nothing more is dead-lettered, what is refused is tried again, and each message counts as what
    it was answered last. It lets go when nine tenths of what was answered since were taken.
    """

    def __init__(self) -> None:
        self.tripped = False
        self._window: deque[tuple[bool, int]] = deque()
        self._total = 0
        self._refused = 0
        self._doubted: set[MessageOffset] = set()
        self._taken = 0

    def taken(self, count: int, places: Iterable[MessageOffset]) -> None:
        """`count` messages were delivered.

        Args:
            count: How many.
            places: Which; looked at only while tripped.
        """
        if not self.tripped:
            self._add(refused=False, count=count)
            return
        self._doubted.difference_update(places)
        self._taken += count
        if self._taken >= 9 * len(self._doubted):
            self.tripped = False
            self._doubted.clear()

    def refused(self, place: MessageOffset) -> None:
        """One message was refused for good."""
        if self.tripped:
            self._doubted.add(place)
            return
        self._add(refused=True, count=1)
        if self._refused > REFUSED_MAX:
            self.tripped = True
            self._doubted.add(place)
            self._window.clear()
            self._total = self._refused = self._taken = 0

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._doubted = {place for place in self._doubted if place[0] != tp}

    def _add(self, *, refused: bool, count: int) -> None:
        self._window.append((refused, count))
        self._total += count
        self._refused += count * refused
        while self._total - self._window[0][1] >= REFUSED_WINDOW:
            was_refused, gone = self._window.popleft()
            self._total -= gone
            self._refused -= gone * was_refused
