"""The loop around core and source: does the core's effects, with crashes between them. No thread, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.claims import ClaimEnd
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Commit, CommitItem, Effect, Flow, Reload, Report, Send, StoreDeadLetters
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.parts import Batch
from sidecar.core.pipeline.commit_order import CommitOrder, Publish, Settle, Step
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Answer, Columns, Message, Run, TopicPartition, Verdict
from sidecar.sinks.formats import make_framer
from sidecar.sources.base import Assignment, Source
from tests.simulation.leased_broker import Chance, SimulatedReceiver

GROUPS: dict[Any, str | None] = {b"a": "a", b"b": "b", b"c": "c", b"no": None}
DOWN = Answer(Verdict.UNANSWERED, "down")
TagOf = Callable[[Any], bytes]


class Shell:
    """A process: what it holds in memory is gone with it.

    Args:
        receiver: Takes batches.
        chance: What goes wrong.
    """

    source: Source
    pipeline: Pipeline
    wait_s = 0.0
    """How long it waits for something to read in a turn."""

    def __init__(self, receiver: SimulatedReceiver, chance: Chance) -> None:
        self._receiver, self._chance = receiver, chance
        self._order = CommitOrder()
        self._sending: list[Batch] = []
        self.events: list[str] = []

    @property
    def now_ms(self) -> float:
        """Monotonic time."""
        raise NotImplementedError

    def turn(self) -> None:
        """One round of the loop, with an answer now and then."""
        for effect in self.pipeline.step(self.now_ms):
            self._chance.crash()
            self._do(effect)
        if self._sending and self._chance.random.random() < 0.5:
            self._answer(self._sending.pop(self._chance.random.randrange(len(self._sending))))
        for found in self.source.poll(self.wait_s):
            self._chance.crash()
            if isinstance(found, Run):
                self.pipeline.read(found, self.now_ms)
            else:
                self.pipeline.read_past(found.tp, found.position, self.now_ms)
        for books in self.pipeline.books.values():
            assert books.balanced, books

    def _do(self, effect: Effect) -> None:
        match effect:
            case Commit(items):
                durable = self._durable(items)
                if durable is None:
                    self.pipeline.committed({}, self.now_ms)
                else:
                    self.source.commit(durable)
            case Send(batch):
                self._sending.append(batch)
            case StoreDeadLetters(token, _):
                self.pipeline.stored(token, ok=True, now_ms=self.now_ms)
            case Flow(paused):
                self.source.pause(paused)
            case Reload(tp):
                self.source.reload(tp)
            case Report():
                pass
            case _:
                raise AssertionError(effect)

    def _durable(self, items: list[CommitItem]) -> list[CommitItem] | None:
        """Those of which all that must be durable before their commit is; None when it is to be made again."""
        step: Step | None = self._order.begin_commit(items)
        while isinstance(step, Settle):
            step = self._order.ended(ok=self._settle(step.marks))
        return step.items if isinstance(step, Publish) else None

    def _settle(self, marks: Sequence[ClaimEnd]) -> bool:
        """Whether the ledger took these."""
        raise AssertionError(marks)

    def _answer(self, batch: Batch) -> None:
        down = self._chance(0.2)
        if not down:
            self._receiver.store(batch)
        self._chance.crash()
        answer = DOWN if down or self._chance(0.1) else Answer(Verdict.ACK, status=200)
        self.pipeline.answered(batch.id, answer, self.now_ms, 0)

    def stop(self) -> None:
        """In order: what is settled is committed, the rest is given back."""
        self._commit_now()
        self.source.close()

    def _commit_now(self) -> None:
        self.pipeline.committed({}, self.now_ms)
        items = self._durable(self.pipeline.begin_commit(list(self.pipeline.partitions)))
        self.pipeline.committed(self.source.commit_now(items or []), self.now_ms)

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Go on."""
        for one in found:
            self.pipeline.assign(one.tp, one.scope, one.state)

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """Read no more of these, and settle what was read."""
        self.pipeline.leave(tps)
        return self.pipeline.has_settled(tps)

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Commit once more."""
        self.pipeline.fence(tps)
        self._commit_now()
        self.pipeline.forget_partitions(tps)

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """Commit nothing more."""
        self.pipeline.forget_partitions(tps)

    def reloading(self, tp: TopicPartition) -> None:
        """Commit nothing more."""
        self.pipeline.forget_partitions([tp])

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """The core goes on."""
        self.pipeline.committed(results, self.now_ms)

    def waiting(self, what: str) -> None:
        pass

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note it."""
        self.events.append(name)


def reading_of(columns: Columns, tag_of: TagOf, form: str, keys: Any = None) -> ReadingRules:
    """How messages are read that have their tag there."""

    def tags_of(tp: TopicPartition, messages: Sequence[Message]) -> list[Any]:
        return [tag_of(message) for message in messages]

    framer = make_framer(form, columns, lambda tp, messages: [(tag_of(message),) for message in messages])  # type: ignore[arg-type]
    return ReadingRules(columns, framer, tags_of, GROUPS, keys=keys)


def batching_of(chance: Chance, held_max_bytes: int) -> BatchRules:
    """Batches of any kind."""
    return BatchRules(
        by_group=chance.random.random() < 0.3, limits=Limits(chance.random.choice([1, 5, 20]), 10_000),
        linger_ms=50, span_max=10_000, held_max_bytes=held_max_bytes,
    )  # fmt: skip


def delivery_of(*, ordered: bool, lease_ms: int | None = None, numbered: bool = False) -> DeliveryRules:
    """Two requests at once."""
    return DeliveryRules(
        backoff=Backoff(10, 100), concurrency=2, ordered=ordered, separator=b"\n", lease_ms=lease_ms, numbered=numbered
    )
