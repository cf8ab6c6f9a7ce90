"""The owned partitions, for all modules that look them up."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sidecar.core.lineage import Lineage
from sidecar.core.partition.partition import Partition
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition


class Ownerships(dict[TopicPartition, Partition]):
    """Owned partitions by name. A live part belongs to the ownership that is listed here."""

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self._separator = separator
        self._room = StateBudget()
        self._fenced: set[TopicPartition] = set()
        self._replays: set[TopicPartition] = set()

    @property
    def fenced(self) -> Collection[TopicPartition]:
        """Partitions that are about to be revoked: nothing of them is cut, sent or committed."""
        return self._fenced

    def fence(self, tps: Iterable[TopicPartition]) -> None:
        """Fence partitions that are about to be revoked; others are ignored, because nothing would lift their fence."""
        self._fenced.update(self.keys() & set(tps))

    def holds_back(self, batch: Batch) -> bool:
        """Whether a partition of the batch is fenced."""
        return bool(self._fenced) and any(part.tp in self._fenced for part in batch.parts)

    def limit(self, room: StateBudget) -> None:
        """Set the room for the state of partitions taken from now on."""
        self._room = room

    def separate(self, separator: bytes) -> None:
        """Set the rows' separator, while nothing is open or outstanding."""
        self._separator = separator
        for partition in self.values():
            partition.lanes.separator = separator

    def take(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage) -> None:
        """Take a partition, starting from the predecessor's state; it must not be owned already."""
        self._replays.add(tp)
        room = self._room.for_positions if tp.delayed else self._room
        self[tp] = Partition(tp, scope, state, self._separator, lineage, room)

    @property
    def replaying(self) -> bool:
        """Whether any partition still replays messages that an earlier owner had read.

        Called at every turn, so a partition that has finished is not checked again.
        """
        self._replays = {tp for tp in self._replays if tp in self and self[tp].reach.replaying}
        return bool(self._replays)

    def close(self, tp: TopicPartition) -> Partition | None:
        """Release a partition and end its parts; return it, or None if it was not owned."""
        self._fenced.discard(tp)
        partition = self.pop(tp, None)
        if partition is not None:
            partition.outstanding.close()  # an answer that comes late finds parts that live no more
        return partition
