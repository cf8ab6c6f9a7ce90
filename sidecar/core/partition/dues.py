"""Entries for journal and ledger that the next commit of a partition carries, and the intents that it makes durable."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.core.claims import ClaimEnd
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import Barrier, Intent


@dataclass(slots=True)
class BegunCommit:
    """Everything that a commit under way makes durable."""

    state: PartitionState
    intents: list[Intent]
    barriers: list[Barrier]
    errors: int
    """Number of errors that the ledger may be told after the commit."""


class CommitEntries:
    """Collects entries: for the journal before a commit, for the ledger before or after it."""

    def __init__(self) -> None:
        self._durable: PartitionState | None = None
        self._ids = array("q")
        self._held_ids: list[int] = []
        self._marks: list[ClaimEnd] = []
        self._begun_marks = False
        """Whether a commit took marks and no commit succeeded since: the ledger may not have them yet."""
        self._errors: list[ClaimEnd] = []
        self._barriers: list[Barrier] = []

    def journal(self, number: int) -> None:
        """Add a settled message id that belongs to no intent."""
        self._ids.append(number)

    def journal_held(self, number: int) -> None:
        """Add the id of a message that the store of delayed messages has: a commit under way may settle it."""
        self._held_ids.append(number)

    def tell(self, mark: ClaimEnd) -> None:
        """Add a mark for the ledger, to be written before the next commit; no later commit reports it."""
        self._marks.append(mark)

    def finished(self, intents: Iterable[Intent]) -> None:
        """Release the withheld entries of these intents, which are settled as a whole.

        Ids are written before the commit that drops the intent, errors after it: if a twin took the key while the
        intent still stood, and a successor sent the intent again, both would be delivered.
        """
        for intent in intents:
            self._ids += intent.withheld.ids
            self._errors += intent.withheld.errors

    def barrier(self) -> Barrier:
        """Add a barrier, which becomes durable with a commit that begins from now on."""
        self._barriers.append(Barrier())
        return self._barriers[-1]

    def outdated(self, state: PartitionState) -> bool:
        """Whether there is anything to commit."""
        return bool(state != self._durable or self._marks or self._begun_marks or self._barriers)

    def begin(self, state: PartitionState, intents: Iterable[Intent]) -> BegunCommit:
        """Begin a commit of this state, with all entries that are due so far."""
        # Copies: entries that are added while the commit is under way become durable with a later one.
        return BegunCommit(state, list(intents), list(self._barriers), len(self._errors))

    @property
    def has_ids(self) -> bool:
        """Whether there are entries for the journal."""
        return bool(self._ids or self._held_ids)

    def take_ids(self) -> array[int]:
        """Remove and return the message ids for the journal."""
        ids, self._ids = self._ids, array("q")
        return ids + self.take_held_ids()

    def take_held_ids(self) -> array[int]:
        """Remove and return those of them that are of held messages."""
        ids, self._held_ids = array("q", self._held_ids), []
        return ids

    def take_marks(self) -> tuple[ClaimEnd, ...]:
        """Remove and return the marks for the ledger."""
        marks, self._marks = tuple(self._marks), []
        self._begun_marks |= bool(marks)
        return marks

    def take_errors(self) -> tuple[ClaimEnd, ...]:
        """Remove and return the errors that the ledger may be told after a commit."""
        errors, self._errors = tuple(self._errors), []
        return errors

    def lift_barriers(self) -> None:
        """End all barriers: nobody else can come to own the partition."""
        for barrier in self._barriers:
            barrier.durable = True
        self._barriers.clear()

    def acknowledged(self, begun: BegunCommit) -> bool:
        """Handle a successful commit. Return whether another one is due, for entries that may be written now."""
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
        """Discard ids: this caller has no journal."""
        del self._ids[:]
        self._held_ids.clear()
