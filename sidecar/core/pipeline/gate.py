"""Which partitions are read at present, and why others are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sidecar.core.cutting.cutting import BatchRules
from sidecar.core.cutting.memory import Memory
from sidecar.core.delivery.delivery import Delivery
from sidecar.core.effects import Flow
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.partition import Partition
from sidecar.core.pipeline.origins import Origins
from sidecar.core.records import TopicPartition

HIGH, LOW = 0.8, 0.5


class Orders:
    """What the shell asks for: it is told here, and looked at with the next step."""

    def __init__(self) -> None:
        self._draining = False
        self._state_lost = ""
        self._unwritten_bytes = 0
        self._leaving: frozenset[TopicPartition] = frozenset()

    def drain(self) -> None:
        """Nothing is read any more, and all that is open is cut: until all is settled, or the process ends."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether that was asked for."""
        return self._draining

    def lose_state(self, reason: str) -> None:
        """What is stored would be lost: nothing is read while there is such a reason; empty when there is none."""
        self._state_lost = reason

    @property
    def state_lost(self) -> str:
        """Why what is stored would be lost, while that is so."""
        return self._state_lost

    def count_unwritten(self, nbytes: int) -> None:
        """So many bytes of message ids are settled and wait for the disk."""
        self._unwritten_bytes = nbytes

    @property
    def unwritten_bytes(self) -> int:
        """So many as were told last."""
        return self._unwritten_bytes

    def leave(self, tps: Iterable[TopicPartition]) -> None:
        """The next owner of these will know the watermark alone: read them no more, and cut them at once."""
        self._leaving = frozenset(tps)

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        """The partitions of which that was asked, and that are ours still."""
        return self._leaving

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._leaving -= {tp}


class Gate:
    """Stops reading before memory, a commit's room or the receiver's patience is used up.

    What an earlier life left is read all the same where nothing else could make room: a wait for it would have no end.

    Args:
        rules: The bounds.
        orders: What the shell asks for.
        owned: The partitions that are ours.
        origins: Which wait for others.
        delivery: What is outstanding, and what is thought of the receiver.
        memory: What is held.
    """

    def __init__(
        self,
        rules: BatchRules,
        orders: Orders,
        owned: Ownerships,
        origins: Origins,
        delivery: Delivery,
        memory: Memory,
    ) -> None:
        self._rules = rules
        self._orders = orders
        self._owned = owned
        self._origins = origins
        self._delivery = delivery
        self._memory = memory
        self._memory_full = False
        self._paused: frozenset[TopicPartition] = frozenset()

    def assigned(self, tp: TopicPartition) -> None:
        """The source reads the partition from now on."""
        self._paused -= {tp}

    @property
    def held_bytes(self) -> int:
        """Bytes of memory of what was read and is not settled or not written, dead letters on their way among it."""
        return self._memory.held_bytes + self._delivery.letters.held_bytes + self._orders.unwritten_bytes

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are not read at present."""
        return self._paused

    @property
    def stops(self) -> dict[str, str]:
        """Why nothing at all is read: a word and a sentence for each reason."""
        halted, refuses = self._delivery.receiver.halted, self._delivery.receiver.refuses
        reasons = {
            "draining": ("a stop was asked for", self._orders.draining),
            "memory": (f"memory.budget is used up to {HIGH:.0%}", self._memory_full),
            "halted": (f"the sink refuses every request: {halted}", halted),
            "refused": ("the receiver refused more than a tenth of 1,000 messages", refuses),
            "state_lost": (self._orders.state_lost, self._orders.state_lost),
        }
        return {word: text for word, (text, holds) in reasons.items() if holds}

    def pressure(self) -> str:
        """Why everything open is to be cut now; empty when it is not. Looks at what is held anew."""
        level = HIGH if not self._memory_full else LOW
        self._memory_full = self.held_bytes > level * self._rules.held_max_bytes
        return "shutdown" if self._orders.draining else "memory" if self._memory_full else ""

    def has_read(self, run_bytes: int) -> None:
        """A run has brought so much. One more like it waits where it would be too much: large ones come one by one."""
        self._memory_full |= self.held_bytes + run_bytes > self._rules.held_max_bytes

    def wide(self) -> list[Partition]:
        """Partitions with more than half of `span_max` between watermark and position."""
        half = self._rules.span_max // 2
        return [partition for partition in self._owned.values() if partition.reach.span > half]

    def flow(self, wide: Sequence[Partition]) -> Flow | None:
        """What is to be paused from now on; None while that is as before.

        Args:
            wide: As `wide` told at the step's begin.
        """
        stopped = self._orders.draining or self._memory_full or self._halted
        paused = self._all_but_what_frees_room() if stopped else self._held_back(wide)
        paused |= self._origins.awaited()
        if paused == self._paused:
            return None
        self._paused = paused
        return Flow(paused)

    @property
    def _halted(self) -> bool:
        return self._delivery.receiver.doubted or bool(self._orders.state_lost)

    def _held_back(self, wide: Sequence[Partition]) -> frozenset[TopicPartition]:
        """Those whose span is used up, until a quarter of it is free again, and those that leave."""
        most, before = self._rules.span_max, self._paused
        spans = [(partition.tp, partition.reach) for partition in wide if not partition.reach.replaying]
        paused = {tp for tp, reach in spans if reach.span > (most * 3 // 4 if tp in before else most)}
        leaving = self._owned.keys() & self._orders.leaving
        return frozenset(paused | {tp for tp in leaving if not self._owned[tp].reach.replaying})

    def _all_but_what_frees_room(self) -> frozenset[TopicPartition]:
        """What an earlier life left is whole only once it was read again: not to read it could be a wait for ever.

        So it is with a twin that was claimed in that life: what waits for it makes no room.
        """
        is_stuck = self._delivery.idle or self._delivery.awaits_twins
        if self._halted or (self._memory_full and not is_stuck):
            return frozenset(self._owned)
        waiting = self._origins.awaited()
        replaying = [tp for tp, partition in self._owned.items() if partition.reach.replaying and tp not in waiting]
        return frozenset(self._owned.keys() - set(replaying[:1] if self._memory_full else replaying))
