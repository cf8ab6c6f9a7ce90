"""Conducts batches from cut to end: sends those that may be sent, and applies each answer.

Cuts nothing, reads nothing, and knows no commit: results that concern these are in `outcomes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sidecar.core.batching import held_bytes
from sidecar.core.books import Tally
from sidecar.core.cutting.memory import ATTEMPT_BYTES, PART_BYTES, Memory, held_by
from sidecar.core.delivery.admission import Admission
from sidecar.core.delivery.answers.dead_letters import DeadLetters
from sidecar.core.delivery.answers.receiver import Receiver
from sidecar.core.delivery.answers.refusals import Refusals
from sidecar.core.delivery.answers.retries import Retries
from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.claiming import Claiming
from sidecar.core.delivery.delivered import Deliveries
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.output import Output
from sidecar.core.delivery.parking import Parker
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.sending import Sending
from sidecar.core.delivery.stages import Event, Stage, StrayEventError
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.partition import Partition
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, Attempt, Verdict

A_COMMIT = "a commit"
"""What a batch waits for whose promises are not durable yet."""


class Delivery:
    """Owns all batches from cut to end.

    Args:
        memory: The count of held memory.
        jitter: Uniform in [0, 1).
    """

    def __init__(self, rules: DeliveryRules, owned: Ownerships, memory: Memory, jitter: Callable[[], float]) -> None:
        self._memory = memory
        self._rules = rules
        self.output = Output()
        self.sends = Tally()
        """Sends that were answered, by verdict."""
        self.outbox = Outbox()
        self.delivered = Deliveries()
        """What was delivered."""
        self.receiver = Receiver()
        self.letters = DeadLetters(rules)
        self._settlement = Settlement(rules, owned, memory, self.letters, self.output)
        self._admission = Admission(self.outbox, self._settlement)
        self._retries = Retries(rules, jitter, self.outbox, self._settlement, self.receiver, self.output)
        self.claims: Claiming | None = None
        """None without a ledger."""
        if rules.has_ledger:
            self.claims = Claiming(rules, jitter, owned, self.outbox, self._admission, self._settlement, self.output)
        self.parker = Parker(rules, owned, self.outbox, memory, self.output)
        self._sending = Sending(rules, owned, self.outbox, self.claims, self.output)
        self._refusals = Refusals(
            rules, owned, self.outbox, self._admission, self._settlement, self.receiver, self._retries,
            self.claims, self.parker, self.output,
        )  # fmt: skip

    # Taking over

    def cut(self, parts: list[Part]) -> None:
        """Add a batch of these parts, cut from held messages; it waits until its intents are durable."""
        self._memory.hold(PART_BYTES * len(parts))
        self._admission.add(parts)

    def known(self, part: Part) -> None:
        """Settle this part, made of held messages that are all known to be settled."""
        self._memory.hold(PART_BYTES)
        self._settlement.finish(part, "duplicate", part.count + len(part.unframeable))

    def release_durable(self) -> None:
        """Release batches whose intents a commit made durable."""
        self._admission.release_durable()

    # Sending

    def step(self, now_ms: float, *, fetches: bool = True) -> None:
        """Send batches that may be sent by now; fetch parked parts if that is wanted."""
        outstanding = bool(self.outbox.groups)
        for store in self.letters.due(now_ms):
            self.output.ask(store)
        self._refusals.step()
        self.outbox.queue_due(now_ms)
        self.parker.step(now_ms, fetches=fetches)
        self._sending.step(now_ms)
        self._trust_again(outstanding)

    # Answers

    def answered(self, batch_id: int, answer: Answer, now_ms: float, wall_ms: int) -> None:
        """Handle the sink's answer to one send.

        Raises:
            StrayEventError: The batch is not being sent.
        """
        batch = self.outbox.answered(batch_id)
        self.sends.add(batch.group, answer.verdict.value)
        attempt = Attempt(wall_ms, answer.status, answer.elapsed_ms, answer.reason)
        for part in batch.parts:
            if part.life.sent(attempt):
                self._memory.hold(ATTEMPT_BYTES)
            elif not part.life.alive:
                self._memory.free(held_by(part))  # `forget` could not: the sender still had it
        if answer.verdict is not Verdict.HALT:
            self.receiver.resume()
        if answer.verdict in (Verdict.RETRY, Verdict.HALT):
            self._retries.failed(batch, answer, now_ms)
        else:
            self._retries.recovered(batch.group, now_ms)
            self._looked_at(batch, answer, now_ms, wall_ms)
        self._trust_again(outstanding=True)

    def _looked_at(self, batch: Batch, answer: Answer, now_ms: float, wall_ms: int) -> None:
        if answer.verdict is Verdict.PARTIAL:
            self._refusals.partial(batch, answer, now_ms)
        elif answer.verdict is not Verdict.ACK:
            self._refusals.refused(batch, answer, now_ms)
        else:
            self.delivered.add(batch, wall_ms)
            for part in batch.parts:
                self.receiver.judge(part, (), part.count)
                self._settlement.finish(part, "delivered", part.count)
            self.outbox.end(batch, "delivered")

    def claimed(self, number: int, verdicts: Sequence[Sequence[int]] | None, now_ms: float) -> None:
        """Handle the ledger's verdicts on one `Claim`, for each want and row; None if it could not be asked.

        Raises:
            StrayEventError: No such claim is open.
        """
        if self.claims is None:
            raise StrayEventError(f"claim {number}", Stage.ENDED, Event.CLAIMED)
        outstanding = bool(self.outbox.groups)
        self.claims.claimed(number, verdicts, now_ms)
        self._trust_again(outstanding)

    def stored(self, token: int, *, ok: bool, now_ms: float) -> None:
        """Record that dead letters are durable; if not, storing is retried in a second.

        Raises:
            StrayEventError: Nothing is being stored under that token.
        """
        done = self.letters.stored(token, ok=ok, now_ms=now_ms)
        if done is not None:
            self._settlement.letters_stored(*done)
            self._admission.release_durable()

    def _trust_again(self, outstanding: bool) -> None:
        """Trust the receiver again after the last batch ended: no batch is left that could test it."""
        if outstanding and not self.outbox.groups:
            self.receiver.trust()

    def forget(self, partition: Partition) -> None:
        """Free the memory of a partition that is given up; parts that are being sent are freed at their answer."""
        sending = {id(part) for batch in self.outbox.batches(Stage.SENDING) for part in batch.parts}
        parts = [part for part in partition.lanes.parts() if id(part) not in sending]
        open_bytes = sum(held_bytes(fragment) for fragment in partition.open_fragments())
        self._memory.free(open_bytes + sum(map(held_by, parts)))
        self.receiver.forget(partition.tp)
        self.parker.forget(partition)
        self._admission.release_durable()

    # Status

    @property
    def idle(self) -> bool:
        """Whether no batch is outstanding and no dead letter is being stored."""
        is_idle = not self.outbox.groups and not self.letters and self.parker.idle
        return is_idle and not (self.claims and self.claims.askings)

    @property
    def awaits_twins(self) -> bool:
        """Whether everything outstanding waits for claims of twins, or behind parts that do."""
        if self.claims is None or not self.claims.askings.held_alone or self.letters:
            return False
        return not any(map(self.outbox.count, (Stage.SENDING, Stage.WAITING, Stage.HELD_BACK)))

    @property
    def has_free_sender(self) -> bool:
        """Whether fewer batches are being sent than may be at once."""
        return self.outbox.count(Stage.SENDING) < self._rules.concurrency

    def held_up(self) -> Iterator[tuple[str, Batch]]:
        """Batches that wait for something other than their group's retry, each with the reason."""
        waits = {A_COMMIT: Stage.HELD_BACK, "a free sender": Stage.READY, "an answer": Stage.SENDING}
        for what, stage in waits.items():
            waiting = self.outbox.batches(stage)
            yield from ((what, batch) for batch in waiting if not self.outbox.groups.failing(batch.group))
