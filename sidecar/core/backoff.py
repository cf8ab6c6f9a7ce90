"""Waits between sends, and the guard that suspects the receiver instead of the messages. Time and chance are inputs."""

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
    """Exponential backoff with full jitter: AWS Architecture Blog, "Exponential Backoff And Jitter", 2015.

    Args:
        base_ms: Upper bound of the first wait.
        max_ms: Upper bound of every wait.
    """

    base_ms: int
    max_ms: int

    def wait_ms(self, attempt: int, jitter: float, retry_after_ms: float | None = None) -> float:
        """Milliseconds to wait after the failed send number `attempt`, counted from 1.

        Args:
            jitter: Uniform in [0, 1).
            retry_after_ms: The wait that the receiver asked for; honoured up to 5 minutes.
        """
        bound = min(self.max_ms, self.base_ms << min(attempt - 1, 32))
        return max(bound * jitter, min(retry_after_ms or 0, RETRY_AFTER_MAX_MS))


class RefusalGuard:
    """Detects a receiver that refuses too much: more than a tenth of the last 1,000 messages.

    While it is tripped, nothing is dead-lettered, refused messages are retried, and each message counts by its last
    answer. It is reset when nine tenths of the messages answered since then were accepted.
    """

    def __init__(self) -> None:
        self.tripped = False
        self._window: deque[tuple[bool, int]] = deque()
        self._total = 0
        self._refused = 0
        self._doubted: set[MessageOffset] = set()
        self._taken = 0

    def taken(self, count: int, places: Iterable[MessageOffset]) -> None:
        """Count delivered messages.

        Args:
            places: The messages; iterated only while tripped.
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
        """Count one message that was refused permanently."""
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
        """Drop the messages of a partition that is no longer owned."""
        self._doubted = {place for place in self._doubted if place[0] != tp}

    def _add(self, *, refused: bool, count: int) -> None:
        self._window.append((refused, count))
        self._total += count
        self._refused += count * refused
        while self._total - self._window[0][1] >= REFUSED_WINDOW:
            was_refused, gone = self._window.popleft()
            self._total -= gone
            self._refused -= gone * was_refused
