"""Conducts the delivery of dead letters with the core that delivers messages. No clock, file or socket.

A part is fixed before it is added here, so its intent is durable. Halves of a refused part wait until theirs is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.delivery.output import Halved, Outcome, Settled
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Effect, StoreDeadLetters
from sidecar.core.lineage import Lineage
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.parts import HISTORY_MAX, Intent
from sidecar.core.records import DeadLetter, Fragment, TopicPartition
from sidecar.state.interface import StoredLetter
from sidecar.state.replays import ReplayPart


@dataclass(frozen=True, slots=True)
class HalvePart:
    """Replace a part by its halves, durably; answer with `ReplayPipeline.halved`."""

    part: ReplayPart
    halves: tuple[ReplayPart, ...]
    intents: tuple[Intent, ...]


@dataclass(frozen=True, slots=True)
class EndPart:
    """End a part, durably: delete the delivered letters, and keep the refused ones."""

    part: ReplayPart
    delivered: tuple[int, ...]
    refused: tuple[StoredLetter, ...]


@dataclass(slots=True)
class _Open:
    part: ReplayPart
    letters: Mapping[int, StoredLetter]
    """Letters by offset."""
    refused: dict[int, StoredLetter]


class ReplayPipeline(DeliveryPipeline):
    """Delivers parts of dead letters.

    Args:
        jitter: Uniform in [0, 1).
    """

    def __init__(self, rules: DeliveryRules, jitter: Callable[[], float]) -> None:
        super().__init__(rules, jitter)
        self.partitions.limit(StateBudget(extra_bytes=1 << 62))  # a part may always be split: the room is a table
        self._open: dict[Intent, _Open] = {}
        self._halves: list[HalvePart] = []
        """Halves to be made durable with the next step."""
        self.outcomes: Counter[str] = Counter()

    def begin(self, tp: TopicPartition, scope: str) -> None:
        """Start the parts of this partition and scope; those of another scope have ended."""
        self.partitions.close(tp)
        self.partitions.take(tp, scope, PartitionState(0, 0), Lineage())

    def add(self, part: ReplayPart, letters: Sequence[StoredLetter], fragment: Fragment, *, again: bool) -> None:
        """Deliver a part.

        Args:
            part: A fixed part of the partition and scope of `begin`.
            letters: The part's letters; some may be gone.
            again: Whether an earlier process may have sent it.
        """
        range_ = self.partitions[part.tp]
        intent = range_.promises.promise(lane_key(part.group), part.first, part.last)
        intent.stand(old=again)
        self._open[intent] = _Open(part, {letter.offset: letter for letter in letters}, {})
        piece = range_.outstanding.add(part.group, intent, [fragment])
        piece.life.attempts = int(again)
        self.delivery.cut([piece])

    @property
    def outstanding(self) -> int:
        return len(self._open)

    @property
    def stalled(self) -> str:
        """The reason why the receiver accepts nothing, for an operator; empty if it does."""
        word, reason = self.refusal
        if word == "halted":
            return f"the receiver refuses every request: {reason}"
        return "the receiver refused more than a tenth of the last 1,000 messages" if word else ""

    def halved(self, done: HalvePart, halves: Sequence[ReplayPart]) -> None:
        """Record that the halves of a part are durable."""
        for intent, half in zip(done.intents, halves, strict=True):
            self._open[intent].part = half
            intent.durable = True
        self.delivery.release_durable()

    def step(self, now_ms: float) -> list[Effect | HalvePart | EndPart]:
        """Send what may be sent; return all effects since the last step.

        Letters that were refused again are stored when their part ends.
        """
        self.delivery.step(now_ms)
        effects: list[Effect | HalvePart | EndPart] = []
        for effect in self.delivery.output.take_effects():
            if isinstance(effect, StoreDeadLetters):
                self._refuse(effect.letters)
                self.stored(effect.token, ok=True, now_ms=now_ms)
            else:
                effects.append(effect)
        self._apply_outcomes(now_ms)
        halves, self._halves = self._halves, []
        return [*effects, *halves, *self._ended()]

    def _apply(self, outcome: Outcome, now_ms: float) -> None:  # noqa: ARG002
        match outcome:
            case Settled(_, name, messages):
                self.outcomes[name] += messages
            case Halved():
                self._halves.append(self._halve(outcome))
            case _:
                pass  # nothing is committed

    def _refuse(self, refused: Sequence[DeadLetter]) -> None:
        """Remember the reasons; if the process ends before the part does, the part is sent and refused again."""
        for each in refused:
            opened = next(
                one for one in self._open.values()
                if one.part.tp == each.tp and one.part.group == each.group and each.offset in one.letters
            )  # fmt: skip
            opened.refused[each.offset] = _refused(opened.letters[each.offset], each)

    def _halve(self, halved: Halved) -> HalvePart:
        parent = next(
            intent for intent, each in self._open.items()
            if (each.part.tp, each.part.group, each.part.first, each.part.last) == halved
        )  # fmt: skip
        whole = self._open.pop(parent)
        intents = [
            intent
            for intent in self.partitions[halved.tp].promises.intents
            if intent.key == parent.key and halved.first <= intent.first <= intent.last <= halved.last
        ]
        for intent in intents:
            inside = range(intent.first, intent.last + 1)
            letters = {offset: letter for offset, letter in whole.letters.items() if offset in inside}
            refused = {offset: letter for offset, letter in whole.refused.items() if offset in inside}
            ids = tuple(letter.id for letter in letters.values())
            half = replace(whole.part, first=intent.first, last=intent.last, letters=ids, id=0)
            self._open[intent] = _Open(half, letters, refused)
        return HalvePart(whole.part, tuple(self._open[intent].part for intent in intents), tuple(intents))

    def _ended(self) -> list[EndPart]:
        ended = [intent for intent in self._open if not intent.live]
        return [_end(self._open.pop(intent)) for intent in ended]


def _end(opened: _Open) -> EndPart:
    delivered = tuple(letter.id for offset, letter in opened.letters.items() if offset not in opened.refused)
    return EndPart(opened.part, delivered, tuple(opened.refused.values()))


def _refused(letter: StoredLetter, now: DeadLetter) -> StoredLetter:
    """The letter with the reason for which it was refused again."""
    attempts = (*letter.attempts, *now.attempts)[-HISTORY_MAX:]
    status = now.attempts[-1].status if now.attempts else None
    return replace(letter, reason=now.reason, status=status, attempts=attempts)
