"""Whether a subscription wants nothing of what is read. Counts only."""

from __future__ import annotations

LOOKS = ("mask", "look")
"""What refuses messages by their tags: the mask, and the exact look behind it."""
FIRST = 1_000
"""So many messages without a wanted one are told: a mistake in the tags would otherwise look like an idle topic."""


class Unwanted:
    """Counts messages that no tag group wants, until the first one is wanted."""

    def __init__(self) -> None:
        self.count = 0
        self._any_wanted = False

    @property
    def is_all(self) -> bool:
        """Whether at least `FIRST` messages were read, and none was wanted."""
        return self.count >= FIRST and not self._any_wanted

    def add(self, wanted: int, filtered: int) -> bool:
        """Add messages; return whether `is_all` begins with them."""
        before = self.is_all
        self._any_wanted = self._any_wanted or wanted > 0
        self.count += filtered
        return self.is_all and not before
