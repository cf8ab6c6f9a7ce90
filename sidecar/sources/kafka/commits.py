"""Commits with the partitions' states as metadata: begun, answered, and reported in the order in which they began."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Lineage
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Listener
from sidecar.sources.kafka.start.memory import CommitMemory, Memories
from sidecar.state.offset_map import Identity, encode
from sidecar.state.rules import Rules


@dataclass(slots=True)
class _PendingCommit:
    """A commit that is under way."""

    begun_s: float
    memories: dict[TopicPartition, CommitMemory]
    """The rows to remember by partition, once it is acknowledged."""
    told: bool = True
    """Whether its end is still to be reported."""


class KafkaCommits:
    """Makes states durable.

    Args:
        consumer: The group's consumer, used on its own thread.
        identities: Of the owned partitions; others are never named in a commit.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        listener: Listener,
        rules: Rules,
        identities: Mapping[TopicPartition, Identity],
        memories: Memories,
    ) -> None:
        self._consumer = consumer
        self._listener = listener
        self._rules = rules
        self._identities = identities
        self._memories = memories
        self._pending: deque[_PendingCommit] = deque()

    def begin(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        memories = self._made(items)
        try:
            if memories:  # commit() without offsets skips a change of metadata only
                self._consumer.commit(offsets=_offsets(memories), asynchronous=True)
                self._pending.append(_PendingCommit(time.monotonic(), memories))
                return
        except KafkaException as error:
            self._failed(error.args[0].str())
        self._listener.committed(dict.fromkeys(memories, False), 0.0)

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
        for pending in self._pending:
            pending.told = False
        memories = self._made(items)
        if not memories:
            return {}
        try:
            done = self._consumer.commit(offsets=_offsets(memories), asynchronous=False) or []
        except KafkaException as error:
            self._failed(error.args[0].str())
            return dict.fromkeys(memories, False)
        results = {TopicPartition(tp.topic, tp.partition): tp.error is None for tp in done}
        self._keep(memories, results)
        return results

    def ended(self, error: KafkaError | None, done: Sequence[ck.TopicPartition]) -> bool:
        """Handle the end of the oldest commit begun by `begin`; return whether all of it succeeded."""
        pending = self._pending.popleft()
        results = dict.fromkeys(pending.memories, False)
        results |= {TopicPartition(tp.topic, tp.partition): error is None and tp.error is None for tp in done or ()}
        good = error is None and all(results.values())
        if pending.told:
            self._keep(pending.memories, results)
            if not good:
                self._failed(str(error or next(tp.error for tp in done if tp.error is not None)))
            self._listener.committed(results, time.monotonic() - pending.begun_s)
        return good

    def close(self) -> None:
        """Write the rows that are left."""
        self._memories.close()

    def _failed(self, reason: str) -> None:
        self._listener.event("commit.failed", "warning", {"reason": reason})

    def _keep(self, memories: Mapping[TopicPartition, CommitMemory], results: Mapping[TopicPartition, bool]) -> None:
        self._memories.keep({tp: memory for tp, memory in memories.items() if results.get(tp)})

    def _made(self, items: Sequence[CommitItem]) -> dict[TopicPartition, CommitMemory]:
        return {item.tp: self._memory(item) for item in items if self._is_current(item)}

    def _memory(self, item: CommitItem) -> CommitMemory:
        identity = self._identities[item.tp]
        lineage = item.lineage or Lineage()
        text = encode(identity, self._rules.digest, item.state, item.stamp, lineage.parent, lineage.named)
        return CommitMemory.of(item.state.watermark, text, identity.topic_id, lineage)

    def _is_current(self, item: CommitItem) -> bool:
        """Whether the item is of the present ownership: the partition may have moved during the journal's write."""
        identity = self._identities.get(item.tp)
        return identity is not None and identity.scope == item.scope


def _offsets(memories: Mapping[TopicPartition, CommitMemory]) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(*tp[:2], memory.watermark, metadata=memory.text) for tp, memory in memories.items()]
