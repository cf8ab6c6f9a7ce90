"""Parts that wait for the ledger: asked for, ours, told apart, put off. Sends nothing; the ledger itself is elsewhere.

What a part could claim goes out at once. What a twin elsewhere holds is set apart as a piece of its own, which holds
nothing while it waits: so nobody waits for one who waits.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from sidecar.core.backoff import Backoff
from sidecar.core.batching import pick
from sidecar.core.claims import DUPLICATE, HELD, Hold, Want, place_of
from sidecar.core.effects import Claim
from sidecar.core.records import Batch, Fragment, Part, TopicPartition

if TYPE_CHECKING:
    from sidecar.core.delivery import Delivery, DeliveryRules

HELD_WAITS = Backoff(100, 2_000)
"""Between two questions for what a twin holds; its end is written within 200 ms of the answer."""
FAILED_WAIT_MS = 500
ASKED_MAX = 8


@dataclass(frozen=True, slots=True)
class _Asking:
    """Parts to be claimed in one transaction: all of a batch, or each to become a batch of its own."""

    parts: Sequence[Part]
    batch: Batch | None = None
    at_ms: float = 0.0


class Claiming:
    """Sees to it that only what is ours is sent.

    Args:
        delivery: Whose batches they are.
        rules: How they are delivered, with `lease_ms`.
        chance: Uniform in [0, 1).
        give_up: Called with a partition that must be read again, and the reason.
    """

    def __init__(
        self,
        delivery: Delivery,
        rules: DeliveryRules,
        chance: Callable[[], float],
        give_up: Callable[[TopicPartition, str], None],
    ) -> None:
        self._d = delivery
        assert rules.lease_ms is not None
        self._lease_ms = rules.lease_ms
        self._numbered = rules.numbered
        self._ordered = rules.ordered
        self._separator = rules.separator
        self._chance = chance
        self._give_up = give_up
        self._asked: dict[int, _Asking] = {}
        self._later: list[tuple[float, int, _Asking]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._asked) + len(self._later)

    @property
    def waiting(self) -> int:
        """Messages whose twin is claimed."""
        askings = [*self._asked.values(), *(asking for _, _, asking in self._later)]
        return sum(part.count for asking in askings if asking.batch is None for part in asking.parts)

    @property
    def held_alone(self) -> bool:
        """Whether parts wait for their twins, and no batch for the ledger."""
        askings = [*self._asked.values(), *(asking for _, _, asking in self._later)]
        return bool(askings) and all(asking.batch is None for asking in askings)

    @property
    def busy(self) -> bool:
        """Whether enough is asked for at present."""
        return len(self._asked) >= ASKED_MAX

    def ours(self, batch: Batch, now_ms: float) -> bool:
        """Whether the batch may be sent now."""
        since_ms = now_ms - self._lease_ms
        return all(part.hold and part.hold.at_ms > since_ms for part in batch.parts)

    def place(self, part: Part) -> int:
        """What owns the part's claims, together with the offset of each."""
        return place_of(part.tp, part.home if self._numbered else "")

    # Asking

    def ask(self, batch: Batch, now_ms: float) -> None:
        """Claim a batch; it becomes ready when it is ours."""
        self._ask(_Asking(batch.parts, batch), now_ms)

    def step(self, now_ms: float) -> None:
        """Ask again for what is due by now: all that was held, and each batch that the ledger failed for."""
        loose: list[Part] = []
        while self._later and self._later[0][0] <= now_ms:
            asking = heapq.heappop(self._later)[2]
            if asking.batch is None:
                loose += asking.parts
            else:
                self._ask(asking, now_ms)
        if loose:
            self._ask(_Asking(loose), now_ms)

    def _ask(self, asking: _Asking, now_ms: float) -> None:
        parts = [part for part in asking.parts if self._d.owner(part)]
        if not parts:
            if asking.batch is not None:
                self._d.done(asking.batch, "released")
            return
        self._number += 1
        self._asked[self._number] = replace(asking, parts=parts, at_ms=now_ms)
        self._d.effects.append(Claim(self._number, [self._want(part) for part in parts]))

    def _want(self, part: Part) -> Want:
        if part.hold is None:
            part.hold = Hold(first=True)
        # What an earlier life did not claim was not sent: under its name the receiver may have others of it already.
        token = self._token() if part.hold.first and part.attempts else part.hold.token
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        keys = b"".join([fragment.keys for fragment in part.fragments])
        renewed = part.hold.at_ms > -inf
        return Want(self.place(part), offsets, keys, token, part.hold.was, self._ordered, renewed)

    def _token(self) -> int:
        return 1 + int(self._chance() * (1 << 53))

    def _put_off(self, asking: _Asking, due_ms: float) -> None:
        self._number += 1
        heapq.heappush(self._later, (due_ms, self._number, asking))

    # Answers

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """The ledger's answer to one `Claim`; None when it gave none."""
        asking = self._asked.pop(number)
        if verdicts is None:
            self._put_off(asking, now_ms + FAILED_WAIT_MS * (1 + self._chance()))
            return
        taken = [self._taken(*pair, asking.at_ms, now_ms) for pair in zip(asking.parts, verdicts, strict=True)]
        parts = [part for part in taken if part is not None]
        if asking.batch is None:
            for part in parts:
                self._d.add([part])
        elif parts:
            self._d.put_back(self._d.shrink(asking.batch, parts))
        else:
            alive = any(map(self._d.owner, asking.parts))
            self._d.done(asking.batch, "duplicate" if alive else "released")

    def _taken(self, part: Part, verdict: Sequence[int], at_ms: float, now_ms: float) -> Part | None:
        """What of the part goes on; what else is to be sent, or to wait, is on its way by itself then."""
        owner, hold = self._d.owner(part), part.hold
        if owner is None:
            return None
        rows: defaultdict[int, set[int]] = defaultdict(set)
        for i, token in enumerate(verdict):
            rows[token].add(i)
        if not hold.first and any(token >= 0 and token != hold.token for token in rows):
            self._give_up(part.tp, "another owner of the partition told its rows apart")
            return None
        hold.first = False
        if hold.was is not None:
            # Only an owner that may still commit sends what it told apart: none that was replaced meanwhile.
            hold.was, part.seal = None, owner.seal()
            self._d.changed.add(part.tp)
        if len(rows) > 1 or hold.token not in rows:
            return self._apart(part, rows, at_ms, now_ms)
        hold.at_ms = at_ms
        return part

    def _apart(self, part: Part, rows: dict[int, set[int]], at_ms: float, now_ms: float) -> Part | None:
        owner, hold = self._d.owner(part), part.hold
        assert owner is not None
        twins = rows.pop(DUPLICATE, set())
        if not rows:
            self._d.finish(part, "duplicate", len(twins))
            return None
        if twins:
            self._d.settled(part, "duplicate", len(twins))
        held = rows.get(HELD)
        tokens = {self._token() if token == HELD else token: chosen for token, chosen in rows.items()}
        pieces = {token: pick(part.fragments, chosen, self._separator) for token, chosen in tokens.items()}
        main = None
        for piece in self._replace(part, pieces):
            if tokens[piece.hold.token] is held:
                piece.hold.tries += 1
                wait_ms = HELD_WAITS.wait_ms(piece.hold.tries, self._chance())
                self._put_off(_Asking([piece]), now_ms + wait_ms)
                continue
            piece.hold.at_ms = at_ms
            if piece.hold.token == hold.token:
                main = piece
            else:
                self._d.add([piece])
        return main

    def _replace(self, part: Part, pieces: dict[int, list[Fragment]]) -> list[Part]:
        owner, hold = self._d.owner(part), part.hold
        assert owner is not None
        parts = owner.separate(part, pieces, hold.token)
        self._d.replaced(part, parts)
        for piece, token in zip(parts, pieces, strict=True):
            piece.hold = Hold(token, fewer=token == hold.token and part.attempts > 0, tries=hold.tries)
        return parts

    def halve(self, part: Part, halves: Sequence[list[Fragment]]) -> None:
        """Put the halves in a refused part's place: in the ledger both at once, before either is sent."""
        was = part.hold.token
        token = self._token()
        parts = self._replace(part, {token + i: half for i, half in enumerate(halves)})
        for half in parts:
            half.hold.was = was
        self._put_off(_Asking(parts), 0.0)
