"""The source on RocketMQ with a listener that settles as it is told, in place of the whole daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.config.source.rocketmq import RocketMqSettings as Settings
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.remoting.source import RocketMqSource
from sidecar.state.interface import Rules, State
from tests.support.memory_state import MemoryState
from tests.support.reading import Reading
from tests.support.rocketmq import Node


class Reader(Reading[RocketMqSource]):
    """A member of a group on RocketMQ; what comes twice is there twice.

    Args:
        node: The node.
        group: The group.
        topics: What is read.
        client_id: Which member it is.
        state: Goes on from it.
        expression: What brokers filter by.
        settings: Of `source.rocketmq`.
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
        config = {"name_servers": node.name_server, "group": group, "topics": list(topics), **settings}
        parsed = Settings.model_validate(config)
        context = SourceContext(self.state, Rules(b"rule"), 4 << 20, client_id, expression=expression)
        super().__init__(RocketMqSource(parsed, context))

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

    # What a test does

    def turn(self) -> None:
        """One round of the loop; nothing is passed over."""
        for found in self.source.poll(0.02):
            if isinstance(found, Run):
                self.messages[found.tp] += found.messages
                self._positions[found.tp] = found.last + 1
            else:
                self._positions[found.tp] = found.position

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

    def commit_now(self) -> Mapping[TopicPartition, bool]:
        """Settle and commit all that was read, as a planned stop does."""
        return self.source.commit_now(self._settled())
