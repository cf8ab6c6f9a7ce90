"""What becomes of a batch: ready, sending, waiting for its next try, split, done. Cuts nothing and reads nothing."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, replace
from itertools import count as counter

from sidecar.core.backoff import Backoff, RefusalGuard
from sidecar.core.batching import ATTEMPT_BYTES, PART_BYTES, held_by, held_bytes, rows_of
from sidecar.core.books import Tally
from sidecar.core.burial import Burials
from sidecar.core.claiming import Claiming
from sidecar.core.claims import ENDS, State, mark_of
from sidecar.core.effects import Effect, Report, Send
from sidecar.core.groups import Groups
from sidecar.core.partition.state import ATTEMPTS_MAX, SECONDS_MAX, Tries
from sidecar.core.progress import Partition
from sidecar.core.records import (
    Answer,
    Attempt,
    Batch,
    DeadLetter,
    Part,
    TopicPartition,
    Verdict,
    group_label,
)
from sidecar.core.refusals import Refusals

HISTORY_MAX = 20


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How batches are delivered.

    Args:
        backoff: Waits between tries.
        concurrency: Sends at once.
        ordered: Whether a group's parts of one partition go one after the other.
        separator: The rows' separator.
        give_up_attempts: Failed sends after which a batch is dead-lettered; None for never.
        give_up_ms: Time since the first failed send after which it is; None for never.
        lease_ms: With a ledger: how long after its claim was asked for a batch may be sent.
        numbered: Whether offsets are the source's own numbers, which mean nothing in another scope.
    """

    backoff: Backoff
    concurrency: int
    ordered: bool
    separator: bytes
    give_up_attempts: int | None = None
    give_up_ms: int | None = None
    lease_ms: int | None = None
    numbered: bool = False


