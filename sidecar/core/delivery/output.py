"""Requests and reports of delivery: effects for the shell, outcomes for its conductor. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from sidecar.core.effects import Effect, FieldValue, Report
from sidecar.core.records import TopicPartition


class Settled(NamedTuple):
    """Messages of a partition that have this outcome now."""

    tp: TopicPartition
    outcome: str
    messages: int


class Changed(NamedTuple):
    """The state of a partition changed, and batches wait until it is durable: commit it now."""

    tp: TopicPartition


class Halved(NamedTuple):
    """A part was replaced by its halves, which wait until that is durable."""

    tp: TopicPartition
    group: str
    first: int
    last: int


class GivenUp(NamedTuple):
    """A partition must be read again from its committed state."""

    tp: TopicPartition
    reason: str


class Carried(NamedTuple):
    """Rows of a part whose keys twins hold: they are no longer in a part, and are claimed again elsewhere.

    `first` and `last` are the part's: with a token of the ledger they give the rows their names.
    """

    tp: TopicPartition
    group: str
    first: int
    last: int
    offsets: Sequence[int]
    keys: bytes


class Fetched(NamedTuple):
    """Parked messages of a partition are in flight again."""

    tp: TopicPartition
    messages: int


Outcome: TypeAlias = Settled | Changed | Halved | GivenUp | Carried | Fetched


class Output:
    """Keeps effects until they are taken, and outcomes until they are applied, in their order."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        """Requests to the shell since `take_effects`."""
        self.outcomes: list[Outcome] = []
        """Outcomes that are not applied. They are after each event, so that the next event finds them applied."""

    def report(self, event: str, level: str = "info", /, **fields: FieldValue) -> None:
        """Add a log event."""
        self.effects.append(Report(event, level, fields))

    def take_effects(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self.effects = self.effects, []
        return effects
