"""The source on RocketMQ with a listener that settles as it is told, in place of the whole daemon."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sidecar.config.source import RocketMqSource as Settings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.state import PartitionState
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import Assignment
from sidecar.sources.rocketmq.remoting.source import RocketMqSource
from sidecar.sources.rocketmq.wire.messages import StoredMessage
from sidecar.state.interface import State
from sidecar.state.memory import MemoryState
from tests.support.process import wait_until
from tests.support.rocketmq import Node

PATIENCE_S = 60.0


class Reader:
    """A member of a group that reads, and commits what it read when a test says so.

    Args:
        node: The node.
        group: The group.
        topics: What is read.
        client_id: Which member it is.
        state: Goes on from it.
        expression: What brokers filter by.
        settings: Of `source.rocketmq`.

    Attributes:
        assignments: What it has, by queue.
        messages: What it read since the queue was assigned last, by queue.
        events: What it would have logged: names and fields.
    """

    def __init__(
        self,
        node: Node,
        group: str,
        topics: Sequence[str],
        *,
        client_id: str = "reader",
        state: State | None = None,
        expression: str = "*",
        **settings: Any,
    ) -> None:
        self.state = state or MemoryState()
        self.assignments: dict[TopicPartition, Assignment] = {}
        self.messages: dict[TopicPartition, list[StoredMessage]] = {}
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.commits: list[Mapping[TopicPartition, bool]] = []
        self._positions: dict[TopicPartition, int] = {}
        config = {"name_servers": node.name_server, "group": group, "topics": list(topics), **settings}
        self.source = RocketMqSource(
            Settings.model_validate(config), self.state, b"rule", 4 << 20, client_id, expression
        )
        self.source.open(self)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._dead:
            self.source.close()

    _dead = False

    def die(self) -> None:
        """End as a process does that is killed: connections break, nothing is said."""
        self.source._cluster.network.close()
        self._dead = True

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Note them."""
        for one in found:
            self.assignments[one.tp] = one
            self.messages[one.tp] = []
            self._positions[one.tp] = one.state.watermark

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """Nothing is held."""
        return True

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Settle nothing more, forget."""
        self.lost(tps)

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """Forget."""
        for tp in tps:
            del self.assignments[tp]

    def reloading(self, tp: TopicPartition) -> None:
        """Forget."""
        self.lost([tp])

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
        """One round of the loop."""
        for found in self.source.poll(0.02):
            if isinstance(found, Run):
                self.messages[found.tp] += found.messages
                self._positions[found.tp] = found.last + 1
            else:
                self._positions[found.tp] = found.position

    def until(self, condition: Any, what: str) -> Any:
        """Go round until a condition holds."""

        def met() -> Any:
            self.turn()
            return condition()

        return wait_until(met, PATIENCE_S, what, detail=lambda: (self.bodies(), self.events, self.source.problems()))

    def bodies(self) -> list[bytes]:
        """All bodies that were read, sorted."""
        return sorted(message.body for messages in self.messages.values() for message in messages)

    def read(self, count: int) -> list[bytes]:
        """Go round until so many messages were read, and give their bodies."""
        self.until(lambda: len(self.bodies()) >= count, f"{count} messages are read")
        return self.bodies()

    def own(self, count: int, topic: str) -> set[TopicPartition]:
        """Go round until so many queues of a topic are ours."""

        def ours() -> set[TopicPartition]:
            return {tp for tp in self.assignments if tp.topic == topic}

        self.until(lambda: len(ours()) == count, f"{count} queues of {topic} are ours")
        return ours()

    def commit(self) -> Mapping[TopicPartition, bool]:
        """Settle all that was read, begin to commit it, and go round until it is told how that ended."""
        self.commits.clear()
        self.source.commit(self._settled())
        self.until(lambda: self.commits, "the commit ends")
        return self.commits[0]

    def commit_now(self) -> Mapping[TopicPartition, bool]:
        """Settle and commit all that was read, as a planned stop does."""
        return self.source.commit_now(self._settled())

    def _settled(self) -> list[CommitItem]:
        return [
            CommitItem(tp, one.scope, PartitionState(self._positions[tp], self._positions[tp]))
            for tp, one in self.assignments.items()
        ]
