"""The end of parts: delivered, duplicate, dead-lettered. Knows no batch and no answer."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sidecar.core.batching import UNFRAMEABLE, rows_of
from sidecar.core.claims import ENDS, ClaimState, mark_of, place_of
from sidecar.core.delivery.outbox import Stage
from sidecar.core.delivery.output import Output, Settled
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import StoreDeadLetters
from sidecar.core.partition.partition import Ownerships
from sidecar.core.parts import Memory, Part, held_by
from sidecar.core.records import DeadLetter
from sidecar.core.states import Event, StrayEventError

STORE_RETRY_MS = 1_000
LETTER_BYTES = 300
"""Memory of a dead letter without its row; an estimate."""


class _Storing(NamedTuple):
    part: Part
    letters: list[DeadLetter]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory in addition to the part's."""
        return sum([LETTER_BYTES + len(letter.row or b"") for letter in self.letters])


class DeadLetters:
    """Dead letters that are being stored, and those that wait to be stored again.

    A message counts as dead-lettered once its letter is durable, never before; until then its part is not settled.
    """

    def __init__(self, rules: DeliveryRules) -> None:
        self.held_bytes = 0
        """Bytes of memory that the letters take in addition to their parts."""
        self._rules = rules
        self._storing: dict[int, _Storing] = {}
        self._waiting: dict[int, _Storing] = {}
        """Dead letters that could not be stored and wait for a retry."""
        self._again: list[tuple[float, int]] = []
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._storing) + len(self._waiting)

    def of_rows(self, part: Part, reason: str | Mapping[int, str]) -> StoreDeadLetters:
        """Begin to store all rows of the part, with one reason or a reason per offset."""
        rows = rows_of(part.fragments, self._rules.separator)
        reasons = dict.fromkeys((offset for offset, _ in rows), reason) if isinstance(reason, str) else reason
        return self._store(part, [_letter(part, offset, row, reasons[offset]) for offset, row in rows])

    def of_unframeable(self, part: Part) -> StoreDeadLetters:
        """Begin to store the part's messages that have no row."""
        reasons = part.reasons
        letters = [_letter(part, offset, None, reasons.get(offset, UNFRAMEABLE)) for offset in part.unframeable]
        return self._store(part, letters)

    def _store(self, part: Part, letters: list[DeadLetter]) -> StoreDeadLetters:
        self._last_token += 1
        storing = self._storing[self._last_token] = _Storing(part, letters)
        self.held_bytes += storing.held_bytes
        return StoreDeadLetters(self._last_token, letters)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> tuple[Part, int] | None:
        """The part and the number of its durable messages; None if storing failed or the part is no longer owned.

        Raises:
            StrayEventError: Nothing is being stored under that token.
        """
        storing = self._storing.pop(token, None)
        if storing is None:
            stage = Stage.WAITING if token in self._waiting else Stage.ENDED
            raise StrayEventError(f"dead letters {token}", stage, Event.ANSWERED)
        if not ok:
            self._waiting[token] = storing
            heapq.heappush(self._again, (now_ms + STORE_RETRY_MS, token))
            return None
        self.held_bytes -= storing.held_bytes
        part, letters = storing
        return (part, len(letters)) if part.alive else None

    def due(self, now_ms: float) -> Iterator[StoreDeadLetters]:
        """The dead letters whose retry is due."""
        while self._again and self._again[0][0] <= now_ms:
            token = heapq.heappop(self._again)[1]
            storing = self._waiting.pop(token)
            if storing.part.alive:
                self._storing[token] = storing
                yield StoreDeadLetters(token, storing.letters)
            else:
                self.held_bytes -= storing.held_bytes


def _letter(part: Part, offset: int, row: bytes | None, reason: str) -> DeadLetter:
    # The partition's scope, not the part's: a piece has its own scope, but the message is the same.
    return DeadLetter(part.tp, offset, part.home, part.group, reason, row, tuple(part.history))


class Settlement:
    """Settles each message once, frees its memory, and reports it to the ledger if there is one."""

    def __init__(self, rules: DeliveryRules, owned: Ownerships, memory: Memory, output: Output) -> None:
        self._numbered = rules.numbered
        self._owned = owned
        self._memory = memory
        self.letters = DeadLetters(rules)
        self._output = output

    def finish(self, part: Part, outcome: str, count: int) -> None:
        """Settle the part, whose last `count` messages have this outcome; no effect if it is no longer owned."""
        if part.alive:
            if part.hold is not None and outcome in ENDS:
                self.mark(part, ENDS[outcome])  # before `settle`, which may release the intent's withheld entries
            self._output.outcomes.append(Settled(part.tp, outcome, count))
            self._memory.held_bytes -= held_by(part)
            self._owned[part.tp].outstanding.settle(part)

    def mark(self, part: Part, state: ClaimState, but: Collection[int] = ()) -> None:
        """Report the end of the part's rows, which are claimed, to the ledger, except those whose index is in `but`."""
        mark = mark_of(self.claimant(part), part.fragments, state, but)
        # A twin may take a dead letter: a name that it was sent under with others must not be sent again then.
        alone = part.primary and part.count == 1
        if state is ClaimState.SUCCESS or alone:
            self._owned[part.tp].dues.tell(mark)
        else:
            part.withhold((), mark)

    def claimant(self, part: Part) -> int:
        """The owner of the part's claims, together with the offset of each row."""
        return place_of(part.tp, part.home if self._numbered else "")

    def replace(self, part: Part, pieces: Sequence[Part]) -> None:
        """Replace the part by these pieces, which were sent before as a part of it."""
        for piece in pieces:
            piece.inherit(part)
        self._memory.held_bytes += sum(map(held_by, pieces)) - held_by(part)

    # Dead letters

    def give_up(self, part: Part, reason: str | Mapping[int, str]) -> None:
        """Make all rows of the part dead letters, with one reason or a reason per offset; they count once stored."""
        self._output.effects.append(self.letters.of_rows(part, reason))

    def give_up_unframeable(self, part: Part) -> None:
        """Make the messages without a row dead letters; the part is not sent before they are stored."""
        self._output.effects.append(self.letters.of_unframeable(part))

    def letters_stored(self, part: Part, count: int) -> None:
        """Record that dead letters of the part are durable: those of all its rows, or those of messages without one."""
        if not part.unframeable:
            self.finish(part, "dead_lettered", count)
            return
        before = held_by(part)
        part.drop_unframeable()
        self._memory.held_bytes += held_by(part) - before
        if part.count:
            self._output.outcomes.append(Settled(part.tp, "dead_lettered", count))
        else:
            self.finish(part, "dead_lettered", count)
