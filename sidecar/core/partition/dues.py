"""What the next commit of a partition takes along, and what it makes durable."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.core.claims import Mark
from sidecar.core.intents import Barrier, Intent
from sidecar.core.partition_state import PartitionState


@dataclass(slots=True)
class Begun:
    """What a commit that is on its way makes durable."""

    state: PartitionState
    intents: list[Intent]
    barriers: list[Barrier]
    errors: int
    """How many of the errors the ledger may be told then."""


class Dues:
    """Gathers what has to be told: the journal before a commit, the ledger before it or after."""

    def __init__(self) -> None:
        self._durable: PartitionState | None = None
        self._ids: list[int] = []
        self._marks: list[Mark] = []
        self._begun_marks = False
        """Whether a commit took marks, and none succeeded since: the ledger may not have them yet."""
        self._errors: list[Mark] = []
        self._barriers: list[Barrier] = []

    def journal(self, number: int) -> None:
        """This message id is settled, and belongs to no intent."""
        self._ids.append(number)

    def tell(self, mark: Mark) -> None:
        """The ledger is to know this before the next commit: after it nobody would tell it any more."""
        self._marks.append(mark)

    def finished(self, intents: Iterable[Intent]) -> None:
        """All of these is settled: what was withheld may be told now.

        Ids go before the commit that forgets the intent, errors after it: a twin that took the dead letter while the
        intent still stood would be sent beside it, if a successor sent the intent again.
        """
        for intent in intents:
            self._ids += intent.withheld.ids
            self._errors += intent.withheld.errors

    def barrier(self) -> Barrier:
        """What is durable when a commit that begins from now on succeeded."""
        self._barriers.append(Barrier())
        return self._barriers[-1]

    def outdated(self, state: PartitionState) -> bool:
        """Whether there is anything to commit."""
        return bool(state != self._durable or self._marks or self._begun_marks or self._barriers)

    def begin(self, state: PartitionState, intents: Iterable[Intent]) -> Begun:
        """A commit of this state begins, with all that is due so far."""
        # Copies: what is added while the commit is on its way becomes durable with a later one.
        return Begun(state, list(intents), list(self._barriers), len(self._errors))

    @property
    def has_ids(self) -> bool:
        """Whether the journal is to be told anything."""
        return bool(self._ids)

    def take_ids(self) -> array[int]:
        """Message ids for the journal."""
        ids, self._ids = array("q", self._ids), []
        return ids

    def take_marks(self) -> tuple[Mark, ...]:
        """Ends of claims for the ledger."""
        marks, self._marks = tuple(self._marks), []
        self._begun_marks |= bool(marks)
        return marks

    def acknowledged(self, begun: Begun) -> bool:
        """The commit succeeded; whether another one is due for what may be told from now on."""
        self._durable, self._begun_marks = begun.state, False
        for intent in begun.intents:
            intent.durable = True
        for barrier in begun.barriers:
            barrier.durable = True
        self._barriers = [barrier for barrier in self._barriers if not barrier.durable]
        self._marks += self._errors[: begun.errors]
        del self._errors[: begun.errors]
        return begun.errors > 0

    def drop_ids(self) -> None:
        """Nobody keeps a journal."""
        self._ids.clear()
