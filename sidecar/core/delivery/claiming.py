"""Parts that wait for the ledger: requested, claimed, split, put off. Sends nothing; the ledger itself is elsewhere.

The rows that a part could claim go out at once. Rows that a twin elsewhere holds become a separate piece, which holds
no claim while it waits, so no wait cycle can form.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from sidecar.core.backoff import Backoff
from sidecar.core.batching import pick
from sidecar.core.claims import DUPLICATE, HELD, Want
from sidecar.core.delivery.outbox import Outbox, Stage
from sidecar.core.delivery.output import Carried, Changed, GivenUp, Output, Settled
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.settlement import Settlement
from sidecar.core.effects import Claim
from sidecar.core.partition.partition import Ownerships
from sidecar.core.parts import Batch, Part, PartClaim
from sidecar.core.records import Fragment
from sidecar.core.states import Event, StrayEventError

ASKED_MAX = 8


@dataclass(frozen=True, slots=True)
class _Asking:
    """Parts to be claimed in one transaction: all of a batch, or each to become its own batch."""

    parts: Sequence[Part]
    batch: Batch | None = None
    at_ms: float = 0.0
    """Time of the request, monotonic."""


class _Askings:
    """Claims that are outstanding, and claims that wait; each is in one of the two, and none is lost between them."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asking] = {}
        self._later: list[tuple[float, int, _Asking]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._asked) + len(self._later)

    def __iter__(self) -> Iterator[_Asking]:
        yield from self._asked.values()
        yield from (asking for _, _, asking in self._later)

    @property
    def waiting(self) -> int:
        """Number of messages whose twin is claimed."""
        return sum(part.count for asking in self if asking.batch is None for part in asking.parts)

    @property
    def held_alone(self) -> bool:
        """Whether parts wait for their twins, and no batch waits for the ledger."""
        return bool(len(self)) and all(asking.batch is None for asking in self)

    @property
    def busy(self) -> bool:
        """Whether the maximum number of claims is outstanding."""
        return len(self._asked) >= ASKED_MAX

    def begin_claim(self, asking: _Asking) -> int:
        """Add an outstanding claim; return the number that its answer will have."""
        self._number += 1
        self._asked[self._number] = asking
        return self._number

    def end_claim(self, number: int) -> _Asking:
        """Remove and return a claim that the ledger answered.

        Raises:
            StrayEventError: No claim has this number, or it was answered before.
        """
        if number not in self._asked:
            raise StrayEventError(f"claim {number}", Stage.ENDED, Event.CLAIMED)
        return self._asked.pop(number)

    def put_off(self, asking: _Asking, due_ms: float) -> None:
        """Put off a claim until `due_ms`."""
        self._number += 1
        heapq.heappush(self._later, (due_ms, self._number, asking))

    def take_due(self, now_ms: float) -> Iterator[_Asking]:
        """Remove and return the claims that are due by now."""
        while self._later and self._later[0][0] <= now_ms:
            yield heapq.heappop(self._later)[2]


HELD_WAITS = Backoff(100, 2_000)
"""Wait between two requests for rows that a twin holds; the twin's end is written within 200 ms of the answer."""
FAILED_WAIT_MS = 500


