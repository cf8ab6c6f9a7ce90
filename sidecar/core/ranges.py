"""Delivery of one Kafka offset range: cuts follow only from its messages. No clock, file or Spark.

The range is in Spark's checkpoint before any part of it is sent, and each cut is a pure function of its rows and of
pinned settings: so a retried task, another attempt and a restart make the same parts, with the same names and bytes.
Therefore there is no linger, no cut for a free sender and no cut by current memory use; and a part needs no intent,
because it is as durable as the range. Only the halving of a refused part is an event, and the halves are stored before
they are sent.

With a ledger, the ledger decides which rows of a part go out under which name: it gives each attempt the same answer
for claimed rows, and has the halves. Rows that twins hold leave the range (`carried`): nothing waits here for a message
of another range.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sidecar.core.batching import Buffer, Limits, halves, held_bytes
from sidecar.core.books import Books
from sidecar.core.claims import ClaimEnd
from sidecar.core.delivery.delivery import DeliveryPipeline
from sidecar.core.delivery.outbox import Stage
from sidecar.core.delivery.output import Carried, Outcome, Settled
from sidecar.core.delivery.output import Halved as OneHalved
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.effects import Claim, Effect, Report, Send, StoreDeadLetters
from sidecar.core.intake.identities import Identities
from sidecar.core.intake.intake import Intake
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.lineage import Lineage
from sidecar.core.partition.partition import Partition
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.parts import Intent, Lane, Part
from sidecar.core.records import Fragment, Run, TopicPartition
from sidecar.core.states import Event, StrayEventError
from sidecar.core.windows.dedup import RotatingSet

FLUSH_AHEAD = 256


class RangeCutter:
    """Cuts a range.

    Args:
        open_max_bytes: Size of the open rows above which the largest group is cut.
        separator: The bytes between two rows of a body.
    """

    def __init__(self, range_: Partition, limits: Limits, open_max_bytes: int, separator: bytes) -> None:
        self.cuts: Counter[str] = Counter()
        """Batches cut, by reason."""
        self._range = range_
        self._limits = limits
        self._open_max_bytes = open_max_bytes
        self._separator = separator
        self._open_bytes = 0

    def open(self, group: str, fragment: Fragment) -> Iterator[Part]:
        """Add rows; yield the parts that are full."""
        if fragment.unframeable:
            odd = Fragment((), b"", None, fragment.unframeable, fragment.at_ms)
            yield self._part_without_rows(group, odd)
            fragment = replace(fragment, unframeable=())
        if not fragment.offsets:
            return
        lane = self._range.lanes.of(group)
        self._open_bytes += lane.buffer.add_fragment(fragment)[1]
        while reason := self._full(lane):
            yield self._cut(lane, reason)

    def _part_without_rows(self, group: str, fragment: Fragment) -> Part:
        """A part of unframeable messages: they must not change where the others are cut."""
        aside = Lane(group, lane_key(group), Buffer(self._separator))
        aside.buffer.add_fragment(fragment)
        return self._range.cut(aside, Limits(1, 1))

    def _full(self, lane: Lane) -> str:
        if lane.buffer.count >= self._limits.max_messages:
            return "count"
        return "bytes" if lane.buffer.nbytes >= self._limits.max_bytes else ""

    def for_memory(self) -> Iterator[Part]:
        """Cut by the size of open rows only, which follows from the rows: the batches being sent would add chance."""
        while self._open_bytes > self._open_max_bytes:
            largest = max(self._range.lanes.values(), key=lambda lane: (lane.buffer.nbytes, lane.group))
            yield self._cut(largest, "memory")

    def rest(self) -> Iterator[Part]:
        """Cut the open rows after the last row of the range, part by part as there is room."""
        for lane in list(self._range.lanes.values()):
            while lane.buffer.fragments and len(self._range.promises.intents) < FLUSH_AHEAD:
                yield self._cut(lane, "linger")  # a micro-batch lasts as long as the linger: see the trigger

    def _cut(self, lane: Lane, reason: str) -> Part:
        part = self._range.cut(lane, self._limits)
        self._open_bytes -= part.nbytes
        self.cuts[reason] += 1
        return part


INTENTS_MAX = 1_000
"""Maximum number of parts of a range that are cut and not settled; settling one scans all."""
HIGH = 0.8
OPEN_SHARE = 2
"""Half of the budget is for open rows."""

Halved = tuple[str, int, int]
"""Group, first and last offset of a part that was replaced by its halves."""


@dataclass(frozen=True, slots=True)
class Halve:
    """Make durable that these parts were replaced by their halves; answer with `RangePipeline.halved`."""

    parts: tuple[Halved, ...]


class _Halvings:
    """The parts of a range that were replaced by their halves.

    Args:
        known: Parts that an earlier attempt replaced.
    """

    def __init__(self, known: Collection[Halved]) -> None:
        self._known = set(known)
        self._fresh: list[Halved] = []
        self._outstanding: deque[list[Intent]] = deque()
        """The intents of each `Halve` that is not durable yet."""

    def replaced(self, part: Part) -> bool:
        """Whether an attempt replaced this part by its halves."""
        return (part.group, part.first, part.last) in self._known

    def add_halved(self, halved: Halved) -> None:
        """Add a part for the next `Halve`."""
        self._fresh.append(halved)

    def take_intents(self, intents: Iterable[Intent]) -> tuple[Halved, ...]:
        """The parts of the next `Halve`; the intents that are not durable yet wait for it."""
        fresh = tuple(self._fresh)
        if fresh:
            self._known.update(fresh)
            self._outstanding.append([intent for intent in intents if not intent.durable])
            self._fresh.clear()
        return fresh

    def durable(self) -> None:
        """Record that the first outstanding `Halve` is durable.

        Raises:
            StrayEventError: No `Halve` is outstanding.
        """
        if not self._outstanding:
            raise StrayEventError("halves", Stage.ENDED, Event.DURABLE)
        for intent in self._outstanding.popleft():
            intent.move(Event.DURABLE)


class RangePipeline(DeliveryPipeline):
    """Connects reading, cutting and delivery of one range.

    Args:
        jitter: Uniform in [0, 1).
        scope: Identity of the partition in the names of parts.
        halved: The parts that an earlier attempt replaced by their halves.
        again: Whether an earlier attempt may have sent anything.
    """

    EFFECTS = (Send, Halve, Claim, StoreDeadLetters, Report)

    def __init__(
        self,
        reading: ReadingRules,
        limits: Limits,
        held_max_bytes: int,
        rules: DeliveryRules,
        jitter: Callable[[], float],
        tp: TopicPartition,
        scope: str,
        *,
        halved: Collection[Halved] = (),
        again: bool = False,
    ) -> None:
        super().__init__(rules, jitter)
        self._separator = reading.framer.separator
        self._held_max_bytes = held_max_bytes
        self._halvings = _Halvings(halved)
        self._again = again
        owned = self.partitions
        owned.limit(StateBudget(extra_bytes=1 << 62))  # a part may always be split: the room for intents is a folder
        owned.take_partition(tp, scope, PartitionState(0, 0), Lineage())
        self.range = owned[tp]
        self.intake = Intake(reading)
        self.books = Books()
        self.carried: list[Carried] = []
        """Rows that twins hold: they count as in flight, and are claimed again once the range is at its end."""
        self._cutter = RangeCutter(self.range, limits, held_max_bytes // OPEN_SHARE, self._separator)
        self._ending = False

    # Reading

    def read(self, run: Run, now_ms: float) -> None:
        """Take the next rows of the range; the end of a run must follow from the rows: a cut for memory falls there."""
        sorted_run = self.intake.sort(self.range, run, now_ms)
        self.books.read(len(run.messages), sorted_run.duplicate, sorted_run.filtered)
        for group, fragment in sorted_run.opened:
            self.memory.held_bytes += held_bytes(fragment)
            for part in self._cutter.open(group, fragment):
                self._add(part)
        for part in self._cutter.for_memory():
            self._add(part)
        self.range.read_past(run.last + 1)
        self.range.dues.drop_ids()  # a file of windows replaces the daemon's journal

    def take_up(self, group: str, first: int, last: int, fragment: Fragment) -> None:
        """Deliver rows that an earlier attempt carried out of the part from `first` to `last`, under its names."""
        self.books.read(fragment.count, 0, 0)
        self.memory.held_bytes += held_bytes(fragment)
        intent = self.range.promises.promise(lane_key(group), first, last)
        self._add(self.range.outstanding.add_part(group, intent, [fragment]))

    def _add(self, part: Part) -> None:
        part.stand(again=self._again)
        if part.count < 2 or not self._halvings.replaced(part):
            self.delivery.cut([part])
            return
        for piece in self.range.outstanding.split(part, halves(part.fragments, self._separator)):
            self._add(piece)

    def end_range(self) -> None:
        """Cut the open rows after the last row of the range, part by part as there is room."""
        self._ending = True

    # Delivery

    def take_marks(self) -> tuple[ClaimEnd, ...]:
        """Remove and return the ends of claims that are due since the last call."""
        return self.range.dues.take_all_marks()

    def halved(self) -> None:
        """Record that the parts of the first outstanding `Halve` are durable.

        Raises:
            StrayEventError: No `Halve` is outstanding.
        """
        self._halvings.durable()
        self.delivery.outbox.release_durable()

    def step(self, now_ms: float) -> list[Effect | Halve]:
        """Cut and send what is due; return all effects since the last step."""
        if self._ending:
            for part in self._cutter.rest():
                self._add(part)
        self.delivery.step(now_ms)
        self._apply_outcomes(now_ms)
        effects: list[Effect | Halve] = list(self.delivery.output.take_effects())
        if fresh := self._halvings.take_intents(self.range.promises.intents):
            effects.append(Halve(fresh))
        return effects

    def _apply(self, outcome: Outcome, now_ms: float) -> None:  # noqa: ARG002
        """Apply an outcome; nothing is committed here, so a changed state counts as durable."""
        match outcome:
            case Settled(_, name, messages):
                self.books.settle(name, messages)
            case OneHalved(_, group, first, last):
                self._halvings.add_halved((group, first, last))
            case Carried():
                self.carried.append(outcome)
            case _:  # `Changed`: a range has no owner that another one could replace
                self.range.dues.lift_barriers()
                self.delivery.outbox.release_durable()

    @property
    def cuts(self) -> Mapping[str, int]:
        """Number of batches cut, by reason."""
        return self._cutter.cuts

    @property
    def full(self) -> bool:
        """Whether reading must pause."""
        held = self.memory.held_bytes > HIGH * self._held_max_bytes
        return held or len(self.range.promises.intents) >= INTENTS_MAX or bool(self.stalled)

    @property
    def stalled(self) -> str:
        """The reason why nothing proceeds, in words for an operator; empty if there is none."""
        word, reason = self.refusal
        if word == "halted":
            return f"the sink refuses every request ({reason}); correct its address or credentials"
        if word:
            return "the receiver refused more than a tenth of 1,000 messages; correct it, and it goes on by itself"
        return ""

    @property
    def tags_refused(self) -> Mapping[str, int]:
        """Messages that were filtered by their tags, by what refused them."""
        return self.intake.refused

    @property
    def ids(self) -> RotatingSet:
        """The window of the partition's ids."""
        assert isinstance(self.intake.identities, Identities)
        return self.intake.identities.window(self.range.tp)

    def recall(self, taken: int, refused: int) -> None:
        """Add answers of the receiver to an earlier attempt or range."""
        self.delivery.receiver.recall(self.range.tp, taken, refused)

    @property
    def idle(self) -> bool:
        """Whether all messages that were read are settled."""
        return self.delivery.idle and not self.range.lanes.open()
