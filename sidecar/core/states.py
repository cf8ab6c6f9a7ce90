"""Tables of states: what may happen to a thing, by the state that it is in. Anything else is refused."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar


class Event(enum.Enum):
    """An event of a batch, part, intent, parked record or ownership; each has a table of its own."""

    HELD_BACK = "waits for what a commit makes durable"
    DURABLE = "all that it promises is durable"
    ASKED = "its claim, or the store, was asked"
    CLAIMED = "what it still has is ours"
    UNANSWERED = "the ledger gave no answer"
    SENT = "it was handed to a sender"
    ANSWERED = "the sink answered"
    FAILED = "it is tried again"
    DUE = "its next try is due"
    CROWDED = "its halves found no room"
    READ = "all of it was read again"
    STORED = "the store has it"
    LOADED = "its rows were fetched from the store"
    REPLACED = "parts of it take its place"
    FENCED = "it is about to be lost"
    LOST = "its partition is no longer owned"
    ENDED = "nothing of it is left to do"

    __hash__ = object.__hash__  # an enum's own is a Python function: 40 calls for a batch, with those of the states


S = TypeVar("S", bound=enum.Enum)


class StrayEventError(Exception):
    """An event without a row in the table: a second answer, or one for a batch that was never sent."""

    def __init__(self, subject: object, state: enum.Enum, event: Event) -> None:
        super().__init__(f"{subject}: {event.name}, while it {state.value}")
        self.state, self.event = state, event


def after(table: Mapping[tuple[S, Event], S], subject: object, state: S, event: Event) -> S:
    """The state that follows the event.

    Raises:
        StrayEventError: The table has no row for the event in this state.
    """
    following = table.get((state, event))
    if following is None:
        raise StrayEventError(subject, state, event)
    return following
