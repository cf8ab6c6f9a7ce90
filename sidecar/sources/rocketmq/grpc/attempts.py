"""Attempt ids of receive requests: a restarted process gets its unacknowledged messages at once. No connection.

While a message of a FIFO queue is unacknowledged, the broker gives nothing more of that queue, except to a request with
the attempt id that received it. So a request uses an id of this place under which nothing is unacknowledged. After a
crash the same ids are used again, and the broker hands over again the messages received under them. A request that
brings as many messages as it asked for may have left some of these, and so may a request that met the sweep of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

Use: TypeAlias = tuple[str, int]
"""Topic and broker, and the number of the attempt id."""
CONFIRMED = 2
"""Number of requests that must bring fewer messages than requested before an id is not doubted any more."""
SPREAD = 8
"""Limit of queues that one request locks: after a crash they come one after the other, each acknowledged first."""


class Attempts:
    """The attempt ids in use, by topic and broker.

    Args:
        place: Prefix of all ids, the same after a crash; empty if order does not matter: then no request has an id.
    """

    def __init__(self, owner: str) -> None:
        self._place = owner
        self._uses: Counter[Use] = Counter()
        """Open requests and unacknowledged messages."""
        self._open: Counter[str] = Counter()
        self._doubts: dict[str, dict[int, int]] = {}
        """By topic and broker: ids under which messages unknown to this process may be unacknowledged, each with the
        number of requests that must confirm the opposite."""
        self._asked: dict[Use, int] = {}
        """The same for ids of open requests."""
        self._each: dict[str, float] = {}
        """Number of messages per queue in the last answer."""

    @property
    def in_order(self) -> bool:
        """Whether requests have ids."""
        return bool(self._place)

    def attempt_id(self, use: Use | None) -> str:
        """The id as the broker sees it, empty for none."""
        return f"{self._place}-{use[1]}" if use is not None else ""

    def is_doubted(self, where: str) -> bool:
        """Whether an id is to be requested as soon as it is free."""
        return bool(self._doubts.get(where))

    def free(self, where: str, queues: int) -> list[Use]:
        """The ids with which requests to a topic and broker are to be made now.

        In doubt, all free ids: the others take the queues that are not locked, so that those of the doubted id are left
        for it. Otherwise one id, if no request is open.
        """
        # Each id in use has a queue locked, so one more id is enough.
        doubts = self._doubts.setdefault(where, dict.fromkeys(range(queues + 1), CONFIRMED))
        if doubts:
            numbers = [*sorted(doubts), *(number for number in range(queues + 1) if number not in doubts)]
            return [use for number in numbers if not self._uses[use := (where, number)]]
        return [] if self._open[where] else [next(use for n in count() if not self._uses[use := (where, n)])]

    def begin(self, use: Use | None) -> None:
        """Count a request, until `answered`."""
        if use is None:
            return
        where, number = use
        self._uses[use] += 1
        self._open[where] += 1
        self._asked[use] = self._doubts[where].pop(number, 0)

    def most(self, where: str) -> int:
        """Number of messages that a request should ask for, so that it locks only some queues."""
        return max(SPREAD, int(SPREAD * self._each.get(where, 1.0)))

    def answered(self, use: Use | None, came: Sequence[int], *, wholly: bool, cut: bool) -> None:
        """End a request.

        Args:
            came: The queue of each message it brought.
            wholly: Whether these were fewer than requested.
            cut: Whether it may have brought more.
        """
        if use is None:
            return
        where, number = use
        self._open[where] -= 1
        left = self._asked.pop(use)
        if cut:
            left = CONFIRMED
        elif wholly:
            left = left - 1 if came else 0
        if left > 0:
            self._doubts[where][number] = left
        if came:
            self._each[where] = len(came) / len(set(came))
        self.end(use)

    def hold(self, use: Use) -> None:
        """Count an unacknowledged message."""
        self._uses[use] += 1

    def end(self, use: Use | None) -> None:
        """Stop counting a message that is acknowledged or no longer owned."""
        if use is not None:
            self._uses[use] -= 1
