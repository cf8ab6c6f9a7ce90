"""The books: every message that was handed over, in exactly one outcome. Counts only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

LABELS_MAX = 200
OTHER = "other"


@dataclass(slots=True)
class Books:
    """Messages of one partition since the process began; ``consumed`` is the sum of the other seven."""

    consumed: int = 0
    delivered: int = 0
    duplicate: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    released: int = 0
    in_flight: int = 0
    delayed: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every message handed over has exactly one outcome."""
        settled = self.delivered + self.duplicate + self.filtered + self.dead_lettered
        return self.consumed == settled + self.released + self.in_flight + self.delayed

    def __iadd__(self, other: Books) -> Books:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self


class Tally(Counter[tuple[str, str]]):
    """Counts by (group, result) for at most 200 groups; further ones count as ``other``."""

    def count(self, group: str, result: str) -> None:
        """One more."""
        if (group, result) not in self and len(self) >= LABELS_MAX * 4:
            group = OTHER
        self[group, result] += 1
