"""Names of requests for messages in order, so that a place that was killed gets at once what it had. No connection.

A FIFO broker hands over nothing more of a queue while a message of it is out, but to a request of the same name as the
one that took it. So each request has a name of this place that none of its own unsettled messages came under. After a
crash the first names are used again, and the broker hands over again what was taken under them: all of it once a
request of that name brought less than it asked for, while no other was open that could hold a queue's lock.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, count
from typing import TypeAlias

Use: TypeAlias = tuple[str, int]
"""Topic and broker, and a number."""
DOUBTED = 16
"""So many names may have been in use when this place was killed: as many as there were queues with messages out."""


class Attempts:
    """Which names are in use at a topic and broker.

    Args:
        place: Stands for this place, over crashes too; empty: no request has a name.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._uses: Counter[Use] = Counter()
        self._doubted: dict[str, set[int]] = {}
        """By topic and broker, names under which more may be out that is not known here."""
        self._open: Counter[str] = Counter()
        self._crowded: set[Use] = set()
        """Requests beside which others were open."""

    @property
    def in_order(self) -> bool:
        """Whether requests have names."""
        return bool(self._place)

    def begin(self, where: str) -> Use:
        """What a request of a topic and broker is to be called; held until `answered`."""
        if not self._place:
            return where, 0
        doubted = sorted(self._doubted.setdefault(where, set(range(DOUBTED))))
        found = next(use for number in chain(doubted, count()) if not self._uses[use := (where, number)])
        self._uses[found] = 1
        self._open[where] += 1
        if self._open[where] > 1:
            self._crowded.add(found)
        return found

    def name(self, use: Use) -> str:
        """The name that the broker sees."""
        return f"{self._place}-{use[1]}" if self._place else ""

    def hold(self, use: Use) -> None:
        """A message came under it."""
        self._uses[use] += 1

    def answered(self, use: Use, came: int, *, wholly: bool) -> None:
        """The request is over; whether it brought less than it asked for."""
        if self._place:
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
        """A message that came under it is not ours any more."""
        self._uses[use] -= 1
