"""Names of requests for messages in order, so that a place that was killed gets at once what it had. No connection.

A FIFO broker hands over nothing more of a queue while a message of it is out, but to a request of the same name as the
one that took it. So each request has a name of this place that none of its own unsettled messages came under. After a
crash the first names are used again, and the broker hands over again what was taken under them.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TypeAlias

Use: TypeAlias = tuple[str, int]
"""Topic and broker, and a number."""


class Attempts:
    """Which names are in use at a topic and broker.

    Args:
        place: Stands for this place, over crashes too; empty: no request has a name.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._uses: Counter[Use] = Counter()

    @property
    def in_order(self) -> bool:
        """Whether requests have names."""
        return bool(self._place)

    def begin(self, where: str) -> Use:
        """What a request of a topic and broker is to be called; held until `end`."""
        if not self._place:
            return where, 0
        found = next(use for number in count() if not self._uses[use := (where, number)])
        self._uses[found] = 1
        return found

    def name(self, use: Use) -> str:
        """The name that the broker sees."""
        return f"{self._place}-{use[1]}" if self._place else ""

    def hold(self, use: Use) -> None:
        """A message came under it."""
        self._uses[use] += 1

    def end(self, use: Use) -> None:
        """The request is over, or such a message is not ours any more."""
        self._uses[use] -= 1
