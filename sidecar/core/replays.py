"""Delivery of dead letters that are sent again. No clock, file or socket.

A part is durable before it is added here, under its name, so it needs no intent; halves of a refused part wait until
they are durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.delivery.output import Halved, Outcome
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Effect, Report, Send, StoreDeadLetters
from sidecar.core.lineage import Lineage
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.parts import Intent
from sidecar.core.records import DeadLetter, Fragment, TopicPartition
from sidecar.core.states import Event


class ReplayedPart(NamedTuple):
    """The letters of a group from `first` to `last`."""

    tp: TopicPartition
    group: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HalvePart:
    """Replace a part by its halves, durably; answer with `ReplayPipeline.halved`."""

    part: ReplayedPart
    halves: tuple[ReplayedPart, ...]


@dataclass(frozen=True, slots=True)
class EndPart:
    """End a part, durably: all of its letters were delivered, but for those that were refused again."""

    part: ReplayedPart
    refused: tuple[DeadLetter, ...]


class ReplayPipeline(DeliveryPipeline):
    """Delivers parts of dead letters.

    Args:
        jitter: Uniform in [0, 1).
    """

    EFFECTS = (Send, HalvePart, EndPart, Report)

    def __init__(self, rules: DeliveryRules, jitter: Callable[[], float]) -> None:
        super().__init__(rules, jitter)
        self.partitions.limit(StateBudget(extra_bytes=1 << 62))  # a part may always be split: the room is a table
        self._open: dict[ReplayedPart, Intent] = {}
        self._halved: list[ReplayedPart] = []
        """Parts whose halves are to be made durable with the next step."""
        self._refused: list[DeadLetter] = []
        """Letters of open parts that were refused again."""

    def begin_partition(self, tp: TopicPartition, scope: str) -> None:
        """Start the parts of this partition and scope; those of another scope have ended."""
        self.partitions.close(tp)
        self.partitions.take_partition(tp, scope, PartitionState(0, 0), Lineage())

    def add_part(self, part: ReplayedPart, fragment: Fragment, *, again: bool) -> None:
        """Deliver a part.

        Args:
            part: A durable part of the partition of `begin_partition`.
            fragment: Its rows; letters between them may be gone.
            again: Whether an earlier process may have sent it.
        """
        partition = self.partitions[part.tp]
        intent = self._open[part] = partition.promises.promise(lane_key(part.group), part.first, part.last)
        piece = partition.outstanding.add_part(part.group, intent, [fragment])
        piece.stand(again=again)
        self.delivery.cut([piece])

    @property
    def outstanding(self) -> int:
        """Number of parts that have not ended."""
        return len(self._open)

    @property
    def stalled(self) -> str:
        """The reason why the receiver accepts nothing, for an operator; empty if it does."""
        word, reason = self.refusal
        if word == "halted":
            return f"the receiver refuses every request: {reason}"
        return "the receiver refused more than a tenth of the last 1,000 messages" if word else ""

    def halved(self, effect: HalvePart) -> None:
        """Record that the halves of a part are durable."""
        for half in effect.halves:
            self._open[half].move(Event.DURABLE)
        self.delivery.outbox.release_durable()

    def step(self, now_ms: float) -> list[Effect | HalvePart | EndPart]:
        """Send what may be sent; return all effects since the last step.

        Letters that are refused again need no store before their part ends: until then, it would be sent again.
        """
        self.delivery.step(now_ms)
        effects: list[Effect | HalvePart | EndPart] = []
        for effect in self.delivery.output.take_effects():
            if isinstance(effect, StoreDeadLetters):
                self._refused += effect.letters
                self.stored(effect.token, ok=True, now_ms=now_ms)
            else:
                effects.append(effect)
        self._apply_outcomes(now_ms)
        halved, self._halved = self._halved, []
        effects += [self._halve(part) for part in halved]
        effects += [self._end(part) for part, intent in list(self._open.items()) if not intent.live]
        return effects

    def _apply(self, outcome: Outcome, now_ms: float) -> None:  # noqa: ARG002
        if isinstance(outcome, Halved):  # nothing is counted or committed here
            self._halved.append(ReplayedPart(*outcome))

    def _halve(self, part: ReplayedPart) -> HalvePart:
        whole = self._open.pop(part)
        intents = [
            intent
            for intent in self.partitions[part.tp].promises.intents
            if intent.key == whole.key and part.first <= intent.first <= intent.last <= part.last
        ]
        halves = {part._replace(first=intent.first, last=intent.last): intent for intent in intents}
        self._open |= halves
        return HalvePart(part, tuple(halves))

    def _end(self, part: ReplayedPart) -> EndPart:
        del self._open[part]
        refused = tuple(letter for letter in self._refused if _is_of(letter, part))
        self._refused = [letter for letter in self._refused if not _is_of(letter, part)]
        return EndPart(part, refused)


def _is_of(letter: DeadLetter, part: ReplayedPart) -> bool:
    return (letter.tp, letter.group) == (part.tp, part.group) and part.first <= letter.offset <= part.last
