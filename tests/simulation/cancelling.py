"""What messages that cancel others promise: once they are settled, what they name is never delivered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tests.simulation.broker import BrokenPromiseError


class Cancelling:
    """Knows which offsets must not be delivered any more.

    Args:
        log: Rows: offset, three columns, name, and names that it cancels.
    """

    def __init__(self, log: Sequence[tuple[Any, ...]]) -> None:
        self._targets = {
            offset: {row[0] for row in log if row[0] < offset and isinstance(row[3], int) and row[4] in cancels}
            for offset, *_, cancels in log
            if cancels
        }
        """By offset of a message that cancels, those that it may cancel."""
        self.named: set[int] = set().union(*self._targets.values())
        """Offsets that may be cancelled."""
        self._settled: set[int] = set()
        """Those that cancel, and that a commit has settled."""
        self._ended: set[int] = set()
        """What must not be delivered any more."""

    def settled(self, watermark: int, excepted: Collection[int]) -> None:
        """A commit settles what is below an offset; some messages may be delivered nevertheless."""
        for offset in self._targets.keys() - self._settled:
            if offset < watermark:
                self._settled.add(offset)
                self._ended |= self._targets[offset].difference(excepted)

    def reset(self, at: int) -> None:
        """From an offset on all comes again; what was not read below cancels nothing."""
        self._settled = {offset for offset in self._targets if offset < at}
        self._ended = {offset for offset in self._ended if offset < at}

    def forget(self, offset: int) -> None:
        """This may be delivered after all."""
        self._ended.discard(offset)

    def check(self, offset: int) -> None:
        """A message is delivered or given up.

        Raises:
            BrokenPromiseError: It was cancelled before.
        """
        if offset in self._ended:
            raise BrokenPromiseError("cancelled", f"{offset} was cancelled by a message that is settled")
