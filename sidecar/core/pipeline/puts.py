"""Hand-overs to the stores of delayed messages that are under way: the store's answer names the token of each."""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from sidecar.core.effects import CancelHeld, HoldUntilDue
from sidecar.core.intake.intake import Intake, Sorted
from sidecar.core.intake.known import NoIdentities
from sidecar.core.partition.holding import Put
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition


class Puts:
    """Begins and ends hand-overs; an answer to an earlier ownership is ignored.

    Args:
        intake: Reads offsets and message ids.
    """

    def __init__(self, owned: Ownerships, intake: Intake) -> None:
        self._owned = owned
        self._intake = intake
        self._last_token = 0
        self._busy: set[TopicPartition] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing is on the way."""
        return not self._busy

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop a partition that is no longer owned."""
        self._busy.discard(tp)

    def know(self, tp: TopicPartition, offsets: BitMap64, stores: Stores) -> int:
        """Take the store's delayed messages, see `Pipeline.know_held`."""
        partition = self._owned[tp]
        partition.holding.know(offsets, partition.reach.seen, stores)
        return self._begin(partition, Put(-1, 0, []))

    def _begin(self, partition: Partition, put: Put) -> int:
        token = self._token(partition)
        partition.holding.begin_put(token, put)
        return token

    def _token(self, partition: Partition) -> int:
        self._last_token += 1
        self._busy.add(partition.tp)
        return self._last_token

    def _note_end(self, partition: Partition) -> None:
        if not partition.holding.busy:
            self._busy.discard(partition.tp)

    def hold(self, partition: Partition, found: Sorted) -> HoldUntilDue:
        """The request to hold the delayed messages of a run."""
        messages, identities = found.delayed, self._intake.identities
        offsets = list(self._intake.reading.columns.offsets(messages))
        token = self._begin(partition, Put(offsets[-1], len(messages), _ids(identities, partition.tp, found)))
        due_ms, tags = list(map(found.due_ms.__getitem__, offsets)), list(map(found.tags.__getitem__, offsets))
        return HoldUntilDue(partition.tp, token, messages, due_ms, tags)

    def cancel(self, partition: Partition, names: Mapping[bytes, int]) -> CancelHeld:
        """The request to cancel held messages; those of the same run are handed over before."""
        token = self._token(partition)
        partition.holding.begin_cancel(token)
        return CancelHeld(partition.tp, token, names)

    def cancelled(self, tp: TopicPartition, token: int) -> None:
        """Record durable cancellations, see `Pipeline.cancelled`."""
        partition = self._owned.get(tp)
        if partition is not None:
            partition.holding.end_cancels(token)
            self._note_end(partition)

    def expects(self, asked: HoldUntilDue | CancelHeld) -> bool:
        """Whether the ownership that asked for this continues."""
        partition = self._owned.get(asked.tp)
        return partition is not None and partition.holding.expects(asked.token)

    def end_puts(self, tp: TopicPartition, token: int, position: int) -> int:
        """Record durable puts, see `Pipeline.held`; settle their ids, and return the number of their messages."""
        partition = self._owned.get(tp)
        if partition is None:
            return 0
        ended = partition.holding.end_put(token, position)
        for put in ended:
            partition.dues.journal_held(put.ids)
        self._note_end(partition)
        return sum(put.count for put in ended)


def _ids(identities: NoIdentities, tp: TopicPartition, found: Sorted) -> list[int]:
    return [number for number in identities.read(tp, found.delayed) if number is not None]
