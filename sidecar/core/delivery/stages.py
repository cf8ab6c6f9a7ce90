"""The table of batch states: which events each state accepts, and the next state. Anything else is an error."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Stage(enum.Enum):
    """Stage of a batch; it has exactly one at a time."""

    NEW = "is not queued yet"
    HELD_BACK = "waits for a commit"
    READY = "waits for a free sender"
    CLAIMING = "waits for the ledger"
    UNCLAIMED = "waits until the ledger is asked again"
    SENDING = "waits for an answer"
    ANSWERED = "was answered"
    WAITING = "waits for its next try"
    CROWDED = "waits for room for its halves"
    ENDED = "has come to its end"


class Event(enum.Enum):
    """An event of a batch."""

    HELD_BACK = "waits for what a commit makes durable"
    DURABLE = "all that it promises is durable"
    ASKED = "its claim was asked for"
    CLAIMED = "what it still has is ours"
    UNANSWERED = "the ledger gave no answer"
    SENT = "it was handed to a sender"
    ANSWERED = "the sink answered"
    FAILED = "it is sent again"
    DUE = "its next try is due"
    CROWDED = "its halves found no room"
    ENDED = "nothing of it is left to do"


TRANSITIONS: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.NEW, Event.HELD_BACK): Stage.HELD_BACK,
    (Stage.NEW, Event.DURABLE): Stage.READY,
    (Stage.NEW, Event.FAILED): Stage.WAITING,  # a piece of a batch that was sent, also below
    (Stage.NEW, Event.ENDED): Stage.ENDED,
    (Stage.HELD_BACK, Event.DURABLE): Stage.READY,
    (Stage.READY, Event.ASKED): Stage.CLAIMING,
    (Stage.READY, Event.SENT): Stage.SENDING,
    (Stage.READY, Event.ENDED): Stage.ENDED,  # no part of it is owned any more, also below
    (Stage.CLAIMING, Event.CLAIMED): Stage.READY,
    (Stage.CLAIMING, Event.UNANSWERED): Stage.UNCLAIMED,
    (Stage.CLAIMING, Event.ENDED): Stage.ENDED,
    (Stage.UNCLAIMED, Event.ASKED): Stage.CLAIMING,
    (Stage.UNCLAIMED, Event.ENDED): Stage.ENDED,
    (Stage.SENDING, Event.ANSWERED): Stage.ANSWERED,
    (Stage.ANSWERED, Event.FAILED): Stage.WAITING,
    (Stage.ANSWERED, Event.CROWDED): Stage.CROWDED,
    (Stage.ANSWERED, Event.ENDED): Stage.ENDED,
    (Stage.WAITING, Event.DUE): Stage.READY,
    (Stage.WAITING, Event.ENDED): Stage.ENDED,  # it is parked
    (Stage.CROWDED, Event.ENDED): Stage.ENDED,
}


class StrayEventError(Exception):
    """An event does not fit the table: a second answer, or one for a batch that was never sent."""

    def __init__(self, subject: str, stage: Stage, event: Event) -> None:
        super().__init__(f"{subject}: {event.name}, while it {stage.value}")
        self.stage, self.event = stage, event


def after(subject: str, stage: Stage, event: Event) -> Stage:
    """The stage that follows the event.

    Raises:
        StrayEventError: The stage does not accept the event.
    """
    following = TRANSITIONS.get((stage, event))
    if following is None:
        raise StrayEventError(subject, stage, event)
    return following
