"""Parts that wait for the ledger: asked for, ours, told apart, put off. Sends nothing; the ledger itself is elsewhere.

What a part could claim goes out at once. What a twin elsewhere holds is set apart as a piece of its own, which holds
nothing while it waits: so nobody waits for one who waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from sidecar.core.backoff import Backoff
from sidecar.core.batching import pick
from sidecar.core.claims import DUPLICATE, HELD, Want
from sidecar.core.delivery.admission import Admission
from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.askings import Asking, Askings
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.output import Changed, GivenUp, Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.stages import Event
from sidecar.core.effects import Claim
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.parts import Batch, Hold, Part
from sidecar.core.records import Fragment

HELD_WAITS = Backoff(100, 2_000)
"""Between two questions for what a twin holds; its end is written within 200 ms of the answer."""
FAILED_WAIT_MS = 500


class _Piece(NamedTuple):
    part: Part
    hold: Hold


class Claiming:
    """Sees to it that only what is ours is sent.

    A name goes out with the rows that one claim gave it, and with no others ever: what is claimed later, or lost to a
    twin meanwhile, makes another name.

    Args:
        rules: How batches are delivered, with `lease_ms`.
        chance: Uniform in [0, 1).
        owned: The partitions that are ours.
        outbox: Has the batches.
        admission: Takes new ones.
        settlement: Takes duplicates.
        output: Hears of claims, and of partitions that must be read again.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        chance: Callable[[], float],
        owned: Ownerships,
        outbox: Outbox,
        admission: Admission,
        settlement: Settlement,
        output: Output,
    ) -> None:
        self._rules = rules
        self._chance = chance
        self._owned = owned
        self._outbox = outbox
        self._admission = admission
        self._settlement = settlement
        self._output = output
        self.askings = Askings()
        """What is asked for, or is to be asked for later."""

    def ours(self, batch: Batch, now_ms: float) -> bool:
        """Whether the batch may be sent now: after its lease another may have it, so it is claimed anew."""
        since_ms = now_ms - (self._rules.lease_ms or 0)
        return all(part.hold is not None and part.hold.at_ms > since_ms for part in batch.parts)

    # Asking

    def ask(self, batch: Batch, now_ms: float) -> None:
        """Claim a batch; it becomes ready when it is ours."""
        self._ask(Asking(batch.parts, batch), now_ms)

    def step(self, now_ms: float) -> None:
        """Ask again for what is due by now: all that was held, and each batch that the ledger failed for."""
        loose: list[Part] = []
        for asking in self.askings.take_due(now_ms):
            if asking.batch is None:
                loose += asking.parts
            else:
                self._ask(asking, now_ms)
        if loose:
            self._ask(Asking(loose), now_ms)

    def _ask(self, asking: Asking, now_ms: float) -> None:
        parts = [part for part in asking.parts if part.life.alive]
        if asking.batch is not None:
            if not parts:
                self._outbox.end(asking.batch, "released")
                return
            self._outbox.move(asking.batch, Event.ASKED)
        if parts:
            number = self.askings.begin(replace(asking, parts=parts, at_ms=now_ms))
            self._output.ask(Claim(number, [self._want(part) for part in parts]))

    def _want(self, part: Part) -> Want:
        if part.hold is None:
            part.hold = Hold(first=True)
        hold = part.hold
        # What an earlier life did not claim was not sent: under its name the receiver may have others of it already.
        token = self._token() if hold.first and part.life.attempts else hold.token
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        keys = b"".join([fragment.keys for fragment in part.fragments])
        renewed = hold.at_ms > -inf
        return Want(self._settlement.claimant(part), offsets, keys, token, hold.was, self._rules.ordered, renewed)

    def _token(self) -> int:
        return 1 + int(self._chance() * (1 << 53))

    # Answers

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """The ledger's answer to one `Claim`; None when it gave none.

        Raises:
            StrayEventError: No such claim was asked for, or it was answered before.
        """
        asking = self.askings.end(number)
        if verdicts is None:
            if asking.batch is not None:
                self._outbox.move(asking.batch, Event.UNANSWERED)
            self.askings.put_off(asking, now_ms + FAILED_WAIT_MS * (1 + self._chance()))
            return
        answered = [(part, part.hold, rows) for part, rows in zip(asking.parts, verdicts, strict=True)]
        alive = [(part, hold, rows) for part, hold, rows in answered if part.life.alive and hold is not None]
        # Another owner told rows of these apart otherwise than we did: what we sent of them now would bear a name that
        # the receiver may have seen with other rows.
        lost = {part.tp for part, hold, rows in alive if _told_apart_elsewhere(hold, rows)}
        for tp in lost:
            self._output.tell(GivenUp(tp, "another owner of the partition told its rows apart"))
        ours = [piece for piece in alive if piece[0].tp not in lost]
        taken = [self._taken(*piece, asking.at_ms, now_ms) for piece in ours]
        parts = [part for part in taken if part is not None]
        if asking.batch is None:
            for part in parts:
                self._admission.add([part])
        elif parts:
            self._outbox.move(self._outbox.shrink(asking.batch, parts), Event.CLAIMED, first=True)
        else:
            self._outbox.end(asking.batch, "duplicate" if ours else "released")

    def _taken(self, part: Part, hold: Hold, verdict: Sequence[int], at_ms: float, now_ms: float) -> Part | None:
        """What of the part goes on; what else is to be sent, or to wait, is on its way by itself then."""
        rows: defaultdict[int, set[int]] = defaultdict(set)
        for i, token in enumerate(verdict):
            rows[token].add(i)
        hold.first = False
        if hold.was is not None:
            # Only an owner that may still commit sends what it told apart: none that was replaced meanwhile.
            hold.was, hold.barrier = None, self._owned[part.tp].dues.barrier()
            self._output.tell(Changed(part.tp))
        if len(rows) > 1 or hold.token not in rows:
            return self._apart(part, hold, rows, at_ms, now_ms)
        hold.at_ms = at_ms
        return part

    def _apart(self, part: Part, hold: Hold, rows: dict[int, set[int]], at_ms: float, now_ms: float) -> Part | None:
        twins = rows.pop(DUPLICATE, set())
        if not rows:
            self._settlement.finish(part, "duplicate", len(twins))
            return None
        if twins:
            self._settlement.settle_some(part, "duplicate", len(twins))
        # What is held gets a token, and so a name, of its own: this name goes out without it now, and so ever after.
        tokens = {self._token() if token == HELD else token: chosen for token, chosen in rows.items()}
        pieces = {token: pick(part.fragments, chosen, self._rules.separator) for token, chosen in tokens.items()}
        main = None
        for piece in self._replace(part, hold, pieces):
            own = piece.hold
            if tokens[own.token] is rows.get(HELD):
                own.tries += 1
                self.askings.put_off(Asking([piece.part]), now_ms + HELD_WAITS.wait_ms(own.tries, self._chance()))
                continue
            own.at_ms = at_ms
            if own.token == hold.token:
                main = piece.part
            else:
                self._admission.add([piece.part])
        return main

    def _replace(self, part: Part, hold: Hold, pieces: Mapping[int, list[Fragment]]) -> list[_Piece]:
        parts = self._owned[part.tp].outstanding.separate(part, pieces, hold.token)
        self._settlement.replace(part, parts)
        pieces_made = []
        for piece, token in zip(parts, pieces, strict=True):
            fewer = token == hold.token and part.life.attempts > 0
            piece.hold = Hold(token, fewer=fewer, tries=hold.tries, barrier=hold.barrier)
            pieces_made.append(_Piece(piece, piece.hold))
        return pieces_made

    def halve(self, part: Part, halves: Sequence[list[Fragment]]) -> None:
        """Put the halves in the place of a refused part that was claimed.

        The ledger learns of both at once, before either is sent: after a crash nobody else would know them.
        """
        assert part.hold is not None
        token = self._token()
        pieces = self._replace(part, part.hold, {token + i: half for i, half in enumerate(halves)})
        for piece in pieces:
            piece.hold.was = part.hold.token
        self.askings.put_off(Asking([piece.part for piece in pieces]), 0.0)


def _told_apart_elsewhere(hold: Hold, verdict: Sequence[int]) -> bool:
    """Whether rows are ours under another token than we asked for, though they were asked for before in this life."""
    return not hold.first and any(token >= 0 and token != hold.token for token in verdict)