class Delivery:
    """Owns all batches from cut to end.

    Args:
        rules: How batches are delivered.
        owner: Gives the live partition of a part, None when it was taken away since.
        settled: Called with a live part, an outcome and how many of its messages have it now.
        jitter: Uniform in [0, 1).
        give_up: Called with a partition that must be read again, and the reason; without a ledger never.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        owner: Callable[[Part], Partition | None],
        settled: Callable[[Part, str, int], None],
        jitter: Callable[[], float],
        give_up: Callable[[TopicPartition, str], None] = lambda tp, reason: None,
    ) -> None:
        self._rules = rules
        self.owner = owner
        self.settled = settled
        self._jitter = jitter
        self.groups = Groups()
        self.fenced: set[TopicPartition] = set()
        """Partitions that are about to be taken away: nothing of them is sent any more."""
        self.changed: set[TopicPartition] = set()
        """Partitions with new intents that batches wait for: to be committed now."""
        self.guard = RefusalGuard()
        self.halted = ""
        """Why nothing is read: the sink refuses what no message is at fault for."""
        self.held_bytes = 0
        """Bytes of memory of what was read and is not settled, dead letters on their way not among them."""
        self.sends = Tally()
        self.batches = Tally()
        self.effects: list[Effect] = []
        self._sealing: list[Batch] = []
        self._ready: deque[Batch] = deque()
        self._sending: dict[int, Batch] = {}
        self._waiting: list[tuple[float, int, Batch]] = []
        self._first_failed_ms: dict[int, float] = {}
        self._refusals = Refusals(self, rules.separator)
        self.burials = Burials(owner)
        self.claims: Claiming | None = None
        """With a ledger only."""
        if rules.lease_ms is not None:
            self.claims = Claiming(self, rules, jitter, give_up)
        self._ids = counter(1)

    # Taking over

    def cut(self, parts: list[Part]) -> None:
        """These parts were made of what was held: a new batch."""
        self.held_bytes += PART_BYTES * len(parts)
        self.add(parts)

    def add(self, parts: list[Part]) -> None:
        """A new batch of these parts, which wait for their intents to be durable."""
        for part in parts:
            if part.unframeable:
                self._bury(part, [self._letter(part, offset, None, "unframeable") for offset in part.unframeable])
        rows = [part for part in parts if part.count]
        if rows:
            (self._ready if all(map(self._unsealed, rows)) else self._sealing).append(self.begin(rows))

    def begin(self, parts: list[Part]) -> Batch:
        """A batch of these parts is outstanding."""
        batch = Batch(next(self._ids), parts[0].group, parts)
        self.groups.begin(batch.group)
        return batch

    def replaced(self, part: Part, pieces: list[Part]) -> None:
        """These pieces have taken the part's place; they were sent before, as a part of it."""
        for piece in pieces:
            piece.attempts, piece.history, piece.seal = part.attempts, part.history, part.seal
            piece.hold = part.hold and replace(part.hold)
        self.held_bytes += sum(map(held_by, pieces)) - held_by(part)

    def unseal(self) -> None:
        """Batches whose intents are durable by now, and whose unframeable messages are, become ready."""
        sealing, self._sealing = self._sealing, []
        for batch in sealing:
            (self._ready if all(map(self._unsealed, batch.parts)) else self._sealing).append(batch)

    def _unsealed(self, part: Part) -> bool:
        # Were a part split while some of it is being stored, nothing could say which half that belongs to.
        durable = part.intent.durable and (part.seal is None or part.seal.durable)
        return (durable and not part.unframeable) or self.owner(part) is None

    # Sending

    def step(self, now_ms: float) -> None:
        """Send what may be sent by now."""
        if self.burials:
            self.effects += self.burials.due(now_ms)
        self._refusals.step()
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._waiting)[2])
        if self.claims is not None:
            self.claims.step(now_ms)
            self._claim(self.claims, now_ms)
            return
        for _ in range(len(self._ready)):
            if len(self._sending) >= self._rules.concurrency:
                break
            batch = self._ready.popleft()
            if self._may_send(batch):
                self._send(batch)
            else:
                self._ready.append(batch)

    def _claim(self, claims: Claiming, now_ms: float) -> None:
        """Send what is ours, and claim what is not: that goes on while all senders are busy."""
        for _ in range(len(self._ready)):
            batch = self._ready.popleft()
            ours = claims.ours(batch, now_ms)
            free = len(self._sending) < self._rules.concurrency if ours else not claims.busy
            if not free or not self._may_send(batch):
                self._ready.append(batch)
            elif ours:
                self._send(batch)
            else:
                claims.ask(batch, now_ms)

    def _may_send(self, batch: Batch) -> bool:
        if self.groups.failing(batch.group) and self.groups[batch.group].sending:
            return False
        if self.fenced and any(part.tp in self.fenced for part in batch.parts):
            return False
        return not self._rules.ordered or all(self._is_next(part) for part in batch.parts)

    def _is_next(self, part: Part) -> bool:
        owner = self.owner(part)
        return owner is None or owner.lanes[part.group].live[0] is part

    def _send(self, batch: Batch) -> None:
        alive = [part for part in batch.parts if self.owner(part)]
        if not alive:
            self.done(batch, "released")
            return
        batch = self.shrink(batch, alive)
        self._sending[batch.id] = batch
        self.groups[batch.group].sending += 1
        self.effects.append(Send(batch))

    def put_first(self, batches: list[list[Part]]) -> None:
        """New batches of parts whose intents are durable; they are sent before all others."""
        self._ready.extendleft([self.begin(parts) for parts in reversed(batches)])

    def put_back(self, batch: Batch) -> None:
        """A batch that was claimed; it is sent before all others."""
        self._ready.appendleft(batch)

    def shrink(self, batch: Batch, parts: list[Part]) -> Batch:
        """The same batch with some of its parts only, or with what is left of them."""
        if parts == batch.parts:
            return batch
        fresh = Batch(next(self._ids), batch.group, parts)
        if batch.id in self._first_failed_ms:
            self._first_failed_ms[fresh.id] = self._first_failed_ms.pop(batch.id)
        return fresh

    # Answers

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """The sink's answer to one send."""
        batch = self._sending.pop(batch_id)
        self.groups[batch.group].sending -= 1
        self.sends.add(batch.group, answer.verdict.value)
        attempt = Attempt(wall_ms, answer.status, answer.elapsed_ms, answer.reason)
        for part in batch.parts:
            part.attempts += 1
            if self.owner(part) is None:
                self.held_bytes -= held_by(part)
                continue
            self.held_bytes += ATTEMPT_BYTES * (len(part.history) < HISTORY_MAX)
            part.history = [*part.history[1 - HISTORY_MAX :], attempt]
        if answer.verdict is not Verdict.HALT:
            self.halted = ""
        if answer.verdict in (Verdict.RETRY, Verdict.HALT):
            self.failed(batch, answer, now_ms)
            return
        self._recovered(batch.group, now_ms)
        if answer.verdict is Verdict.ACK:
            self._delivered(batch)
        elif answer.verdict is Verdict.PARTIAL:
            self._refusals.partial(batch, answer, now_ms)
        else:
            self._refusals.refused(batch, answer, now_ms)

    def _delivered(self, batch: Batch) -> None:
        for part in batch.parts:
            self.judge(part, (), part.count)
            self.finish(part, "delivered", part.count)
        self.done(batch, "delivered")

    def judge(self, part: Part, refused: Collection[int], taken: int) -> None:
        """Some rows of a part were refused for good, and so many others taken: is it still the messages' fault?"""
        before = self.guard.tripped
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets] if refused or before else []
        for index in refused:
            self.guard.refused((part.tp, offsets[index]))
        if taken:
            self.guard.taken(taken, ((part.tp, offset) for i, offset in enumerate(offsets) if i not in refused))

    def failed(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """The batch is sent again after a while, or given up."""
        if answer.verdict is Verdict.HALT:
            self.halted = answer.reason or "no reason given"
        alive = [part for part in batch.parts if self.owner(part)]
        if not alive:
            self.done(batch, "released")
            return
        batch = self.shrink(batch, alive)
        before_ms = 1000 * max(part.intent.tries.seconds for part in alive)
        first = self._first_failed_ms.setdefault(batch.id, now_ms - before_ms)
        attempts = max(part.attempts for part in alive)
        if answer.verdict is not Verdict.HALT and self._gives_up(attempts, now_ms - first):
            for part in alive:
                self.bury_rows(part, answer.reason or "retries exhausted")
            self.done(batch, "dead_lettered")
            return
        self._remember_tries(alive, round(now_ms - first) // 1000)
        begins = not self.groups.failing(batch.group)
        group = self.groups.failed(batch.group, now_ms)
        group.reason, group.attempts = answer.reason, attempts
        wait = self._rules.backoff.wait_ms(attempts, self._jitter(), answer.retry_after_ms)
        group.next_try_ms = now_ms + wait
        heapq.heappush(self._waiting, (group.next_try_ms, batch.id, batch))
        told = {"group": group_label(batch.group), "reason": answer.reason, "status": answer.status}
        if begins:
            self._report("group.failed", "warning", **told)
        self._report("batch.retried", "debug", **told, attempts=attempts, wait_ms=round(wait), messages=batch.count)

    def _remember_tries(self, parts: list[Part], seconds: int) -> None:
        """They travel, so that a crash loop gives up as one process does; not with intents that groups share."""
        for part in parts:
            if part.intent.key is not None:
                part.intent.tries = Tries(min(part.attempts, ATTEMPTS_MAX), min(seconds, SECONDS_MAX))
        if self._rules.give_up_attempts is not None or self._rules.give_up_ms is not None:
            self.changed.update(part.tp for part in parts)

    def _gives_up(self, attempts: int, failing_ms: float) -> bool:
        if self.guard.tripped:
            return False
        by_count = self._rules.give_up_attempts is not None and attempts >= self._rules.give_up_attempts
        return by_count or (self._rules.give_up_ms is not None and failing_ms >= self._rules.give_up_ms)

    def _recovered(self, name: str, now_ms: float) -> None:
        since_ms, attempts = self.groups.recovered(name), self.groups[name].attempts
        if since_ms is not None:
            seconds = round((now_ms - since_ms) / 1000, 3)
            self._report("group.recovered", group=group_label(name), attempts=attempts, seconds=seconds)

    # Endings

    def bury_rows(self, part: Part, reason: str | dict[int, str]) -> None:
        """Make all rows of the part dead letters, for one reason or for one an offset."""
        rows = rows_of(part.fragments, self._rules.separator)
        reasons = reason if isinstance(reason, dict) else dict.fromkeys((offset for offset, _ in rows), reason)
        self._bury(part, [self._letter(part, offset, row, reasons[offset]) for offset, row in rows])

    def _bury(self, part: Part, letters: list[DeadLetter]) -> None:
        self.effects.append(self.burials.bury(part, letters))

    def _letter(self, part: Part, offset: int, row: bytes | None, reason: str) -> DeadLetter:
        owner = self.owner(part)
        assert owner is not None  # its scope, not the part's: a piece has one of its own, and the message is the same
        return DeadLetter(part.tp, offset, owner.scope, part.group, reason, row, tuple(part.history))

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Dead letters are durable; or not, then they are tried again in a second."""
        done = self.burials.stored(token, ok=ok, now_ms=now_ms)
        if done is None:
            return
        part, count = done
        if not part.unframeable:
            self.finish(part, "dead_lettered", count)
            return
        self.held_bytes -= held_by(part)
        for fragment in part.fragments:
            fragment.unframeable = ()
        part.intent.partly = True
        part.fragments = [fragment for fragment in part.fragments if fragment.offsets]
        self.held_bytes += held_by(part)
        if part.count:
            self.settled(part, "dead_lettered", count)
            self.unseal()
        else:
            self.finish(part, "dead_lettered", count)

    def finish(self, part: Part, outcome: str, count: int) -> None:
        """The last `count` messages of the part have their outcome: it is settled, unless it is not ours any more."""
        owner = self.owner(part)
        if owner is not None:
            self.mark(part, outcome)
            self.settled(part, outcome, count)
            self.held_bytes -= held_by(part)
            owner.settle(part)

    def mark(self, part: Part, outcome: str, but: Collection[int] = ()) -> None:
        """Tell the ledger what became of the part's rows, but for those whose index is in `but`."""
        owner, state = self.owner(part), ENDS.get(outcome)
        if self.claims is not None and part.hold is not None and state is not None and owner is not None:
            # A twin may take a dead letter: a name that it was sent under with others must not be sent again then.
            alone = part.primary and part.count == 1
            marks = owner.marks if state is State.SUCCESS or alone else part.intent.errors
            marks.append(mark_of(self.claims.place(part), part.fragments, state, but))

    def done(self, batch: Batch, result: str) -> None:
        """The batch has come to its end."""
        self._first_failed_ms.pop(batch.id, None)
        self.batches.add(batch.group, result)
        self.groups.end(batch.group)
        if not self.groups and (self.halted or self.guard.tripped):
            # Nothing is left that could ask the receiver again: the next batch has to.
            self.halted = ""
            self.guard = RefusalGuard()

    def forget(self, partition: Partition) -> None:
        """The partition is given up: what it holds is freed now, what is being sent at its answer."""
        sending = {id(part) for batch in self._sending.values() for part in batch.parts}
        buffers = [lane.buffer for lane in partition.lanes.values()]
        buffers += [buffer for intent in partition.intents for buffer in (intent.collected or {}).values()]
        parts = [part for lane in partition.lanes.values() for part in lane.live if id(part) not in sending]
        self.held_bytes -= sum(held_bytes(f) for buffer in buffers for f in buffer.fragments) + sum(map(held_by, parts))
        self.guard.forget(partition.tp)
        self.unseal()

    def sending(self, tps: Container[TopicPartition]) -> bool:
        """Whether anything of these partitions is on its way right now."""
        return any(part.tp in tps for batch in self._sending.values() for part in batch.parts)

    @property
    def idle(self) -> bool:
        """Whether no batch is outstanding and no dead letter on its way."""
        return not self.groups and not self.burials and not self.claims

    @property
    def awaits_twins(self) -> bool:
        """Whether all that is outstanding waits for what twins have claimed, or behind what does."""
        others = self._sending or self._waiting or self._sealing or self.burials
        return self.claims is not None and self.claims.held_alone and not others

    def held_up(self) -> Iterator[tuple[str, Batch]]:
        """Each batch that waits for something other than its group's next try, and what that is."""
        queues = {"a commit": self._sealing, "a free sender": self._ready, "an answer": self._sending.values()}
        for what, batches in queues.items():
            yield from ((what, batch) for batch in batches if not self.groups.failing(batch.group))

    @property
    def waiting(self) -> int:
        """Batches that wait for their next try."""
        return len(self._waiting)

    def _report(self, event: str, level: str = "info", **fields: object) -> None:
        self.effects.append(Report(event, level, fields))
