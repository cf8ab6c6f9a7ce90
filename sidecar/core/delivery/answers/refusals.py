"""Consequences of a refusal: halves, pieces, dead letters. Sends nothing and waits for nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sidecar.core.batching import halves, pick
from sidecar.core.delivery.admission import Admission
from sidecar.core.delivery.answers.receiver import Receiver
from sidecar.core.delivery.answers.retries import Retries
from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.claiming import Claiming
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.output import Halved, Output
from sidecar.core.delivery.parking import Parker
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.stages import Event, Stage
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, FailedRow, Verdict

PARTIAL_STATUS = 207
WHOLE_ANSWERS_MAX = 10
"""Number of answers that list every row of a part as failed, after which a part that once had more rows is assumed to
be known to the receiver."""


class Refusals:
    """Splits refused parts down to the messages at fault.

    Nothing of a refused part was stored, so it may be cut anew. The receiver knows the name of a part that it accepted
    partly, so the names of its pieces follow from that.

    Args:
        settlement: Takes messages that reached their end.
        retries: Takes batches to be sent again.
        claims: Tells the ledger of halves, if there is a ledger.
        parker: Takes the halves of parked parts.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        owned: Ownerships,
        outbox: Outbox,
        admission: Admission,
        settlement: Settlement,
        receiver: Receiver,
        retries: Retries,
        claims: Claiming | None,
        parker: Parker,
        output: Output,
    ) -> None:
        self._rules = rules
        self._owned = owned
        self._outbox = outbox
        self._admission = admission
        self._settlement = settlement
        self._receiver = receiver
        self._retries = retries
        self._claims = claims
        self._parker = parker
        self._output = output

    def refused(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Handle a batch that was refused as a whole for some message in it."""
        alive = batch.alive
        if not alive:
            self._outbox.end(batch, "released")
        elif len(batch.parts) > 1:  # perhaps no live part is at fault
            middle = len(alive) // 2
            self._outbox.put_first([parts for parts in (alive[:middle], alive[middle:]) if parts])
            self._outbox.end(batch, "split")
        elif batch.count > 1:
            self._halve(batch)
        else:
            self._refused_alone(batch, answer, now_ms)

    def _refused_alone(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        self._receiver.judge(batch.parts[0], (0,), 0)
        if self._receiver.refuses:
            self._retries.failed(batch, answer, now_ms)
            return
        reason = "too_large" if answer.verdict is Verdict.TOO_LARGE else answer.reason or "rejected"
        self._settlement.give_up(batch.parts[0], reason)
        self._outbox.end(batch, "dead_lettered")

    def _halve(self, batch: Batch) -> None:
        """Halve a batch of one live part, as soon as its partition has room for the halves."""
        part = batch.parts[0]
        outstanding = self._owned[part.tp].outstanding
        pieces = halves(part.fragments, self._rules.separator)
        if not part.life.primary:  # the whole is sent again after a crash, and is taken apart in the same way
            parts = outstanding.derive(part, dict(zip(("first half", "second half"), pieces, strict=True)))
        elif part.intent.record is not None:
            self._parker.halve(part, pieces)
            self._outbox.end(batch, "split")
            return
        elif self._claims is not None:
            self._claims.halve(part, pieces)
            self._outbox.end(batch, "split")
            return
        elif outstanding.may_split(part):
            parts = outstanding.split(part, pieces)
            self._output.tell(Halved(part.tp, part.group, part.first, part.last))
        else:
            if batch not in self._outbox.batches(Stage.CROWDED):
                self._outbox.move(batch, Event.CROWDED)
            return
        self._settlement.replace(part, parts)
        for piece in parts:
            self._admission.add([piece])
        self._outbox.end(batch, "split")

    def step(self) -> None:
        """Retry halving that found no room: the smallest batch first, since it needs the least."""
        for batch in sorted(self._outbox.batches(Stage.CROWDED), key=lambda batch: batch.count):
            if batch.alive:
                self._halve(batch)
            else:
                self._outbox.end(batch, "released")

    def partial(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Handle an answer by which some rows failed and the others were accepted."""
        failed = {row.index: row for row in answer.failed}
        before = 0
        again: list[Part] = []
        for part in batch.parts:
            # An answer counts rows over the whole batch, including parts that are no longer owned.
            rows = {index - before: row for index, row in failed.items() if before <= index < before + part.count}
            before += part.count
            if not part.life.alive:
                continue
            if not rows:
                self._settlement.finish(part, "delivered", part.count)
            elif len(rows) < part.count or _remembered(part):
                self._some_failed(part, rows, answer, now_ms)
            elif not self._all_failed(part, rows):
                again.append(part)
        if again:
            again_answer = _retry(answer, answer.failed[0].reason)
            self._retries.failed(self._outbox.shrink(batch, again), again_answer, now_ms)
        else:
            self._outbox.end(batch, "partial")

    def _all_failed(self, part: Part, failed: Mapping[int, FailedRow]) -> bool:
        """Handle a part without accepted rows, whose name the receiver may not know: it ends or is retried whole."""
        if any(row.retry for row in failed.values()):
            return False
        self._receiver.judge(part, failed.keys(), 0)
        if not self._receiver.refuses:
            self._settlement.give_up(part, _reasons(part, failed))
        return not self._receiver.refuses

    def _some_failed(self, part: Part, failed: Mapping[int, FailedRow], answer: Answer, now_ms: float) -> None:
        """Derive pieces from a part whose name the receiver knows: it repeats its answer, so their names may follow."""
        taken = part.count - len(failed)
        # Before the part loses rows: the pieces have only the failed rows, with other indices.
        self._settlement.mark(part, "delivered", but=failed.keys())
        self._settlement.settle_some(part, "delivered", taken)
        again = {index for index, row in failed.items() if row.retry}
        refused = failed.keys() - again
        self._receiver.judge(part, refused, taken)
        reasons = _reasons(part, failed)
        rows = {"again": again, "refused": refused}
        pieces = {why: pick(part.fragments, chosen, self._rules.separator) for why, chosen in rows.items() if chosen}
        parts = self._owned[part.tp].outstanding.derive(part, pieces)
        self._settlement.replace(part, parts)
        if refused and not self._receiver.refuses:
            self._settlement.give_up(parts.pop(), reasons)
        for piece in parts:
            self._retries.failed(self._outbox.begin([piece]), _retry(answer, "207"), now_ms)


def _remembered(part: Part) -> bool:
    """Whether the receiver seems to know a part of which it lists every row as failed.

    Such answers are permanent if the accepted rows were since compacted, or went to a twin when a claim expired.
    """
    answers = sum(attempt.status == PARTIAL_STATUS for attempt in part.life.history)
    fewer = part.intent.old or (part.hold is not None and part.hold.fewer)
    return fewer and part.first < part.last and answers >= WHOLE_ANSWERS_MAX


def _retry(answer: Answer, reason: str) -> Answer:
    return replace(answer, verdict=Verdict.RETRY, reason=reason)


def _reasons(part: Part, failed: Mapping[int, FailedRow]) -> dict[int, str]:
    offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
    return {offsets[index]: row.reason or "rejected" for index, row in failed.items()}
