"""Attempt ids of receive requests: a restarted process gets its unacknowledged messages at once. No connection.

While a message of a FIFO queue is unacknowledged, the broker gives nothing more of that queue, except to a request with
the attempt id that received it. So a request takes an id of this place under which nothing is unacknowledged. After a
crash the same ids are used again, and the broker hands over again what was received under them. A request that brings
fewer messages than it asked for has brought all of these, unless another open request held the lock of a queue.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, count
from typing import TypeAlias

Use: TypeAlias = tuple[str, int]
"""Topic and broker, and the number of the attempt id."""
DOUBTED = 16
"""Ids that an earlier process may have used: one for each queue with unacknowledged messages."""


class Attempts:
    """Which attempt ids are in use, by topic and broker.

    Args:
        place: What all ids begin with, the same after a crash; empty where order does not matter: no request has an id.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._uses: Counter[Use] = Counter()
        """Open requests and unacknowledged messages."""
        self._doubted: dict[str, set[int]] = {}
        """By topic and broker, ids under which messages unknown to this process may be unacknowledged."""
        self._open: Counter[str] = Counter()
        self._crowded: set[Use] = set()
        """Requests that began while another was open."""

    @property
    def in_order(self) -> bool:
        """Whether requests have ids."""
        return bool(self._place)

    def begin(self, where: str) -> Use | None:
        """Take an id for a request to a topic and broker, until `answered`; a doubted one if any is free."""
        if not self._place:
            return None
        doubted = sorted(self._doubted.setdefault(where, set(range(DOUBTED))))
        found = next(use for number in chain(doubted, count()) if not self._uses[use := (where, number)])
        self._uses[found] = 1
        self._open[where] += 1
        if self._open[where] > 1:
            self._crowded.add(found)
        return found

    def attempt_id(self, use: Use | None) -> str:
        """The id as the broker sees it, empty for none."""
        return f"{self._place}-{use[1]}" if use is not None else ""

    def hold(self, use: Use) -> None:
        """Count an unacknowledged message."""
        self._uses[use] += 1

    def answered(self, use: Use | None, came: int, *, wholly: bool) -> None:
        """End a request.

        Args:
            use: Its id.
            came: How many messages it brought.
            wholly: Whether these were fewer than it asked for, and nothing failed.
        """
        if use is None:
            return
        where, number = use
        crowded = self._open[where] > 1 or use in self._crowded
        self._open[where] -= 1
        self._crowded.discard(use)
        if wholly and not (crowded and came):
            self._doubted[where].discard(number)
        else:
            self._doubted[where].add(number)
        self.end(use)

    def end(self, use: Use) -> None:
        """Stop counting a message: it is acknowledged, or not ours any more."""
        self._uses[use] -= 1
