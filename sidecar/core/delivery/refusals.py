"""Consequences of an unsuccessful answer: retries, halves, pieces, dead letters, doubts. Sends nothing itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.core.batching import halves, pick
from sidecar.core.claims import ClaimState
from sidecar.core.delivery.outbox import Outbox, Stage
from sidecar.core.delivery.output import Changed, Halved, Output, Settled
from sidecar.core.delivery.parking import Parker
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.settlement import Settlement
from sidecar.core.partition.partition import Ownerships
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, FailedRow, TopicPartition, Verdict, group_label
from sidecar.core.states import Event

if TYPE_CHECKING:
    from sidecar.core.delivery.claiming import Claiming

REFUSED_WINDOW = 1_000
REFUSED_MAX = 100
MessageOffset = tuple[TopicPartition, int]
"""Partition and offset of a message."""


class Receiver:
    """State of the receiver. While it is doubted, nothing is read, and nothing is dead-lettered.

    It *refuses* if more than a tenth of the last 1,000 messages were refused. Refused messages are retried then, and
    each counts by its last answer, until nine tenths of the messages answered since then were accepted.
    """

    def __init__(self) -> None:
        self.halted = ""
        """Why the sink refuses every request, without a message at fault; empty once it has evaluated one."""
        self.refuses = False
        """Whether recent refusals are too many to be caused by messages."""
        self._window: deque[tuple[bool, int]] = deque()
        self._total = 0
        self._refused = 0
        self._doubted: set[MessageOffset] = set()
        self._taken = 0

    @property
    def doubted(self) -> bool:
        """Whether requests or messages are refused for the receiver's own fault."""
        return bool(self.halted) or self.refuses

    def judge(self, part: Part, refused: Collection[int], taken: int) -> None:
        """Count rows of a part that were permanently refused, and `taken` others that were accepted."""
        offsets: list[int] = []
        if refused or self.refuses:
            offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        for index in refused:
            self.count_refused((part.tp, offsets[index]))
        if taken:
            self.count_taken(taken, ((part.tp, offset) for i, offset in enumerate(offsets) if i not in refused))

    def recall(self, tp: TopicPartition, taken: int, refused: int) -> None:
        """Add answers of an earlier process, whose messages are unknown."""
        self.count_taken(taken, ())
        for _ in range(refused):
            self.count_refused((tp, -1))

    def trust(self) -> None:
        """Reset the state: no batch is left that could test the receiver, so the next one has to."""
        if self.doubted:
            self.halted, self.refuses = "", False
            self._total = self._refused = self._taken = 0
            self._window.clear()
            self._doubted.clear()

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the messages of a partition that is no longer owned."""
        self._doubted = {place for place in self._doubted if place[0] != tp}

    def count_taken(self, count: int, places: Iterable[MessageOffset]) -> None:
        """Count delivered messages.

        Args:
            places: The messages; iterated only while the receiver refuses.
        """
        if not self.refuses:
            self._add(refused=False, count=count)
            return
        self._doubted.difference_update(places)
        self._taken += count
        if self._taken >= 9 * len(self._doubted):
            self.refuses = False
            self._doubted.clear()

    def count_refused(self, place: MessageOffset) -> None:
        """Count one message that was refused permanently."""
        if self.refuses:
            self._doubted.add(place)
            return
        self._add(refused=True, count=1)
        if self._refused > REFUSED_MAX:
            self.refuses = True
            self._doubted.add(place)
            self._window.clear()
            self._total = self._refused = self._taken = 0

    def _add(self, *, refused: bool, count: int) -> None:
        self._window.append((refused, count))
        self._total += count
        self._refused += count * refused
        while self._total - self._window[0][1] >= REFUSED_WINDOW:
            was_refused, gone = self._window.popleft()
            self._total -= gone
            self._refused -= gone * was_refused


PARTIAL_STATUS = 207
WHOLE_ANSWERS_MAX = 10
"""Number of answers that list every row of a part as failed, after which a part that once had more rows is assumed to
be known to the receiver."""


class Refusals:
    """Retries failed batches, and splits refused parts down to the messages at fault.

    The wait before a retry grows each time. Failures that no message causes use up no tries, and nothing is given up
    while the receiver is doubted.

    The receiver stored no row of a refused part, so the part may be cut again. It knows the name of a part that it
    accepted partly, so the names of the pieces follow from that.

    Args:
        jitter: Uniform in [0, 1).
        settlement: Takes messages that reached their end.
        claims: Reports halves to the ledger, if there is a ledger.
        parker: Takes the halves of parked parts.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        jitter: Callable[[], float],
        owned: Ownerships,
        outbox: Outbox,
        settlement: Settlement,
        receiver: Receiver,
        claims: Claiming | None,
        parker: Parker,
        output: Output,
    ) -> None:
        self._rules = rules
        self._jitter = jitter
        self._owned = owned
        self._outbox = outbox
        self._settlement = settlement
        self._receiver = receiver
        self._claims = claims
        self._parker = parker
        self._output = output

    def answered(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Handle any answer but `Verdict.ACK`, which only ends the failures of receiver and group."""
        if answer.verdict is not Verdict.HALT:
            self._receiver.halted = ""
        if answer.verdict.is_retry or answer.verdict is Verdict.HALT:
            self._failed(batch, answer, now_ms)
            return
        groups, name = self._outbox.groups, batch.group
        since_ms, attempts = groups.recovered(name), groups[name].attempts
        if since_ms is not None:
            seconds = round((now_ms - since_ms) / 1000, 3)
            self._output.report("group.recovered", group=group_label(name), attempts=attempts, seconds=seconds)
        if answer.verdict is Verdict.PARTIAL:
            self._partial(batch, answer, now_ms)
        elif answer.verdict is not Verdict.ACK:
            self._refuse(batch, answer, now_ms)

    # Retries

    def _failed(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Schedule the batch to be sent again, or give it up."""
        if answer.verdict is Verdict.HALT:
            self._receiver.halted = answer.reason or "no reason given"
        alive = batch.alive
        if not alive:
            self._outbox.end_batch(batch, "released")
            return
        batch = self._outbox.shrink(batch, alive)
        failing_ms = batch.failing_ms(now_ms)
        attempts = max(part.attempts for part in alive)
        # A sink that refuses every request does not judge messages: such failures use up none of their tries.
        gives_up = not self._receiver.refuses and self._rules.gives_up_after(attempts, failing_ms)
        if gives_up and answer.verdict is not Verdict.HALT:
            for part in alive:
                self._settlement.give_up(part, answer.reason or "retries exhausted")
            self._outbox.end_batch(batch, "dead_lettered")
            return
        for part in alive:  # so that a crash loop gives up as one process does
            part.remember_tries(round(failing_ms) // 1000)
            if self._rules.gives_up:
                self._output.outcomes.append(Changed(part.tp))
        self._put_off(batch, answer, attempts, now_ms)

    def _put_off(self, batch: Batch, answer: Answer, attempts: int, now_ms: float) -> None:
        begins = not self._outbox.groups.failing(batch.group)
        group = self._outbox.groups.failed(batch.group, now_ms)
        group.reason, group.attempts = answer.reason, attempts
        wait_ms = self._rules.backoff.wait_ms(attempts, self._jitter(), answer.retry_after_ms)
        group.next_try_ms = now_ms + wait_ms
        self._outbox.retry(batch, group.next_try_ms)
        label = group_label(batch.group)
        if begins:
            self._output.report("group.failed", "warning", group=label, reason=answer.reason, status=answer.status)
        self._output.report(
            "batch.retried", "debug", group=label, reason=answer.reason, status=answer.status, attempts=attempts,
            wait_ms=round(wait_ms), messages=batch.count,
        )  # fmt: skip

    # Refused batches

    def _refuse(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Handle a batch that was refused as a whole for some message in it."""
        if not batch.alive:
            self._outbox.end_batch(batch, "released")
        elif batch.count > 1:
            self.divide(batch)
        else:
            self._refused_alone(batch, answer, now_ms)

    def may_divide(self, batch: Batch) -> bool:
        """Whether the batch may be divided without an answer: no name that it carries is lost, or was ever sent."""
        return len(batch.parts) > 1 or (batch.parts[0].unsent and self._claims is None)

    def divide(self, batch: Batch) -> None:
        """Divide a batch of several rows, between its parts or, of a single part, as `halve` does."""
        if len(batch.parts) == 1:
            self.halve(batch)
            return
        alive = batch.alive  # perhaps no live part is at fault
        middle = len(alive) // 2
        self._outbox.put_first([parts for parts in (alive[:middle], alive[middle:]) if parts])
        self._outbox.end_batch(batch, "split")

    def _refused_alone(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        self._receiver.judge(batch.parts[0], (0,), 0)
        if self._receiver.refuses:
            self._failed(batch, answer, now_ms)
            return
        reason = "too_large" if answer.verdict is Verdict.TOO_LARGE else answer.reason or "rejected"
        self._settlement.give_up(batch.parts[0], reason)
        self._outbox.end_batch(batch, "dead_lettered")

    def halve(self, batch: Batch) -> None:
        """Halve a refused batch of one part, as soon as its partition has room for the halves; call it again if not."""
        part = batch.parts[0]
        if not part.alive:
            self._outbox.end_batch(batch, "released")
            return
        outstanding = self._owned[part.tp].outstanding
        pieces = halves(part.fragments, self._rules.separator)
        if not part.primary:  # the whole is sent again after a crash, and is taken apart in the same way
            parts = outstanding.derive(part, dict(zip(("first half", "second half"), pieces, strict=True)))
        elif part.intent.record is not None:
            self._parker.halve(part, pieces)
            self._outbox.end_batch(batch, "split")
            return
        elif self._claims is not None:
            self._claims.halve(part, pieces)
            self._outbox.end_batch(batch, "split")
            return
        elif parts := outstanding.split(part, pieces):
            self._output.outcomes.append(Halved(part.tp, part.group, part.first, part.last))
        else:
            if batch not in self._outbox.batches(Stage.CROWDED):
                self._outbox.move(batch, Event.CROWDED)
            return
        self._settlement.replace(part, parts)
        for piece in parts:
            self._outbox.admit([piece])
        self._outbox.end_batch(batch, "split")

    def _partial(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Handle an answer by which some rows failed and the others were accepted."""
        failed = {row.index: row for row in answer.failed}
        before = 0
        again: list[Part] = []
        for part in batch.parts:
            # An answer counts rows over the whole batch, including parts that are no longer owned.
            rows = {index - before: row for index, row in failed.items() if before <= index < before + part.count}
            before += part.count
            if not part.alive:
                continue
            if not rows:
                self._settlement.finish(part, "delivered", part.count)
            elif len(rows) < part.count or _remembered(part):
                self._some_failed(part, rows, answer, now_ms)
            elif not self._all_failed(part, rows):
                again.append(part)
        if again:
            again_answer = _retry(answer, answer.failed[0].reason)
            self._failed(self._outbox.shrink(batch, again), again_answer, now_ms)
        else:
            self._outbox.end_batch(batch, "partial")

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
        if part.hold is not None:
            self._settlement.mark(part, ClaimState.SUCCESS, but=failed.keys())
        self._output.outcomes.append(Settled(part.tp, "delivered", taken))
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
            self._failed(self._outbox.begin_batch([piece]), _retry(answer, "207"), now_ms)


def _remembered(part: Part) -> bool:
    """Whether the receiver seems to know a part of which it lists every row as failed.

    Such answers are permanent if the accepted rows were since compacted, or went to a twin when a claim expired.
    """
    answers = sum(attempt.status == PARTIAL_STATUS for attempt in part.history)
    fewer = part.intent.old or (part.hold is not None and part.hold.fewer)
    return fewer and part.first < part.last and answers >= WHOLE_ANSWERS_MAX


def _retry(answer: Answer, reason: str) -> Answer:
    return replace(answer, verdict=Verdict.FAILED, reason=reason)


def _reasons(part: Part, failed: Mapping[int, FailedRow]) -> dict[int, str]:
    offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
    return {offsets[index]: row.reason or "rejected" for index, row in failed.items()}
