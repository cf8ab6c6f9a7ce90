"""Conducts batches from cut to end: sends those that may be sent, and applies each answer.

Cuts nothing, reads nothing, and knows no commit: outcomes that concern these go to the pipeline that is built on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from sidecar.core.batching import held_bytes
from sidecar.core.books import AGE_BOUNDS, BYTES_BOUNDS, MESSAGES_BOUNDS, DeliveryCounts, Histogram, Tally
from sidecar.core.delivery.outbox import Outbox, Stage
from sidecar.core.delivery.output import Outcome, Output
from sidecar.core.delivery.pace import Pace
from sidecar.core.delivery.parking import Parker
from sidecar.core.delivery.refusals import Receiver, Refusals
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.settlement import DeadLetters, Settlement
from sidecar.core.effects import Send
from sidecar.core.groups import FailingGroup
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.parts import ATTEMPT_BYTES, PART_BYTES, Batch, Memory, Part, held_by
from sidecar.core.records import Answer, Attempt, Verdict
from sidecar.core.states import Event, StrayEventError

if TYPE_CHECKING:
    from sidecar.core.delivery.claiming import Claiming


class Deliveries:
    """Counts batches that were accepted as a whole."""

    def __init__(self) -> None:
        self.tap: Callable[[Batch], None] | None = None
        """Called with each batch while a tap is open."""
        self.sends = Tally()
        """Sends that were answered, by verdict."""
        self._counts = Tally()
        self._ages, self._messages, self._bytes = map(Histogram, (AGE_BOUNDS, MESSAGES_BOUNDS, BYTES_BOUNDS))

    def add_batch(self, batch: Batch, wall_ms: int) -> None:
        """Count a batch, accepted at this time in epoch milliseconds."""
        if self.tap is not None:
            self.tap(batch)
        self._counts.add(batch.group, "messages", batch.count)
        self._counts.add(batch.group, "bytes", batch.nbytes)
        self._messages.observe(batch.count)
        self._bytes.observe(batch.nbytes)
        for part in batch.parts:
            for fragment in part.fragments:
                if fragment.stamp_ms is not None:
                    self._ages.observe(max(0.0, (wall_ms - fragment.stamp_ms) / 1000), fragment.count)

    def read(self) -> DeliveryCounts:
        """The counts so far."""
        found = self._counts.counts().items()
        messages = {group: count for (group, kind), count in found if kind == "messages"}
        nbytes = {group: count for (group, kind), count in found if kind == "bytes"}
        return DeliveryCounts(messages, nbytes, self._ages.read(), self._messages.read(), self._bytes.read())


A_COMMIT, AN_ANSWER = "a commit", "an answer"
"""Wait reasons of batches whose promises are not durable yet, and of those that are being sent."""


class Delivery:
    """Owns all batches from cut to end.

    Nothing of a fenced partition is sent. A failing group is tested with one batch. With `ordered`, a part waits for
    all parts before it in its lane. With a ledger, rows that are not owned are claimed first.

    Args:
        jitter: Uniform in [0, 1).
    """

    def __init__(self, rules: DeliveryRules, owned: Ownerships, memory: Memory, jitter: Callable[[], float]) -> None:
        self._memory = memory
        self._rules = rules
        self._owned = owned
        self.output = Output()
        self.outbox = Outbox()
        self.delivered = Deliveries()
        self.receiver = Receiver()
        self._settlement = Settlement(rules, owned, memory, self.output)
        self.claims: Claiming | None = None
        """None without a ledger."""
        if rules.lease_ms is not None:
            from sidecar.core.delivery.claiming import Claiming

            self.claims = Claiming(rules, jitter, owned, self.outbox, self._settlement, self.output)
        self.pace = Pace(rules, jitter, self.output)
        self.parker = Parker(rules, owned, self.outbox, memory, self.output)
        self._refusals = Refusals(
            rules, jitter, owned, self.outbox, self._settlement, self.receiver, self.claims, self.parker, self.output
        )

    # Taking over

    def cut(self, parts: list[Part]) -> None:
        """Add a batch of these parts, cut from held messages; it waits until its intents are durable."""
        self._memory.held_bytes += PART_BYTES * len(parts)
        for part in parts:
            if part.unframeable:  # before the others are sent
                self._settlement.give_up_unframeable(part)
        if rows := [part for part in parts if part.count]:
            self.outbox.admit(rows)

    def known(self, part: Part) -> None:
        """Settle this part, made of held messages that are all known to be settled."""
        self._memory.held_bytes += PART_BYTES
        self._settlement.finish(part, "duplicate", part.count + len(part.unframeable))

    # Sending

    def step(self, now_ms: float, *, fetches: bool = True) -> None:
        """Send batches that may be sent by now; fetch parked parts if that is wanted."""
        outstanding = bool(self.outbox.groups)
        self.output.effects += self.letters.due(now_ms)
        for batch in sorted(self.outbox.batches(Stage.CROWDED), key=lambda batch: batch.count):  # the least room first
            self._refusals.halve(batch)
        self.outbox.queue_due(now_ms)
        self.parker.step(now_ms, fetches=fetches)
        self._send_ready(now_ms)
        self._trust_again(outstanding=outstanding)

    def _send_ready(self, now_ms: float) -> None:
        """Send ready batches; claiming continues while all senders are busy."""
        if self.claims is not None:
            self.claims.step(now_ms)
        for batch in self.outbox.batches(Stage.READY):
            if self.claims is not None and not self.claims.ours(batch, now_ms):
                if not self.claims.askings.busy and self._may_go(batch):
                    self.claims.ask(batch, now_ms)
                else:
                    self.outbox.put_last(batch)
            elif not self.waits_for(now_ms):
                if not self._may_go(batch):
                    self.outbox.put_last(batch)
                elif alive := batch.alive:
                    batch = self.outbox.shrink(batch, alive)
                    if self.pace.is_too_large(batch) and self._refusals.may_divide(batch):
                        self._refusals.divide(batch)
                    elif self.pace.begin(batch):
                        self.outbox.move(batch, Event.SENT)
                        self.output.effects.append(Send(batch))
                    else:
                        self.outbox.put_last(batch)
                else:
                    self.outbox.end_batch(batch, "released")
            elif self.claims is None:
                break  # with a ledger, later batches can be claimed meanwhile
            else:
                self.outbox.put_last(batch)

    def _may_go(self, batch: Batch) -> bool:
        # One send tests whether a failing group works again: more would fail with it, or overtake it if it does.
        group, fenced = self.outbox.groups[batch.group], self._owned.fenced
        if group.failing_since_ms is not None and group.sending:
            return False
        if fenced and any(part.tp in fenced for part in batch.parts):
            return False
        return not self._rules.ordered or all(self._owned[part.tp].outstanding.is_next(part) for part in batch.alive)

    # Answers

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """Handle the sink's answer to one send.

        Raises:
            StrayEventError: The batch is not being sent.
        """
        batch = self.outbox.answered(batch_id)
        self.delivered.sends.add(batch.group, answer.verdict.value)
        self.pace.answered(batch, answer, now_ms)
        attempt = Attempt(wall_ms, answer.status, answer.elapsed_ms, answer.reason)
        for part in batch.parts:
            if part.sent(attempt):
                self._memory.held_bytes += ATTEMPT_BYTES
            elif not part.alive:
                self._memory.held_bytes -= held_by(part)  # `forget_partition` could not: the sender still had it
        self._refusals.answered(batch, answer, now_ms)
        if answer.verdict is Verdict.ACK:
            self.delivered.add_batch(batch, wall_ms)
            for part in batch.parts:
                self.receiver.judge(part, (), part.count)
                self._settlement.finish(part, "delivered", part.count)
            self.outbox.end_batch(batch, "delivered")
        self._trust_again(outstanding=True)

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """Handle the ledger's verdicts on one `Claim`, for each want and row; None if it could not be asked.

        Raises:
            StrayEventError: No such claim is open.
        """
        if self.claims is None:
            raise StrayEventError(f"claim {number}", Stage.ENDED, Event.CLAIMED)
        outstanding = bool(self.outbox.groups)
        self.claims.claimed(number, verdicts, now_ms)
        self._trust_again(outstanding=outstanding)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Record that dead letters are durable; if not, storing is retried in a second.

        Raises:
            StrayEventError: Nothing is being stored under that token.
        """
        done = self.letters.stored(token, ok=ok, now_ms=now_ms)
        if done is not None:
            self._settlement.letters_stored(*done)
            self.outbox.release_durable()

    def _trust_again(self, *, outstanding: bool) -> None:
        """Trust the receiver again after the last batch ended: no batch is left that could test it."""
        if outstanding and not self.outbox.groups:
            self.receiver.trust()

    def forget_partition(self, partition: Partition) -> None:
        """Free the memory of a partition that is given up; parts that are being sent are freed at their answer."""
        sending = {id(part) for batch in self.outbox.batches(Stage.SENDING) for part in batch.parts}
        parts = [part for part in partition.lanes.parts() if id(part) not in sending]
        open_bytes = sum(held_bytes(fragment) for fragment in partition.open_fragments())
        self._memory.held_bytes -= open_bytes + sum(map(held_by, parts))
        self.receiver.forget_partition(partition.tp)
        self.parker.forget_partition(partition)
        self.outbox.release_durable()

    # Status

    @property
    def letters(self) -> DeadLetters:
        return self._settlement.letters

    @property
    def idle(self) -> bool:
        """Whether no batch is outstanding and no dead letter is being stored."""
        is_busy = self.outbox.groups or self.letters or self.parker.busy or (self.claims and self.claims.askings)
        return not is_busy

    @property
    def awaits_twins(self) -> bool:
        """Whether everything outstanding waits for claims of twins, or behind parts that do."""
        if self.claims is None or not self.claims.askings.held_alone or self.letters:
            return False
        return not any(map(self.outbox.count, (Stage.SENDING, Stage.WAITING, Stage.HELD_BACK)))

    def waits_for(self, now_ms: float) -> str:
        """What the next request waits for: a free sender, or the destination's pace; empty if it may be sent now."""
        return self.pace.waits_for(self.outbox.busy_senders, now_ms)


