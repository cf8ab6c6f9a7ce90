"""A shell around the pipeline that does its effects at once, for tests of the core."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Claim, Commit, Effect, Flow, Reload, Report, Send, StoreDeadLetters
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import (
    PartitionState,
)
from sidecar.core.parts import Batch
from sidecar.core.pipeline.commit_order import CommitOrder, Journal, Publish, Settle, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, DeadLetter, Run, TopicPartition, Verdict
from sidecar.ledger.interface import Ledger, LedgerError
from tests.simulation.plan import Columns, LineFramer, Row, read_ids, read_keys, read_tags

TP = TopicPartition("t", 0)


FRESH = PartitionState(0, 0)


ACK = Answer(Verdict.ACK)


REJECT = Answer(Verdict.REJECT, "bad", 400)


RETRY = Answer(Verdict.BUSY, "unavailable", 503)


LEASE_MS = 1_000


class AllGroups(dict[object, str | None]):
    """Every tag is wanted, in a group of its own; -1 is not."""

    def __missing__(self, tag: object) -> str | None:
        return None if tag == -1 else f"g{tag}"


class Shell:
    """Does every effect at once, and asks `answer` what the receiver says."""

    def __init__(
        self,
        *,
        ids: bool = False,
        ledger: Ledger | None = None,
        start: PartitionState = FRESH,
        room: StateBudget = StateBudget(),  # noqa: B008  # frozen
        copies: Callable[[TopicPartition], bool] | None = None,
        max_messages: int = 100,
        max_bytes: int = 10_000,
        linger_ms: int = 0,
        span_max: int = 10_000,
        held: int = 1 << 20,
        give_up: int | None = None,
        give_up_ms: int | None = None,
        numbered: bool = False,
        sorting: object | None = None,
        by_group: bool = False,
        jitter: Callable[[], float] = lambda: 1.0,
        **rules: Any,
    ) -> None:
        batch_rules = BatchRules(
            by_group=by_group,
            limits=Limits(max_messages, max_bytes),
            linger_ms=linger_ms,
            span_max=span_max,
            held_max_bytes=held,
        )
        delivery = DeliveryRules(
            backoff=Backoff(100, 1_000),
            concurrency=4,
            ordered=False,
            separator=b"\n",
            give_up_attempts=give_up,
            give_up_ms=give_up_ms,
            lease_ms=LEASE_MS if ledger else None,
            numbered=numbered,
            **rules,
        )
        reading = ReadingRules(
            Columns(),  # type: ignore[arg-type]
            LineFramer(),
            read_tags,
            AllGroups(),  # type: ignore[arg-type]
            read_ids if ids else None,
            keys=read_keys if ledger else None,
            copies=copies,
            sorting=sorting,
        )
        self.ledger = ledger
        chance = random.Random(1).random if ledger else jitter  # tokens are drawn
        self.pipeline = Pipeline(reading, batch_rules, delivery, chance)
        self.pipeline.limit(room)
        self.pipeline.assign(TP, "5c0pe000", start)
        self._order = CommitOrder()
        self.now_ms = 0.0
        self.commits: list[PartitionState] = []
        self.sent: list[tuple[str, list[int], int]] = []
        self.homes: set[str] = set()
        self.letters: list[DeadLetter] = []
        self.reports: list[Report] = []
        self.flows: list[frozenset[TopicPartition]] = []
        self.reloads: list[Reload] = []
        self.store_ok = self.commit_ok = True
        self.store_tries = 0

    def read(self, *rows: Row) -> None:
        """Hand over these rows."""
        self.pipeline.read(Run(TP, list(rows), rows[0][0], rows[-1][0]), self.now_ms)

    def answer(self, batch: Batch, offsets: list[int]) -> Answer | None:
        """What the receiver says; None for nothing yet."""
        return ACK

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Claim):
            self.pipeline.claimed(effect.number, self._claim(effect), self.now_ms)
        elif isinstance(effect, Reload):
            self.reloads.append(effect)
        elif isinstance(effect, Commit):
            self._commit(effect)
        elif isinstance(effect, StoreDeadLetters):
            self.store_tries += 1
            self.letters += effect.letters if self.store_ok else []
            self.pipeline.stored(effect.token, ok=self.store_ok, now_ms=self.now_ms)
        elif isinstance(effect, Report):
            self.reports.append(effect)
        elif isinstance(effect, Flow):
            self.flows.append(effect.paused)
        elif isinstance(effect, Send):
            offsets = [offset for fragment in effect.batch.fragments() for offset in fragment.offsets]
            self.homes |= {part.home for part in effect.batch.parts}
            self.sent.append((effect.batch.parts[0].name, offsets, effect.batch.attempt))
            answer = self.answer(effect.batch, offsets)
            if answer is not None:
                self.pipeline.answered(effect.batch.id, answer, self.now_ms, 0)

    def _claim(self, claim: Claim) -> list[list[int]] | None:
        assert self.ledger is not None
        try:
            return self.ledger.claim(claim.wants, 3 * LEASE_MS)
        except LedgerError:
            return None

    def _commit(self, commit: Commit) -> None:
        step: Step | None = self._order.begin_commit(commit.items)
        while isinstance(step, Journal | Settle):
            step = self._order.ended(ok=isinstance(step, Journal) or self._settle(step))
        items = step.items if isinstance(step, Publish) else []
        self.commits += [item.state for item in items]
        self.pipeline.committed({item.tp: self.commit_ok for item in items}, self.now_ms)

    def _settle(self, step: Settle) -> bool:
        assert self.ledger is not None
        try:
            self.ledger.settle(step.marks)
        except LedgerError:
            return False
        return True

    def run(self, steps: int = 100, by_ms: float = 50) -> None:
        """Let time pass."""
        for _ in range(steps):
            self.now_ms += by_ms
            for effect in self.pipeline.step(self.now_ms):
                self._do(effect)

    def events(self) -> list[str]:
        """Names of what was reported."""
        return [report.event for report in self.reports]


def rows(first: int, last: int, tag: int = 0) -> list[Row]:
    """Rows of one tag."""
    return [(offset, tag, None, b"%d" % offset) for offset in range(first, last + 1)]
