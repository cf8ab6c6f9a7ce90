"""What a committed state tells of a single message, by the rules by which a successor reads it again."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from sidecar.core.partition.promises import Promises
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import NO_TRIES, PartitionState, Tries, lane_key


class Phase(Enum):
    """Where a message stands."""

    SETTLED = "settled"
    """Delivered, or kept as a dead letter, or dropped: the state does not tell which."""
    FIXED = "fixed"
    """In a part whose members are fixed: it is being sent, or waits for its next attempt."""
    OPEN = "open"
    """Read, and in no part yet."""
    UNREAD = "unread"
    """At or above the offset from which nothing was read."""


class Standing(NamedTuple):
    """A phase, and of `FIXED` the part."""

    phase: Phase
    first: int = 0
    last: int = 0
    tries: Tries = NO_TRIES
    """Failed sends up to the commit, as far as the state has them."""


def standing(state: PartitionState, group: str, offset: int) -> Standing:
    """The standing of a message of this group at this offset, when the state was committed."""
    if offset < state.watermark:
        return Standing(Phase.SETTLED)
    if offset >= state.seen:
        return Standing(Phase.UNREAD)
    key = lane_key(group)
    intents, open_from = Promises(state, StateBudget(), durable=True).of(key, state.seen)
    for intent in intents:
        if intent.covers(key, offset):
            return Standing(Phase.FIXED, intent.first, intent.last, intent.tries)
    return Standing(Phase.OPEN if offset >= open_from else Phase.SETTLED)
