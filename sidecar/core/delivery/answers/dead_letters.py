"""Dead letters that are being stored. Knows no batch and no retry of sends."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sidecar.core.batching import UNFRAMEABLE, rows_of
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.stages import Event, Stage, StrayEventError
from sidecar.core.effects import StoreDeadLetters
from sidecar.core.parts import Part
from sidecar.core.records import DeadLetter

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
        return (part, len(letters)) if part.life.alive else None

    def due(self, now_ms: float) -> Iterator[StoreDeadLetters]:
        """The dead letters whose retry is due."""
        while self._again and self._again[0][0] <= now_ms:
            token = heapq.heappop(self._again)[1]
            storing = self._waiting.pop(token)
            if storing.part.life.alive:
                self._storing[token] = storing
                yield StoreDeadLetters(token, storing.letters)
            else:
                self.held_bytes -= storing.held_bytes


def _letter(part: Part, offset: int, row: bytes | None, reason: str) -> DeadLetter:
    # The partition's scope, not the part's: a piece has its own scope, but the message is the same.
    return DeadLetter(part.tp, offset, part.home, part.group, reason, row, tuple(part.life.history))
