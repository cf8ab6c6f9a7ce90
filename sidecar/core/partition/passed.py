"""Messages read again that were settled earlier: a part must not span them, or they are sent again after a crash."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64

from sidecar.core.partition_state import lane_key


class Passed:
    """Their offsets: by group until the group's next fragment, for all groups until a shared intent is past them."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        """By the hashes of groups: a producer's tag may be as large as a message."""
        self._all = BitMap64()

    def add(self, group: str, offsets: Sequence[int]) -> None:
        """Add offsets of a group that were read again, in rising order."""
        self._last[lane_key(group)] = offsets[-1]
        self._all.update(offsets)

    def pop(self, group: str) -> int:
        """The group's last offset if it is settled, for `Fragment.after`; else -1."""
        return self._last.pop(lane_key(group), -1) if self._last else -1

    def first_from(self, offset: int) -> int | None:
        """The lowest offset from `offset` on, of any group. Lower ones are dropped: nothing is cut there any more."""
        self._all.remove_range(0, offset)
        return self._all.min() if self._all else None