class DeliveryPipeline(ABC):
    """Conducts the delivery of messages: each event is applied with all outcomes before the next one.

    Args:
        jitter: Uniform in [0, 1); the only source of chance.
    """

    EFFECTS: ClassVar[Collection[type]]
    """The kinds of effects that `step` returns."""

    def __init__(self, rules: DeliveryRules, jitter: Callable[[], float]) -> None:
        self.partitions = Ownerships(rules.separator)
        self.memory = Memory()
        self.delivery = Delivery(rules, self.partitions, self.memory, jitter)

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """Handle the sink's answer to one `Send`.

        Raises:
            StrayEventError: The batch is not being sent.
        """
        self.delivery.answered(batch_id, answer, now_ms, wall_ms)
        self._apply_outcomes(now_ms)

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """Handle the ledger's verdicts on one `Claim`, for each want and row; None if it could not be asked.

        Raises:
            StrayEventError: No such claim is open.
        """
        self.delivery.claimed(number, verdicts, now_ms)
        self._apply_outcomes(now_ms)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Record that the dead letters of one `StoreDeadLetters` are durable, or could not be stored."""
        self.delivery.stored(token, ok=ok, now_ms=now_ms)
        self._apply_outcomes(now_ms)

    @abstractmethod
    def step(self, now_ms: float) -> Sequence[object]:
        """Do what is due; return all effects since the last step."""

    def _apply_outcomes(self, now_ms: float) -> None:
        output = self.delivery.output
        outcomes, output.outcomes = output.outcomes, []
        for outcome in outcomes:
            self._apply(outcome, now_ms)

    @abstractmethod
    def _apply(self, outcome: Outcome, now_ms: float) -> None:
        """Apply an outcome before anything else happens."""

    @property
    def refusal(self) -> tuple[str, str]:
        """Why the receiver takes nothing: a word and the reason; both empty if it is not so."""
        receiver = self.delivery.receiver
        if receiver.halted:
            return "halted", receiver.halted
        return ("refused", "") if receiver.refuses else ("", "")

    @property
    def failing(self) -> list[FailingGroup]:
        """The groups whose last send failed."""
        return self.delivery.outbox.groups.failures()

    @property
    def sends(self) -> Mapping[tuple[str, str], int]:
        """Answered sends by group and verdict."""
        return self.delivery.delivered.sends.counts()

    @property
    def ended(self) -> Mapping[tuple[str, str], int]:
        """Ended batches by group and result."""
        return self.delivery.outbox.ended.counts()
