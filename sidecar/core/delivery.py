"""What becomes of a batch: ready, sending, waiting for its next try, split, done. Cuts nothing and reads nothing."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from sidecar.core.backoff import Backoff, RefusalGuard
from sidecar.core.batching import halves, held_bytes, pick, rows_of
from sidecar.core.books import Tally
from sidecar.core.effects import Effect, Report, Send, Store
from sidecar.core.progress import Partition
from sidecar.core.records import (
    Answer,
    Attempt,
    Batch,
    DeadLetter,
    FailedRow,
    Fragment,
    Part,
    TopicPartition,
    Verdict,
    group_label,
)

HISTORY_MAX = 20
STORE_RETRY_MS = 1_000


@dataclass(slots=True)
class GroupState:
    """How a group's deliveries go."""

    name: str
    outstanding: int = 0
    """Batches cut and not done."""
    sending: int = 0
    failing_since_ms: float | None = None
    reason: str = ""
    attempts: int = 0
    next_try_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How batches are delivered.

    Args:
        backoff: Waits between tries.
        concurrency: Sends at once.
        ordered: Whether a group's parts of one partition go one after the other.
        give_up_attempts: Failed sends after which a batch is dead-lettered; None for never.
        give_up_ms: Time since the first failed send after which it is; None for never.
        separator: The rows' separator.
    """

    backoff: Backoff
    concurrency: int
    ordered: bool
    separator: bytes
    give_up_attempts: int | None = None
    give_up_ms: int | None = None


@dataclass(slots=True)
class _Burial:
    """Dead letters on their way to the store, and the part that waits for them."""

    letters: list[DeadLetter]
    part: Part
    rows: bool
    """Whether they are the part's rows; else its unframeable messages."""


