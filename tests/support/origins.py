"""Each kind of source with a broker to read from, made as the daemon makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.daemon.lifecycle import make_source
from sidecar.sources.base import Source
from sidecar.state.interface import Rules, State
from tests.support.kafka import Broker, unique
from tests.support.produce import Outgoing, produce
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import source_of
from tests.support.simulated_source import SimulatedBroker, SimulatedSource

HEADER = "colour"


class Origin(Protocol):
    """A broker, and what reads from it."""

    owns_partitions: bool
    """Whether a partition is of one member at a time; else each message is."""

    def create_topic(self, partitions: int) -> str:
        """A new topic."""
        ...

    def create_group(self) -> str:
        """A new group."""
        ...

    def send(self, topic: str, values: Sequence[bytes], partition: int, colour: bytes) -> None:
        """Send messages with a header."""
        ...

    def source(self, group: str, topic: str, state: State, member: str) -> Source:
        """A member of the group, not opened."""
        ...


def _made(source: Mapping[str, Any], folder: Path, member: str, state: State) -> Source:
    settings = {"source": source, "sink": {"console": {}}, "state": {"dir": str(folder / member)}}
    validated = Settings.model_validate(settings)
    return make_source(validated, Rules(rules_hash(validated)), state)


class KafkaOrigin:
    """A real Kafka.

    Args:
        broker: Reached by all.
        folder: Of states, whose paths name members.
    """

    owns_partitions = True

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder

    def create_topic(self, partitions: int) -> str:
        """A new topic."""
        return self._broker.create_topic(unique("topic"), partitions)

    def create_group(self) -> str:
        """A new group."""
        return unique("group")

    def send(self, topic: str, values: Sequence[bytes], partition: int, colour: bytes) -> None:
        """Send messages with a header."""
        messages = [Outgoing(partition, value, None, [(HEADER, colour)]) for value in values]
        produce(self._broker.bootstrap, topic, messages)

    def source(self, group: str, topic: str, state: State, member: str) -> Source:
        """A member of the group, not opened."""
        kafka = {"bootstrap_servers": self._broker.bootstrap, "group_id": group, "topics": [topic]}
        return _made({"kafka": kafka}, self._folder, member, state)


class RocketMqOrigin:
    """A real RocketMQ.

    Args:
        node: With a proxy for `grpc`.
        client: Reads.
        folder: Of states, whose paths name members.
    """

    def __init__(self, node: RocketMqNode, client: str, folder: Path) -> None:
        self.owns_partitions = client == "remoting"
        self._node = node
        self._client = client
        self._folder = folder

    def create_topic(self, partitions: int) -> str:
        """A new topic."""
        return self._node.create_topic(unique("topic"), partitions)

    def create_group(self) -> str:
        """A new group."""
        return self._node.create_group(unique("group"))

    def send(self, topic: str, values: Sequence[bytes], partition: int, colour: bytes) -> None:
        """Send messages with a property."""
        properties = {HEADER: colour.decode()}
        messages = [Message(value, queue=partition, properties=properties) for value in values]
        self._node.send(topic, messages, queues=partition + 1)

    def source(self, group: str, topic: str, state: State, member: str) -> Source:
        """A member of the group, not opened."""
        rocketmq = {**source_of(self._client, self._node), "group": group, "topics": [topic]}
        return _made({"rocketmq": rocketmq}, self._folder, member, state)


class SimulatedOrigin:
    """A broker in memory."""

    owns_partitions = True

    def __init__(self) -> None:
        self._broker = SimulatedBroker()

    def create_topic(self, partitions: int) -> str:
        """A new topic."""
        topic = unique("topic")
        self._broker.create_topic(topic, partitions)
        return topic

    def create_group(self) -> str:
        """A new group."""
        return unique("group")

    def send(self, topic: str, values: Sequence[bytes], partition: int, colour: bytes) -> None:
        """Send messages with a header."""
        for value in values:
            self._broker.produce(topic, value, headers=[(HEADER, colour)], partition=partition)

    def source(self, group: str, topic: str, state: State, member: str) -> Source:
        """A member of the group, not opened."""
        return SimulatedSource(self._broker, group, [topic])
