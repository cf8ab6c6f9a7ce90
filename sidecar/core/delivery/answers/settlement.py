"""The end of parts: delivered, duplicate, dead-lettered. Knows no batch and no answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sidecar.core.claims import ENDS, ClaimState, mark_of, place_of
from sidecar.core.cutting.memory import Memory, held_by
from sidecar.core.delivery.answers.dead_letters import DeadLetters
from sidecar.core.delivery.output import Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.parts import Part


class Settlement:
    """Settles each message once, frees its memory, and tells the ledger if there is one.

    Args:
        memory: The count of held memory.
    """

    def __init__(
        self, rules: DeliveryRules, owned: Ownerships, memory: Memory, letters: DeadLetters, output: Output
    ) -> None:
        self._has_ledger = rules.has_ledger
        self._numbered = rules.numbered
        self._owned = owned
        self._memory = memory
        self._letters = letters
        self._output = output

    def finish(self, part: Part, outcome: str, count: int) -> None:
        """Settle the part, whose last `count` messages have this outcome; no effect if it is no longer owned."""
        if part.life.alive:
            self.mark(part, outcome)  # before `settle`, which may finish the intent and release its withheld entries
            self._output.settled(part, outcome, count)
            self._memory.free(held_by(part))
            self._owned[part.tp].outstanding.settle(part)

    def settle_some(self, part: Part, outcome: str, count: int) -> None:
        """Record the outcome of some messages of the part, while others have none yet."""
        self._output.settled(part, outcome, count)

    def mark(self, part: Part, outcome: str, but: Collection[int] = ()) -> None:
        """Tell the ledger the end of the part's rows, except those whose index is in `but`."""
        state = ENDS.get(outcome)
        if not self._has_ledger or part.hold is None or state is None or not part.life.alive:
            return
        mark = mark_of(self.claimant(part), part.fragments, state, but)
        # A twin may take a dead letter: a name that it was sent under with others must not be sent again then.
        alone = part.life.primary and part.count == 1
        if state is ClaimState.SUCCESS or alone:
            self._owned[part.tp].dues.tell(mark)
        else:
            part.intent.withheld.errors.append(mark)

    def claimant(self, part: Part) -> int:
        """The owner of the part's claims, together with the offset of each row."""
        return place_of(part.tp, part.home if self._numbered else "")

    def replace(self, part: Part, pieces: Sequence[Part]) -> None:
        """Replace the part by these pieces, which were sent before as a part of it."""
        for piece in pieces:
            piece.inherit(part)
        self._memory.hold(sum(map(held_by, pieces)) - held_by(part))

    # Dead letters

    def give_up(self, part: Part, reason: str | Mapping[int, str]) -> None:
        """Make all rows of the part dead letters, with one reason or a reason per offset; they count once stored."""
        self._output.ask(self._letters.of_rows(part, reason))

    def give_up_unframeable(self, part: Part) -> None:
        """Make the messages without a row dead letters; the part is not sent before they are stored."""
        self._output.ask(self._letters.of_unframeable(part))

    def letters_stored(self, part: Part, count: int) -> None:
        """Record that dead letters of the part are durable: those of all its rows, or those of messages without one."""
        if not part.unframeable:
            self.finish(part, "dead_lettered", count)
            return
        before = held_by(part)
        part.drop_unframeable()
        self._memory.hold(held_by(part) - before)
        if part.count:
            self._output.settled(part, "dead_lettered", count)
        else:
            self.finish(part, "dead_lettered", count)
