"""The partitions that are ours, for all that look them up."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sidecar.core.lineage import Lineage
from sidecar.core.partition.partition import Partition
from sidecar.core.partition.room import Room
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition


class Ownerships(dict[TopicPartition, Partition]):
    """Partitions by name. A part that is alive belongs to the one that stands here under its name.

    Args:
        separator: The rows' separator.
    """

    def __init__(self, separator: bytes) -> None:
        super().__init__()
        self._separator = separator
        self._room = Room()
        self._fenced: set[TopicPartition] = set()
        self._replays: set[TopicPartition] = set()

    @property
    def fenced(self) -> Collection[TopicPartition]:
        """Partitions that are about to be taken away: nothing of them is cut, sent or committed any more."""
        return self._fenced

    def fence(self, tps: Iterable[TopicPartition]) -> None:
        """These are about to be taken away; of one that is gone nobody would lift it."""
        self._fenced.update(self.keys() & set(tps))

    def holds_back(self, batch: Batch) -> bool:
        """Whether some of the batch is fenced."""
        return bool(self._fenced) and any(part.tp in self._fenced for part in batch.parts)

    def limit(self, room: Room) -> None:
        """So much the state may take of partitions that are taken from now on."""
        self._room = room

    def take(self, tp: TopicPartition, scope: str, state: PartitionState, lineage: Lineage) -> None:
        """The partition is ours, from the predecessor's state on; it must not be ours already."""
        self._replays.add(tp)
        self[tp] = Partition(tp, scope, state, self._separator, lineage, self._room)

    @property
    def replaying(self) -> bool:
        """Whether what an earlier life had seen of any is still to be read again.

        Asked at every turn, so a partition that has read all of it is not looked at again.
        """
        self._replays = {tp for tp in self._replays if tp in self and self[tp].reach.replaying}
        return bool(self._replays)

    def close(self, tp: TopicPartition) -> Partition | None:
        """The partition is not ours any more, and its parts live no more; None when it was not ours before."""
        self._fenced.discard(tp)
        partition = self.pop(tp, None)
        if partition is not None:
            partition.outstanding.close()  # an answer that comes late finds parts that live no more
        return partition
