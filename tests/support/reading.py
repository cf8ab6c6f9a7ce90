"""A listener that settles as a test says, in place of the whole daemon, over any source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment, Source
from tests.support.process import wait_until

PATIENCE_S = 60.0

S = TypeVar("S", bound=Source)


class Reading(Generic[S]):
    """Reads from a source, and commits what it read when a test says so.

    Args:
        source: Opened here.

    Attributes:
        assignments: What it has, by partition.
        messages: What it read of a partition since that was assigned last.
        events: What it would have logged: names and fields.
        changes: What the listener was told of partitions, in order: a word and the partitions.
    """

    def __init__(self, source: S) -> None:
        self.source = source
        self.assignments: dict[TopicPartition, Assignment] = {}
        self.messages: dict[TopicPartition, list[Any]] = {}
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.commits: list[Mapping[TopicPartition, bool]] = []
        self.changes: list[tuple[str, frozenset[TopicPartition]]] = []
        self._positions: dict[TopicPartition, int] = {}
        self._settles_when_revoked = False
        self.source.open(self)

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Note them."""
        self.changes.append(("assigned", frozenset(one.tp for one in found)))
        for one in found:
            self.assignments[one.tp] = one
            self.messages[one.tp] = []
            self._positions[one.tp] = one.state.watermark

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """Nothing is held."""
        return True

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Settle what was read if that was asked for, and forget."""
        self.changes.append(("revoking", frozenset(tps)))
        if self._settles_when_revoked:
            self.source.commit_now([item for item in self._settled() if item.tp in tps])
        self._forget(tps)

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """Forget."""
        self.changes.append(("lost", frozenset(tps)))
        self._forget(tps)

    def reloading(self, tp: TopicPartition) -> None:
        """Forget."""
        self.changes.append(("reloading", frozenset([tp])))
        self._forget([tp])

    def _forget(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            del self.assignments[tp]

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """Note it."""
        self.commits.append(results)

    def waiting(self, what: str) -> None:
        pass

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note it."""
        self.events.append((name, fields))

    def told(self, name: str) -> list[Mapping[str, object]]:
        """The fields of all events of a name."""
        return [fields for event, fields in self.events if event == name]

    # What a test does

    def turn(self) -> None:
        """One round of the loop; what is read must be of a partition that was assigned."""
        for found in self.source.poll(0.02):
            assert found.tp in self.assignments, f"{found} is of no partition that was assigned"
            if isinstance(found, Run):
                position, offsets = self._positions[found.tp], self.source.columns.offsets(found.messages)
                # What stands below the position is a duplicate, as the core has it.
                new = [message for message, offset in zip(found.messages, offsets, strict=True) if offset >= position]
                self.messages[found.tp] += new
                self._positions[found.tp] = max(found.last + 1, position)
            else:
                self._positions[found.tp] = max(found.position, self._positions[found.tp])

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Go round until a condition holds."""

        def met() -> Any:
            self.turn()
            return condition()

        return wait_until(met, PATIENCE_S, what, detail=lambda: (self.values(), self.events, self.source.problems()))

    def values(self) -> list[bytes | None]:
        """All values that were read since their partitions were assigned, partition after partition."""
        return [value for messages in self.messages.values() for value in self.source.columns.values(messages)]

    def read(self, count: int) -> Sequence[bytes | None]:
        """Go round until so many messages were read, and give their values."""
        self.until(lambda: len(self.values()) >= count, f"{count} messages are read")
        return self.values()

    def commit(self) -> Mapping[TopicPartition, bool]:
        """Settle all that was read, begin to commit it, and go round until it is told how that ended."""
        self.commits.clear()
        self.source.commit(self._settled())
        self.until(lambda: self.commits, "the commit ends")
        return self.commits[0]

    def close(self, *, settle: bool) -> None:
        """End as a planned stop does, having settled all that was read or nothing more."""
        self._settles_when_revoked = settle
        if settle:
            self.source.commit_now(self._settled())
        self.source.close()

    def _settled(self) -> list[CommitItem]:
        return [
            CommitItem(tp, one.scope, PartitionState(self._positions[tp], self._positions[tp]))
            for tp, one in self.assignments.items()
        ]
