"""How parts come to their ends: delivered, duplicate, dead-lettered. Knows no batch and no answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sidecar.core.claims import ENDS, State, mark_of, place_of
from sidecar.core.cutting.memory import Memory, held_by
from sidecar.core.delivery.answers.dead_letters import DeadLetters
from sidecar.core.delivery.output import Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.parts import Part


class Settlement:
    """Settles each message once, frees what it held, and tells the ledger where there is one.

    Args:
        rules: How batches are delivered.
        owned: The partitions that are ours.
        memory: What is held.
        letters: Takes dead letters.
        output: Hears of ends.
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
        """The last `count` messages of the part have their outcome: it is settled, unless it is not ours any more."""
        if part.life.alive:
            self.mark(part, outcome)  # before `settle`, by which the intent may be finished and what it withheld is due
            self._output.settled(part, outcome, count)
            self._memory.free(held_by(part))
            self._owned[part.tp].outstanding.settle(part)

    def settle_some(self, part: Part, outcome: str, count: int) -> None:
        """So many messages of the part have their outcome, and others have none yet."""
        self._output.settled(part, outcome, count)

    def mark(self, part: Part, outcome: str, but: Collection[int] = ()) -> None:
        """Tell the ledger what became of the part's rows, but for those whose index is in `but`."""
        state = ENDS.get(outcome)
        if not self._has_ledger or part.hold is None or state is None or not part.life.alive:
            return
        mark = mark_of(self.claimant(part), part.fragments, state, but)
        # A twin may take a dead letter: a name that it was sent under with others must not be sent again then.
        alone = part.life.primary and part.count == 1
        if state is State.SUCCESS or alone:
            self._owned[part.tp].dues.tell(mark)
        else:
            part.intent.withheld.errors.append(mark)

    def claimant(self, part: Part) -> int:
        """What owns the part's claims, together with the offset of each."""
        return place_of(part.tp, part.home if self._numbered else "")

    def replace(self, part: Part, pieces: Sequence[Part]) -> None:
        """These pieces have taken the part's place; they were sent before, as a part of it."""
        for piece in pieces:
            piece.inherit(part)
        self._memory.hold(sum(map(held_by, pieces)) - held_by(part))

    # Dead letters

    def give_up(self, part: Part, reason: str | Mapping[int, str]) -> None:
        """Make all rows of the part dead letters, for one reason or for one an offset; they count once stored."""
        self._output.ask(self._letters.of_rows(part, reason))

    def give_up_unframeable(self, part: Part) -> None:
        """Make dead letters of what has no row; the part is not sent before they are stored."""
        self._output.ask(self._letters.of_unframeable(part))

    def letters_stored(self, part: Part, count: int) -> None:
        """So many dead letters of the part are durable: all of its rows, or else what has none."""
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
