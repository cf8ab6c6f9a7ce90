"""A timing wheel over the messages of one hour: slots of about a second, each put in order when its time comes.

G. Varghese, T. Lauck: "Hashed and Hierarchical Timing Wheels", 1987. The hours are the upper level. Knows no file.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.uint64]
Numbers = NDArray[np.uint32]
Partitions = NDArray[np.uint16]
SLOT_BITS = 30
"""A slot has the positions that are equal above these bits: 1,024 ms."""
Entry = tuple[int, int]
"""A position, and the message's number in its hour."""


class Wheel:
    """Numbers of the messages that were not taken, by time; 12 bytes each.

    Args:
        positions: The position of each message by its number.
        numbers: The messages to be taken.
        slot_bits: For few messages, larger slots.
    """

    def __init__(self, positions: Positions, numbers: Numbers, slot_bits: int = SLOT_BITS) -> None:
        self._positions = array("Q", positions.tobytes())
        self._slot_bits = slot_bits
        slots = positions[numbers] >> np.uint64(slot_bits)
        order = np.argsort(slots, kind="stable")
        used, starts = np.unique(slots[order], return_index=True)
        pieces = np.split(numbers[order], starts[1:]) if len(used) else []
        self._slots = {slot: array("I", piece.tobytes()) for slot, piece in zip(used.tolist(), pieces, strict=True)}
        self._used: list[int] = used.tolist()
        """A heap: slots that are empty are never visited."""
        self._opened = -1
        """The last slot that was put in order."""
        self._ready = positions[:0]
        """Positions of the opened slot that were not taken, in order."""
        self._ready_numbers = numbers[:0]
        self._late: list[Entry] = []
        """A heap of entries that were added to opened slots."""

    def add_position(self, position: int, number: int) -> None:
        """Add the next message of the hour."""
        self._positions.append(position)
        slot = position >> self._slot_bits
        if slot <= self._opened:
            heapq.heappush(self._late, (position, number))
        elif slot in self._slots:
            self._slots[slot].append(number)
        else:
            self._slots[slot] = array("I", [number])
            heapq.heappush(self._used, slot)

    def next(self) -> int | None:
        """The lowest position that was not taken; None if all were."""
        if not len(self._ready) and not self._late and self._used:
            self._open(heapq.heappop(self._used))
        first = int(self._ready[0]) if len(self._ready) else None
        if self._late and (first is None or self._late[0][0] < first):
            return self._late[0][0]
        return first

    def _open(self, slot: int) -> None:
        numbers = np.frombuffer(self._slots.pop(slot), np.uint32)
        positions = np.frombuffer(self._positions, np.uint64)[numbers]
        order = np.argsort(positions)
        self._opened, self._ready, self._ready_numbers = slot, positions[order], numbers[order]

    def take_due(self, until: int, limit: int) -> list[Entry]:
        """Remove and return the entries below a position in their order, at most `limit`."""
        taken: list[Entry] = []
        while len(taken) < limit:
            position = self.next()
            if position is None or position >= until:
                break
            if self._late and position == self._late[0][0]:
                taken.append(heapq.heappop(self._late))
                continue
            border = min(until, self._late[0][0]) if self._late else until
            count = min(int(np.searchsorted(self._ready, np.uint64(border))), limit - len(taken))
            taken += zip(self._ready[:count].tolist(), self._ready_numbers[:count].tolist(), strict=True)
            self._ready, self._ready_numbers = self._ready[count:], self._ready_numbers[count:]
        return taken

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Take back entries that `take_due` returned last."""
        for entry in entries:
            heapq.heappush(self._late, entry)


_SLOTS = 1 << 12
"""Slots of `SLOT_BITS` in an hour, about."""
_SLOT_MESSAGES = 256
_SLOTS_MIN = 256
"""Even if an hour had few messages when it was loaded: adding to an opened slot costs ten times as much."""


class LaneWheel:
    """The wheel of some of the messages of an hour: 16 bytes for each of these, nothing for the others.

    Args:
        numbers: Their numbers in the hour.
    """

    def __init__(self, positions: Positions, numbers: Numbers) -> None:
        slots = min(max(_SLOTS_MIN, len(numbers) // _SLOT_MESSAGES), _SLOTS)
        slot_bits = SLOT_BITS + (_SLOTS // slots).bit_length() - 1
        self._wheel = Wheel(positions, np.arange(len(numbers), dtype=np.uint32), slot_bits)
        self._numbers = array("I", numbers.tobytes())

    def __len__(self) -> int:
        return len(self._numbers)

    def add_position(self, position: int, number: int) -> None:
        """Add another message of the hour."""
        self._wheel.add_position(position, len(self._numbers))
        self._numbers.append(number)

    def next(self) -> int | None:
        """The lowest position that was not taken; None if all were."""
        return self._wheel.next()

    def take_due(self, until: int, limit: int) -> list[Entry]:
        """Remove and return the entries below a position in their order, at most `limit`, and their places.

        The number of an entry is its place in this wheel; see `number`.
        """
        return self._wheel.take_due(until, limit)

    def number(self, place: int) -> int:
        """The number in the hour of the message at this place."""
        return self._numbers[place]

    def give_back(self, entries: Iterable[Entry]) -> None:
        """Take back entries that `take_due` returned last."""
        self._wheel.give_back(entries)
