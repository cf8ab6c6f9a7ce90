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
    """Messages that were due before another process delivered again, and did not arrive before the kill."""


def lateness(arrivals: Iterable[Arrival], killed_ms: float, resumed_ms: float) -> Lateness:
    """Sum up a run.

    Args:
        arrivals: All delayed messages that arrived.
        killed_ms: When the daemon was killed.
        resumed_ms: When another process delivered again.
    """
    arrivals = list(arrivals)
    waited = [each for each in arrivals if each.due_ms <= resumed_ms and each.at_ms >= killed_ms]
    late = sorted(each.at_ms - each.due_ms for each in set(arrivals).difference(waited)) or [0.0]
    early = sum(each.at_ms < each.due_ms for each in arrivals)
    return Lateness(early, late[len(late) // 2], late[len(late) * 99 // 100], len(waited))
