"""What was read again and was settled by an earlier ownership: no part may span it, or a crash would send it again."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64


class Passed:
    """Remembers it by group, until the group's next fragment, and for all groups, until a shared intent is past it."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._all = BitMap64()

    def add(self, group: str, offsets: Sequence[int]) -> None:
        """These of a group were read again; rising."""
        self._last[group] = offsets[-1]
        self._all.update(offsets)

    def pop(self, group: str) -> int:
        """The group's message read last if that is among it, for `Fragment.after`; -1 where it is not."""
        return self._last.pop(group, -1) if self._last else -1

    def first_from(self, offset: int) -> int | None:
        """The lowest from `offset` on, of any group; what is below is forgotten: nothing is cut from there any more."""
        self._all.remove_range(0, offset)
        return self._all.min() if self._all else None