class Claiming:
    """Ensures that only claimed rows are sent.

    A name is only ever sent with the rows that one claim gave it. Rows that are claimed later, or a loss to a twin,
    make another name.

    Args:
        rules: Rules of delivery, with `lease_ms`.
        chance: Uniform in [0, 1).
        output: Gets claims, and partitions that must be read again.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        chance: Callable[[], float],
        owned: Ownerships,
        outbox: Outbox,
        settlement: Settlement,
        output: Output,
    ) -> None:
        self._rules = rules
        self._chance = chance
        self._owned = owned
        self._outbox = outbox
        self._settlement = settlement
        self._output = output
        self.askings = _Askings()
        """Claims that are outstanding or put off."""

    def ours(self, batch: Batch, now_ms: float) -> bool:
        """Whether the batch may be sent now: after its lease another owner may have it, so it is claimed again."""
        since_ms = now_ms - (self._rules.lease_ms or 0)
        return all(part.hold is not None and part.hold.at_ms > since_ms for part in batch.parts)

    # Asking

    def ask(self, batch: Batch, now_ms: float) -> None:
        """Claim a batch; it becomes ready once all its rows are owned."""
        self._ask(_Asking(batch.parts, batch), now_ms)

    def step(self, now_ms: float) -> None:
        """Ask again for claims that are due: all held pieces, and each batch for which the ledger failed."""
        loose: list[Part] = []
        for asking in self.askings.take_due(now_ms):
            if asking.batch is None:
                loose += asking.parts
            else:
                self._ask(asking, now_ms)
        if loose:
            self._ask(_Asking(loose), now_ms)

    def _ask(self, asking: _Asking, now_ms: float) -> None:
        parts = [part for part in asking.parts if part.alive]
        if asking.batch is not None:
            if not parts:
                self._outbox.end_batch(asking.batch, "released")
                return
            self._outbox.move(asking.batch, Event.ASKED)
        if parts:
            number = self.askings.begin_claim(replace(asking, parts=parts, at_ms=now_ms))
            self._output.effects.append(Claim(number, [self._want(part) for part in parts]))

    def _want(self, part: Part) -> Want:
        hold = part.claim()
        # Rows that an earlier life did not claim were not sent: the receiver may have others under the name already.
        token = self._token() if hold.first and part.attempts else hold.token
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        keys = b"".join([fragment.keys for fragment in part.fragments])
        renewed = hold.at_ms > -inf
        return Want(self._settlement.claimant(part), offsets, keys, token, hold.was, self._rules.ordered, renewed)

    def _token(self) -> int:
        return 1 + int(self._chance() * (1 << 53))

    # Answers

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """Handle the ledger's answer to one `Claim`; None if it gave none.

        Raises:
            StrayEventError: No such claim was asked for, or it was answered before.
        """
        asking = self.askings.end_claim(number)
        if verdicts is None:
            if asking.batch is not None:
                self._outbox.move(asking.batch, Event.UNANSWERED)
            self.askings.put_off(asking, now_ms + FAILED_WAIT_MS * (1 + self._chance()))
            return
        answered = [(part, part.hold, rows) for part, rows in zip(asking.parts, verdicts, strict=True)]
        alive = [(part, hold, rows) for part, hold, rows in answered if part.alive and hold is not None]
        # Another owner split these rows in another way: parts sent now would have names that the receiver may have seen
        # with other rows.
        lost = set()
        if not self._rules.copied:
            lost = {part.tp for part, hold, rows in alive if _told_apart_elsewhere(hold, rows)}
        for tp in lost:
            self._output.outcomes.append(GivenUp(tp, "another owner of the partition told its rows apart"))
        ours = [piece for piece in alive if piece[0].tp not in lost]
        taken = [self._taken(*piece, asking.at_ms, now_ms) for piece in ours]
        parts = [part for part in taken if part is not None]
        if asking.batch is None:
            for part in parts:
                self._outbox.admit([part])
        elif parts:
            self._outbox.move(self._outbox.shrink(asking.batch, parts), Event.CLAIMED, first=True)
        else:
            self._outbox.end_batch(asking.batch, "duplicate" if ours else "released")

    def _taken(self, part: Part, hold: PartClaim, verdict: Sequence[int], at_ms: float, now_ms: float) -> Part | None:
        """Return the remaining part; pieces are queued separately."""
        rows: defaultdict[int, set[int]] = defaultdict(set)
        for i, token in enumerate(verdict):
            rows[token].add(i)
        barrier = None
        if hold.was is not None:
            # Only an owner that may still commit sends halves, none that was replaced meanwhile.
            barrier = self._owned[part.tp].dues.barrier()
            self._output.outcomes.append(Changed(part.tp))
        hold.answered(barrier)
        if len(rows) > 1 or hold.token not in rows:
            return self._apart(part, hold, rows, at_ms, now_ms)
        hold.own(at_ms)
        return part

    def _apart(
        self, part: Part, hold: PartClaim, rows: dict[int, set[int]], at_ms: float, now_ms: float
    ) -> Part | None:
        twins = rows.pop(DUPLICATE, set())
        if self._rules.copied and (held := rows.pop(HELD, None)):
            self._carry(part, pick(part.fragments, held, self._rules.separator))
        if not rows:
            self._settlement.finish(part, "duplicate", len(twins))
            return None
        if twins:
            self._output.outcomes.append(Settled(part.tp, "duplicate", len(twins)))
        # Held rows get their own token, and so a name: this name goes out without them now, and always will.
        tokens = {self._token() if token == HELD else token: chosen for token, chosen in rows.items()}
        pieces = {token: pick(part.fragments, chosen, self._rules.separator) for token, chosen in tokens.items()}
        main = None
        for piece, own in self._replace(part, hold.token, pieces):
            if tokens[own.token] is rows.get(HELD):
                wait_ms = HELD_WAITS.wait_ms(own.fail(), self._chance())
                self.askings.put_off(_Asking([piece]), now_ms + wait_ms)
                continue
            own.own(at_ms)
            if own.token == hold.token:
                main = piece
            else:
                self._outbox.admit([piece])
        return main

    def _carry(self, part: Part, held: Sequence[Fragment]) -> None:
        offsets = [offset for fragment in held for offset in fragment.offsets]
        keys = b"".join([fragment.keys for fragment in held])
        self._output.outcomes.append(Carried(part.tp, part.group, part.first, part.last, offsets, keys))

    def _replace(
        self, part: Part, token: int, pieces: Mapping[int, list[Fragment]], was: int | None = None
    ) -> list[tuple[Part, PartClaim]]:
        parts = self._owned[part.tp].outstanding.separate(part, pieces, token)
        self._settlement.replace(part, parts)
        return [(piece, piece.claim_apart(part, own, was)) for piece, own in zip(parts, pieces, strict=True)]

    def halve(self, part: Part, halves: Sequence[list[Fragment]]) -> None:
        """Replace a refused part that was claimed by its halves.

        The ledger gets both at once, before either is sent: after a crash it alone knows them.
        """
        token, was = self._token(), part.claim().token
        pieces = self._replace(part, was, {token + i: half for i, half in enumerate(halves)}, was)
        self.askings.put_off(_Asking([piece for piece, _ in pieces]), 0.0)


def _told_apart_elsewhere(hold: PartClaim, verdict: Sequence[int]) -> bool:
    """Whether rows have another token than requested, although this process had requested them before."""
    return not hold.first and any(token >= 0 and token != hold.token for token in verdict)
