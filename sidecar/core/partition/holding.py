"""The messages of one partition that are in its store of delayed messages, or on the way there. Values only.

A delayed message below the committed `seen` is in a store, perhaps another owner's. From `seen` on, this store decides:
it has the message, or gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from sidecar.core.partition_state import Stores

NOWHERE = 1 << 63
"""Above all positions."""


@dataclass(frozen=True, slots=True)
class Put:
    """Messages that were given to the store together."""

    last: int
    """Their highest offset."""
    count: int
    ids: list[int]
    """Their message ids, settled once the store has the messages."""


class Holding:
    """Knows the messages on the way, and keeps the store from delivering messages that another owner may read."""

    def __init__(self) -> None:
        self._known = BitMap64()
        self._moved = NOWHERE
        """The lowest position to which a message was moved while some were on the way."""
        self._all_below = 0
        self._puts: dict[int, Put] = {}
        """By token, in their order."""
        self._cancels: deque[int] = deque()
        """Tokens of cancellations, in their order."""
        self._unproven: deque[tuple[int, int]] = deque()
        """Last offset and lowest position of each put, until a commit proves that the partition was still owned."""
        self.stores = Stores()
        """The stores in the partition's state."""

    def know(self, offsets: BitMap64, seen: int, stores: Stores) -> None:
        """Take over what the store has.

        Args:
            offsets: The offsets at or above `seen` that the store has, delivered ones included.
            seen: The committed offset from which no owner has read. An owner elsewhere would have read from there.
            stores: The stores of this owner and of earlier ones.
        """
        self._known, self._all_below, self.stores = offsets, seen, stores
        if offsets:
            self._unproven.append((offsets.max(), 0))

    def known(self, offsets: Sequence[int]) -> list[bool]:
        """Whether a store had each of these messages when the partition was taken."""
        return [offset < self._all_below or offset in self._known for offset in offsets]

    def read_past(self, position: int) -> None:
        """Record that nothing below `position` is left to read."""
        if self._known and self._known.max() < position:
            self._known.clear()

    def begin_put(self, token: int, put: Put) -> None:
        """Record that messages are on the way to the store; tokens rise."""
        self._puts[token] = put

    def withholds(self, number: int) -> bool:
        """Keep an id back if it may be that of a message that the store has, but not durably yet."""
        first = next(iter(self._puts.values()), None)
        if first is None or first.count:
            return False
        first.ids.append(number)
        return True

    def begin_cancel(self, token: int) -> None:
        """Record a request to cancel messages; tokens rise."""
        self._cancels.append(token)

    def end_cancels(self, token: int) -> None:
        """Record that all cancellations up to a token are durable."""
        while self._cancels and self._cancels[0] <= token:
            self._cancels.popleft()

    def expects(self, token: int) -> bool:
        """Whether messages or cancellations with this token are on the way."""
        return token in self._puts or token in self._cancels

    def end_put(self, token: int, position: int) -> list[Put]:
        """Remove and return the puts up to a token, which are durable now.

        Args:
            token: Token of the last durable `Put`.
            position: The lowest position of these messages.
        """
        ended = [self._puts.pop(each) for each in list(self._puts) if each <= token]
        if ended and ended[-1].count:
            self._unproven.append((ended[-1].last, min(position, self._moved)))
        if not self._puts:
            self._moved = NOWHERE
        return ended

    @property
    def is_behind(self) -> bool:
        """Whether the next messages to read are in the store already: until they are read, it delivers nothing."""
        return bool(self._known)

    @property
    def busy(self) -> bool:
        """Whether anything is on the way: the store must have it before a commit that settles the messages."""
        return bool(self._puts or self._cancels)

    def committed(self, seen: int) -> None:
        """Record a successful commit: no other owner reads messages below `seen`."""
        while self._unproven and self._unproven[0][0] < seen:
            self._unproven.popleft()

    def moved(self, position: int) -> None:
        """Record the new position of a message, which may be unproven."""
        if self._unproven:
            self._unproven.append((self._unproven[-1][0], position))
        if self._puts:
            self._moved = min(self._moved, position)

    @property
    def deliverable_below(self) -> int | None:
        """The position from which on nothing may be read out of the store yet; None if there is none."""
        return min([position for _, position in self._unproven], default=None)