class Delivery:
    """Owns all batches from cut to end.

    Args:
        rules: How batches are delivered.
        owner: Gives the live partition of a part, None when it was taken away since.
        settled: Called with a live part, an outcome and how many of its messages have it now.
        jitter: Uniform in [0, 1).
    """

    def __init__(
        self,
        rules: DeliveryRules,
        owner: Callable[[Part], Partition | None],
        settled: Callable[[Part, str, int], None],
        jitter: Callable[[], float],
    ) -> None:
        self._rules = rules
        self._owner = owner
        self._settled = settled
        self._jitter = jitter
        self.groups: dict[str, GroupState] = {}
        self.fenced: set[TopicPartition] = set()
        """Partitions that are about to be taken away: nothing of them is sent any more."""
        self.guard = RefusalGuard()
        self.halted = ""
        """Why nothing is read: the sink refuses what no message is at fault for."""
        self.held_bytes = 0
        self.healthy = 0
        """Batches outstanding in groups that do not fail."""
        self.sends = Tally()
        self.batches = Tally()
        self.effects: list[Effect] = []
        self._sealing: list[Batch] = []
        self._ready: deque[Batch] = deque()
        self._sending: dict[int, Batch] = {}
        self._waiting: list[tuple[float, int, Batch]] = []
        self._first_failed_ms: dict[int, float] = {}
        self._burials: dict[int, _Burial] = {}
        self._unstored: list[tuple[float, int]] = []
        self._next_id = 0

    # Taking over

    def add(self, parts: list[Part]) -> None:
        """A new batch of these parts, which wait for their intents to be durable."""
        for part in parts:
            odd = part.unframeable
            part.waits = bool(part.count) + bool(odd)
            if odd:
                self._bury(part, [self._letter(part, offset, None, "unframeable") for offset in odd], rows=False)
        rows = [part for part in parts if part.count]
        if rows:
            self._sealing.append(self._batch(rows))
            self.unseal()

    def _batch(self, parts: list[Part]) -> Batch:
        batch = Batch(self._id(), parts[0].group, parts)
        self._count(self.group(batch.group), 1)
        return batch

    def group(self, name: str) -> GroupState:
        """The state of a group, begun when it has none."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = GroupState(name)
        return found

    def unseal(self) -> None:
        """Batches whose intents are durable by now become ready."""
        still = []
        for batch in self._sealing:
            if all(part.intent.durable or self._owner(part) is None for part in batch.parts):
                self._ready.append(batch)
            else:
                still.append(batch)
        self._sealing = still

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _count(self, group: GroupState, by: int) -> None:
        group.outstanding += by
        if group.failing_since_ms is None:
            self.healthy += by
        if not group.outstanding:
            self.groups.pop(group.name, None)

    # Sending

    def step(self, now_ms: float) -> None:
        """Send what may be sent by now."""
        while self._unstored and self._unstored[0][0] <= now_ms:
            _, token = heapq.heappop(self._unstored)
            self.effects.append(Store(token, self._burials[token].letters))
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._waiting)[2])
        for _ in range(len(self._ready)):
            if len(self._sending) >= self._rules.concurrency:
                break
            batch = self._ready.popleft()
            if self._may_send(batch):
                self._send(batch)
            else:
                self._ready.append(batch)

    def _may_send(self, batch: Batch) -> bool:
        group = self.group(batch.group)
        if group.failing_since_ms is not None and group.sending:
            return False
        if self.fenced and any(part.tp in self.fenced for part in batch.parts):
            return False
        return not self._rules.ordered or all(self._is_next(part) for part in batch.parts)

    def _is_next(self, part: Part) -> bool:
        owner = self._owner(part)
        return owner is None or owner.lanes[part.group].live[0] is part

    def _send(self, batch: Batch) -> None:
        alive = [part for part in batch.parts if self._owner(part)]
        group = self.group(batch.group)
        if not alive:
            self._done(batch, "released")
            return
        if len(alive) < len(batch.parts):
            batch = self._again(batch, alive)
        self._sending[batch.id] = batch
        group.sending += 1
        self.effects.append(Send(batch))

    def _again(self, batch: Batch, parts: list[Part]) -> Batch:
        fresh = Batch(self._id(), batch.group, parts)
        if batch.id in self._first_failed_ms:
            self._first_failed_ms[fresh.id] = self._first_failed_ms.pop(batch.id)
        return fresh

    # Answers

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """The sink's answer to one send."""
        batch = self._sending.pop(batch_id)
        group = self.group(batch.group)
        group.sending -= 1
        self.sends.count(batch.group, answer.verdict.value)
        attempt = Attempt(wall_ms, answer.status, answer.elapsed_ms, answer.reason)
        for part in batch.parts:
            part.attempts += 1
            part.history = [*part.history, attempt][-HISTORY_MAX:]
        for part in batch.parts:
            if self._owner(part) is None:
                self.held_bytes -= _held(part)
        if answer.verdict is not Verdict.HALT and self.halted:
            self.halted = ""
            self._report("intake.resumed", group=group_label(group.name))
        if answer.verdict in (Verdict.RETRY, Verdict.HALT):
            self._failed(batch, answer, now_ms)
            return
        self._recovered(group)
        if answer.verdict is Verdict.ACK:
            self._delivered(batch)
        elif answer.verdict is Verdict.PARTIAL:
            self._partial(batch, answer, now_ms)
        else:
            self._refused(batch, answer, now_ms)

    def _delivered(self, batch: Batch) -> None:
        self._judge(lambda: self.guard.taken(batch.count))
        for part in batch.parts:
            self._finish(part, "delivered", part.count)
        self._done(batch, "delivered")

    def _judge(self, judge: Callable[[], None]) -> None:
        before = self.guard.tripped
        judge()
        if self.guard.tripped and not before:
            self._report("intake.stopped", "error", reason="the receiver refused more than a tenth of 1,000 messages")
        elif before and not self.guard.tripped:
            self._report("intake.resumed", reason="the receiver takes messages again")

    def _failed(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        group = self.group(batch.group)
        if answer.verdict is Verdict.HALT and self.halted != answer.reason:
            self.halted = answer.reason or "the receiver refuses every request"
            self._report("intake.stopped", "error", group=group_label(group.name), reason=self.halted)
        batch.parts = [part for part in batch.parts if self._owner(part)]
        if not batch.parts:
            self._done(batch, "released")
            return
        first = self._first_failed_ms.setdefault(batch.id, now_ms)
        attempts = max(part.attempts for part in batch.parts)
        if answer.verdict is Verdict.RETRY and self._gives_up(attempts, now_ms - first):
            for part in batch.parts:
                self._bury_rows(part, answer.reason or "retries exhausted")
            self._done(batch, "dead_lettered")
            return
        if group.failing_since_ms is None:
            self.healthy -= group.outstanding
            group.failing_since_ms = now_ms
        group.reason, group.attempts = answer.reason, attempts
        wait = self._rules.backoff.wait_ms(max(1, attempts), self._jitter(), answer.retry_after_ms)
        group.next_try_ms = now_ms + wait
        heapq.heappush(self._waiting, (group.next_try_ms, batch.id, batch))
        self._report(
            "batch.retried", "warning", group=group_label(group.name), reason=answer.reason, attempts=attempts,
            wait_ms=round(wait), messages=batch.count, status=answer.status,
        )  # fmt: skip

    def _gives_up(self, attempts: int, failing_ms: float) -> bool:
        by_count = self._rules.give_up_attempts is not None and attempts >= self._rules.give_up_attempts
        return by_count or (self._rules.give_up_ms is not None and failing_ms >= self._rules.give_up_ms)

    def _recovered(self, group: GroupState) -> None:
        if group.failing_since_ms is not None:
            group.failing_since_ms = None
            self.healthy += group.outstanding
            self._report("group.recovered", group=group_label(group.name), attempts=group.attempts)

    # Refusals

    def _refused(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        alive = [part for part in batch.parts if self._owner(part)]
        if len(alive) > 1:
            self._halve_parts(batch, alive)
            return
        if alive and alive[0].count > 1:
            self._halve_rows(batch, alive[0])
            return
        if alive:
            self._judge(self.guard.refused)
            if self.guard.tripped:
                self._failed(batch, Answer(Verdict.RETRY, answer.reason, answer.status), now_ms)
                return
            self._bury_rows(
                alive[0], "too_large" if answer.verdict is Verdict.TOO_LARGE else answer.reason or "rejected"
            )
        self._done(batch, "dead_lettered" if alive else "released")

    def _halve_parts(self, batch: Batch, alive: list[Part]) -> None:
        middle = len(alive) // 2
        self._ready.extendleft([self._batch(alive[middle:]), self._batch(alive[:middle])])
        self._done(batch, "split")

    def _halve_rows(self, batch: Batch, part: Part) -> None:
        for piece in self._replace(part, halves(part.fragments, self._rules.separator)):
            self.add([piece])
        self._done(batch, "split")

    def _replace(self, part: Part, pieces: Sequence[list[Fragment]], *why: object) -> list[Part]:
        """Pieces take the part's place; they were sent before, as a part of it. With `why` their names follow."""
        owner = self._owner(part)
        assert owner is not None
        self.held_bytes -= _held(part)
        replaced = owner.derive(part, pieces, *why) if why else owner.split(part, pieces)
        for piece in replaced:
            piece.attempts, piece.history = part.attempts, part.history
            self.held_bytes += _held(piece)
        return replaced

    def _partial(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        if len(answer.failed) == batch.count and all(row.retry for row in answer.failed):
            self._failed(batch, replace(answer, verdict=Verdict.RETRY, reason=answer.failed[0].reason), now_ms)
            return
        failed = {row.index: row for row in answer.failed}
        at = 0
        for part in batch.parts:
            mine = {index - at: row for index, row in failed.items() if at <= index < at + part.count}
            at += part.count
            if self._owner(part) is None:
                continue
            if mine:
                self._some_failed(part, mine, answer, now_ms)
            else:
                self._finish(part, "delivered", part.count)
        self._done(batch, "partial")

    def _some_failed(self, part: Part, failed: dict[int, FailedRow], answer: Answer, now_ms: float) -> None:
        taken = part.count - len(failed)
        if taken:
            self._judge(lambda: self.guard.taken(taken))
        again = {index for index, row in failed.items() if row.retry}
        for index in failed.keys() - again:
            self._judge(self.guard.refused)
            if self.guard.tripped:
                again.add(index)
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        reasons = {offsets[index]: row.reason or "rejected" for index, row in failed.items()}
        odd = part.unframeable
        groups = [
            pick(part.fragments, again, self._rules.separator),
            pick(part.fragments, failed.keys() - again, self._rules.separator),
            [Fragment([], b"", None, odd)] if odd else [],
        ]
        self._settled(part, "delivered", taken)
        pieces = self._replace(part, [rows for rows in groups if rows], "207", *(offsets[i] for i in sorted(again)))
        for piece in pieces:
            piece.waits = 1
            if not piece.count:
                self._bury(piece, [self._letter(piece, offset, None, "unframeable") for offset in odd], rows=False)
            elif piece.fragments[0].offsets[0] in {offsets[index] for index in again}:
                self._failed(self._batch([piece]), replace(answer, verdict=Verdict.RETRY, reason="207"), now_ms)
            else:
                self._bury_rows(piece, reasons)

    # Endings

    def _bury_rows(self, part: Part, reason: str | dict[int, str]) -> None:
        rows = rows_of(part.fragments, self._rules.separator)
        reasons = reason if isinstance(reason, dict) else {}
        letters = [self._letter(part, offset, row, reasons.get(offset) or str(reason)) for offset, row in rows]
        self._bury(part, letters, rows=True)

    def _bury(self, part: Part, letters: list[DeadLetter], *, rows: bool) -> None:
        token = self._id()
        self._burials[token] = _Burial(letters, part, rows)
        self.effects.append(Store(token, letters))

    def _letter(self, part: Part, offset: int, row: bytes | None, reason: str) -> DeadLetter:
        return DeadLetter(part.tp, offset, part.scope, part.group, reason, row, tuple(part.history))

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Dead letters are durable; or not, then they are tried again in a second."""
        if not ok:
            heapq.heappush(self._unstored, (now_ms + STORE_RETRY_MS, token))
            return
        burial = self._burials.pop(token)
        part = burial.part
        if self._owner(part) is None:
            return
        if not burial.rows:
            self.held_bytes -= _held(part)
            for fragment in part.fragments:
                fragment.unframeable = ()
            self.held_bytes += _held(part)
        self._finish(part, "dead_lettered", len(burial.letters))

    def _finish(self, part: Part, outcome: str, count: int) -> None:
        """Some of the part's messages have their outcome; with the last of them the part is settled."""
        owner = self._owner(part)
        if owner is None:
            return
        self._settled(part, outcome, count)
        part.waits -= 1
        if not part.waits:
            self.held_bytes -= _held(part)
            owner.settle(part)

    def _done(self, batch: Batch, result: str) -> None:
        self._first_failed_ms.pop(batch.id, None)
        self.batches.count(batch.group, result)
        self._count(self.group(batch.group), -1)

    def forget(self, partition: Partition) -> None:
        """The partition is given up: what it holds is freed now, what is being sent at its answer."""
        sending = {id(part) for batch in self._sending.values() for part in batch.parts}
        buffers = [lane.buffer for lane in partition.lanes.values()]
        buffers += [buffer for intent in partition.intents for buffer in (intent.collected or {}).values()]
        parts = [part for lane in partition.lanes.values() for part in lane.live if id(part) not in sending]
        self.held_bytes -= sum(held_bytes(f) for buffer in buffers for f in buffer.fragments) + sum(map(_held, parts))

    def sending(self, tps: Container[TopicPartition]) -> bool:
        """Whether anything of these partitions is on its way right now."""
        return any(part.tp in tps for batch in self._sending.values() for part in batch.parts)

    @property
    def idle(self) -> bool:
        """Whether no batch is outstanding and no dead letter on its way."""
        return not self.groups and not self._burials

    @property
    def waiting(self) -> int:
        """Batches that wait for their next try."""
        return len(self._waiting)

    def _report(self, event: str, level: str = "info", **fields: object) -> None:
        self.effects.append(Report(event, level, fields))


def _held(part: Part) -> int:
    return sum(map(held_bytes, part.fragments))
