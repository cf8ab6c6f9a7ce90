"""How late delayed messages arrive in the demo. Looks at no database and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Arrival(NamedTuple):
    """A delayed message, in milliseconds since 1970."""

    due_ms: float
    at_ms: float
    """When it was seen at the receiver."""


class Lateness(NamedTuple):
    """Of messages that were due while a daemon ran."""

    early: int
    """Messages that arrived before they were due, whenever that was."""
    half_ms: float
    """Half of the messages were at most so late."""
    most_ms: float
    """99 of 100 messages were at most so late."""
    waited: int
    """Messages that were due while no daemon delivered."""


def lateness(arrivals: Iterable[Arrival], killed_ms: float, resumed_ms: float) -> Lateness:
    """Sum up a run.

    Args:
        arrivals: All delayed messages that arrived.
        killed_ms: When the daemon was killed.
        resumed_ms: When another process delivered again.
    """
    arrivals = list(arrivals)
    late = sorted(each.at_ms - each.due_ms for each in arrivals if not killed_ms <= each.due_ms <= resumed_ms)
    late = late or [0.0]
    return Lateness(
        sum(each.at_ms < each.due_ms for each in arrivals),
        late[len(late) // 2],
        late[len(late) * 99 // 100],
        sum(killed_ms <= each.due_ms <= resumed_ms for each in arrivals),
    )
