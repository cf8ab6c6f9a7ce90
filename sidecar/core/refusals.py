"""What a refusal leads to: halves, pieces, dead letters. Sends nothing and waits for nothing itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.core.batching import halves, pick
from sidecar.core.records import Answer, Batch, FailedRow, Part, Verdict

if TYPE_CHECKING:
    from sidecar.core.delivery import Delivery

PARTIAL_STATUS = 207
WHOLE_ANSWERS_MAX = 10
"""Answers that name every row of a part that once had more, until it is taken for one that the receiver knows."""


class Refusals:
    """Takes apart what was refused.

    Args:
        delivery: Whose batches they are.
        separator: The rows' separator.
    """

    def __init__(self, delivery: Delivery, separator: bytes) -> None:
        self._d = delivery
        self._separator = separator
        self._crowded: list[Batch] = []

    def refused(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """All of the batch was refused for something in it."""
        alive = [part for part in batch.parts if self._d.owner(part)]
        if not alive:
            self._d.done(batch, "released")
        elif len(batch.parts) > 1:  # of those that are alive perhaps none is at fault
            middle = len(alive) // 2
            self._d.put_first([parts for parts in (alive[:middle], alive[middle:]) if parts])
            self._d.done(batch, "split")
        elif batch.count > 1:
            self._halve(batch)
        else:
            self._refused_alone(batch, answer, now_ms)

    def _refused_alone(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        self._d.judge(batch.parts[0], (0,), 0)
        if self._d.guard.tripped:
            self._d.failed(batch, answer, now_ms)
            return
        reason = "too_large" if answer.verdict is Verdict.TOO_LARGE else answer.reason or "rejected"
        self._d.bury_rows(batch.parts[0], reason)
        self._d.done(batch, "dead_lettered")

    def _halve(self, batch: Batch) -> None:
        """Halve a batch of one part, as soon as its partition has room for the halves."""
        part = batch.parts[0]
        owner = self._d.owner(part)
        if owner is None:
            self._d.done(batch, "released")
            return
        pieces = halves(part.fragments, self._separator)
        if not part.primary:
            parts = owner.derive(part, dict(zip(("first half", "second half"), pieces, strict=True)))
        elif self._d.claims is not None:
            self._d.claims.halve(part, pieces)
            self._d.done(batch, "split")
            return
        elif owner.may_split(part):
            parts = owner.split(part, pieces)
            self._d.changed.add(part.tp)
        else:
            self._crowded.append(batch)
            return
        self._d.replaced(part, parts)
        for piece in parts:
            self._d.add([piece])
        self._d.done(batch, "split")

    def step(self) -> None:
        """Try again what found no room: the smallest first, since little room is enough for it."""
        if self._crowded:
            crowded, self._crowded = self._crowded, []
            for batch in sorted(crowded, key=lambda batch: batch.count):
                self._halve(batch)

    def partial(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Some rows failed, the others were taken."""
        failed = {row.index: row for row in answer.failed}
        at = 0
        again: list[Part] = []
        for part in batch.parts:
            mine = {index - at: row for index, row in failed.items() if at <= index < at + part.count}
            at += part.count
            if self._d.owner(part) is None:
                continue
            if not mine:
                self._d.finish(part, "delivered", part.count)
            elif len(mine) < part.count or _remembered(part):
                self._some_failed(part, mine, answer, now_ms)
            elif not self._all_failed(part, mine):
                again.append(part)
        if again:
            self._d.failed(self._d.shrink(batch, again), _retry(answer, answer.failed[0].reason), now_ms)
        else:
            self._d.done(batch, "partial")

    def _all_failed(self, part: Part, failed: dict[int, FailedRow]) -> bool:
        """Nothing was taken, so the receiver may not know the part's name: it ends, or is sent again, as a whole."""
        if any(row.retry for row in failed.values()):
            return False
        self._d.judge(part, failed.keys(), 0)
        if not self._d.guard.tripped:
            self._d.bury_rows(part, _reasons(part, failed))
        return not self._d.guard.tripped

    def _some_failed(self, part: Part, failed: dict[int, FailedRow], answer: Answer, now_ms: float) -> None:
        """The receiver knows the part's name now, and gives the same answer for it: so the pieces' names may follow."""
        taken = part.count - len(failed)
        self._d.mark(part, "delivered", but=failed.keys())
        self._d.settled(part, "delivered", taken)
        again = {index for index, row in failed.items() if row.retry}
        refused = failed.keys() - again
        self._d.judge(part, refused, taken)
        reasons = _reasons(part, failed)
        owner = self._d.owner(part)
        assert owner is not None
        rows = {"again": again, "refused": refused}
        pieces = {why: pick(part.fragments, chosen, self._separator) for why, chosen in rows.items() if chosen}
        parts = owner.derive(part, pieces)
        self._d.replaced(part, parts)
        if refused and not self._d.guard.tripped:
            self._d.bury_rows(parts.pop(), reasons)
        for piece in parts:
            self._d.failed(self._d.begin([piece]), _retry(answer, "207"), now_ms)


def _remembered(part: Part) -> bool:
    """Whether the receiver seems to know a part of which it names every row as failed.

    That is so for ever where what it took of the part was compacted away since, or went to a twin when a claim expired.
    """
    answers = sum(attempt.status == PARTIAL_STATUS for attempt in part.history)
    fewer = part.intent.old or (part.hold is not None and part.hold.fewer)
    return fewer and part.first < part.last and answers >= WHOLE_ANSWERS_MAX


def _retry(answer: Answer, reason: str) -> Answer:
    return replace(answer, verdict=Verdict.RETRY, reason=reason)


def _reasons(part: Part, failed: dict[int, FailedRow]) -> dict[int, str]:
    offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
    return {offsets[index]: row.reason or "rejected" for index, row in failed.items()}
