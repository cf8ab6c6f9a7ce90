"""Decides which partitions are read at present, and why others are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.delivery import Delivery
from sidecar.core.effects import Flow
from sidecar.core.intake.known import NoIdentities
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.parts import Memory
from sidecar.core.records import TopicPartition

HIGH, LOW = 0.8, 0.5


@dataclass(slots=True)
class Orders:
    """The shell's requests; `Pipeline` has a method for each, and the next step applies them."""

    draining: bool = False
    """Nothing is read, and all open messages are cut, until everything is settled or the process ends."""
    resting: bool = False
    """Nothing is read, and all is cut at once, until nothing is open: then the rules of reading can change."""
    leaving: frozenset[TopicPartition] = frozenset()
    """Owned partitions that are not read, and are cut at once: their next owner will know only the watermark."""
    state_lost: str = ""
    """Why stored state would be lost, so that nothing is read; empty if it would not."""
    store_full: str = ""
    """Why the store takes no delayed messages, so that only these are read; empty if it does."""
    unwritten_bytes: int = 0
    """Memory of settled ids that are not written yet."""


class Gate:
    """Stops reading before memory, a commit's room or the receiver's patience is used up.

    Messages that an earlier owner left open are still read if nothing else can make room: otherwise the wait would
    never end.

    Args:
        identities: Know which partitions have copies of messages of others.
        delivery: The outstanding batches, and the state of the receiver.
    """

    def __init__(
        self,
        rules: BatchRules,
        orders: Orders,
        owned: Ownerships,
        identities: NoIdentities,
        delivery: Delivery,
        memory: Memory,
    ) -> None:
        self._rules = rules
        self._orders = orders
        self._owned = owned
        self._identities = identities
        self._delivery = delivery
        self._memory = memory
        self._memory_full = False
        self._paused: frozenset[TopicPartition] = frozenset()
        self.spent: frozenset[TopicPartition] = frozenset()
        """The partitions that are paused because their span is used up."""

    def assigned(self, tp: TopicPartition) -> None:
        """Record that the source reads the partition from now on."""
        self._paused -= {tp}
        self.spent -= {tp}

    @property
    def held_bytes(self) -> int:
        """Memory of messages that are read and not settled or not written, and of dead letters being stored."""
        return self._memory.held_bytes + self._delivery.letters.held_bytes + self._orders.unwritten_bytes

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self._paused

    @property
    def stops(self) -> dict[str, str]:
        """The reasons for which nothing at all is read: a word and a sentence for each."""
        halted, refuses = self._delivery.receiver.halted, self._delivery.receiver.refuses
        reasons = {
            "draining": ("a stop was asked for", self._orders.draining),
            "memory": (f"memory.budget is used up to {HIGH:.0%}", self._memory_full),
            "halted": (f"the sink refuses every request: {halted}", halted),
            "refused": ("the receiver refused more than a tenth of 1,000 messages", refuses),
            "state_lost": (self._orders.state_lost, self._orders.state_lost),
            "delay_full": (self._orders.store_full, self._orders.store_full),
        }
        return {word: text for word, (text, holds) in reasons.items() if holds}

    def pressure(self) -> str:
        """The reason to cut everything that is open now; empty if there is none. Measures the held memory again."""
        level = HIGH if not self._memory_full else LOW
        self._memory_full = self.held_bytes > level * self._rules.held_max_bytes
        return "shutdown" if self._orders.draining else "memory" if self._memory_full else ""

    def has_read(self, run_bytes: int) -> None:
        """Record the memory of a run. Stop if another of this size would exceed the limit: large runs come singly."""
        self._memory_full |= self.held_bytes + run_bytes > self._rules.held_max_bytes

    def copies_of(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Partitions with copies of these partitions' messages: they wait until the ids of those are known."""
        if self._identities.copies is None or not tps:
            return set()
        brokers = {tp.broker for tp in tps}
        owned = [tp for tp in self._owned if tp.broker in brokers and not tp.delayed]
        return {tp for tp in owned if self._identities.has_copies(tp)}

    def awaiting(self) -> set[TopicPartition]:
        """Partitions with copies, while others of their broker are replayed: until then it is unknown what was sent."""
        if self._identities.copies is None:
            return set()
        again = [
            tp
            for tp, partition in self._owned.items()
            if partition.reach.replaying and not tp.delayed and not self._identities.has_copies(tp)
        ]
        return self.copies_of(again)

    def flow(self, wide: Sequence[Partition]) -> Flow | None:
        """The partitions to be paused from now on; None if they did not change.

        Args:
            wide: Partitions with more than half of `span_max` between watermark and position, before the step.
        """
        orders, owned = self._orders, self._owned
        is_halted, awaiting = self._delivery.receiver.doubted or bool(orders.state_lost), self.awaiting()
        if orders.draining or self._memory_full or is_halted:
            self.spent, paused = frozenset(), self._all_but_what_frees_room(awaiting, is_halted=is_halted)
        else:
            # A partition whose span is used up is paused until a quarter of it is free again.
            most, spans = self._rules.span_max, [(each.tp, each.reach) for each in wide if not each.reach.replaying]
            self.spent = frozenset(
                tp for tp, reach in spans if reach.span > (most * 3 // 4 if tp in self.spent else most)
            )
            held_back = set(owned) if orders.resting else set(owned.keys() & orders.leaving)
            if orders.store_full:  # delayed messages have no room in the store, unless it has them already
                held_back |= {tp for tp, each in owned.items() if not (tp.delayed or each.holding.is_behind)}
            paused = self.spent.union(tp for tp in held_back if not owned[tp].reach.replaying)
        paused |= awaiting
        if paused == self._paused:
            return None
        self._paused = paused
        return Flow(paused)

    def _all_but_what_frees_room(
        self, awaiting: Collection[TopicPartition], *, is_halted: bool
    ) -> frozenset[TopicPartition]:
        """Partitions to pause for lack of room. Replayed parts are complete only once read: a pause could last forever.

        The same holds for a twin claimed by an earlier owner: messages that wait for it make no room.
        """
        is_stuck = self._delivery.idle or self._delivery.awaits_twins
        if is_halted or (self._memory_full and not is_stuck):
            return frozenset(self._owned)
        replaying = [tp for tp, partition in self._owned.items() if partition.reach.replaying and tp not in awaiting]
        return frozenset(self._owned.keys() - set(replaying[:1] if self._memory_full else replaying))
