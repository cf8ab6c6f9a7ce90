"""What delivery asks for and what it has to tell: effects for the shell, outcomes for who conducts it. Values only."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from sidecar.core.effects import Effect, FieldValue, Report
from sidecar.core.parts import Part
from sidecar.core.records import TopicPartition


class Settled(NamedTuple):
    """So many messages of a partition have this outcome now."""

    tp: TopicPartition
    outcome: str
    messages: int


class Changed(NamedTuple):
    """A partition's state changed, and batches wait until that is durable: to be committed now."""

    tp: TopicPartition


class Halved(NamedTuple):
    """A part was replaced by its halves, which wait until that is durable."""

    tp: TopicPartition
    group: str
    first: int
    last: int


class GivenUp(NamedTuple):
    """A partition must be read again from what is committed."""

    tp: TopicPartition
    reason: str


Outcome: TypeAlias = Settled | Changed | Halved | GivenUp


class Output:
    """Keeps both until they are taken, in their order."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._outcomes: list[Outcome] = []

    def ask(self, effect: Effect) -> None:
        """The shell is to do this."""
        self._effects.append(effect)

    def report(self, event: str, level: str = "info", /, **fields: FieldValue) -> None:
        """A log event."""
        self._effects.append(Report(event, level, fields))

    def settled(self, part: Part, outcome: str, count: int) -> None:
        """So many messages of the part, which is alive, have this outcome: each message is told once."""
        self._outcomes.append(Settled(part.tp, outcome, count))

    def tell(self, outcome: Outcome) -> None:
        """Something else came of an event."""
        self._outcomes.append(outcome)

    def take_effects(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def take_outcomes(self) -> list[Outcome]:
        """All outcomes since the last call; to be taken after each event, so that the next one finds them applied."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
