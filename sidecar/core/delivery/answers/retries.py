"""Retries of failed batches: the next send, or giving up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sidecar.core.delivery.answers.receiver import Receiver
from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.output import Changed, Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.partition_state import ATTEMPTS_MAX, SECONDS_MAX, Tries
from sidecar.core.parts import Batch, Part
from sidecar.core.records import Answer, Verdict, group_label


class Retries:
    """Lengthens the wait each time; failures that no message causes use up no tries.

    Args:
        jitter: Uniform in [0, 1).
        settlement: Takes batches that are given up.
        receiver: While it is doubted, nothing is given up.
    """

    def __init__(
        self,
        rules: DeliveryRules,
        jitter: Callable[[], float],
        outbox: Outbox,
        settlement: Settlement,
        receiver: Receiver,
        output: Output,
    ) -> None:
        self._rules = rules
        self._jitter = jitter
        self._outbox = outbox
        self._settlement = settlement
        self._receiver = receiver
        self._output = output

    def failed(self, batch: Batch, answer: Answer, now_ms: float) -> None:
        """Schedule the batch to be sent again, or give it up."""
        if answer.verdict is Verdict.HALT:
            self._receiver.halt(answer.reason)
        alive = batch.alive
        if not alive:
            self._outbox.end(batch, "released")
            return
        batch = self._outbox.shrink(batch, alive)
        # Failures of earlier owners count: otherwise a process that crashes now and then would never give up.
        if batch.failing_since_ms is None:
            batch.failing_since_ms = now_ms - 1000 * max(part.intent.tries.seconds for part in alive)
        failing_ms = now_ms - batch.failing_since_ms
        attempts = max(part.life.attempts for part in alive)
        # A sink that refuses every request says nothing of the messages: that uses up none of their tries.
        if answer.verdict is not Verdict.HALT and self._gives_up(attempts, failing_ms):
            for part in alive:
                self._settlement.give_up(part, answer.reason or "retries exhausted")
            self._outbox.end(batch, "dead_lettered")
            return
        self._remember_tries(alive, round(failing_ms) // 1000)
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

    def recovered(self, name: str, now_ms: float) -> None:
        """Record a send of this group that got an answer."""
        groups = self._outbox.groups
        since_ms, attempts = groups.recovered(name), groups[name].attempts
        if since_ms is not None:
            seconds = round((now_ms - since_ms) / 1000, 3)
            self._output.report("group.recovered", group=group_label(name), attempts=attempts, seconds=seconds)

    def _remember_tries(self, parts: Sequence[Part], seconds: int) -> None:
        """Record tries in the state, so that a crash loop gives up as one process does; not for shared intents."""
        for part in parts:
            if part.intent.key is not None:
                part.intent.tries = Tries(min(part.life.attempts, ATTEMPTS_MAX), min(seconds, SECONDS_MAX))
            if self._rules.gives_up:
                self._output.tell(Changed(part.tp))

    def _gives_up(self, attempts: int, failing_ms: float) -> bool:
        return not self._receiver.refuses and self._rules.gives_up_after(attempts, failing_ms)
