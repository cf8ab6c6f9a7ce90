"""A broker in memory: topics, groups and their offsets. It uses no socket and no clock."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sidecar.core.records import Header, TopicPartition

CHUNK_MESSAGES = 500
"""Maximum number of messages of one partition that a poll returns."""


class SimulatedMessage(NamedTuple):
    """A message as the broker stores it."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None


class SimulatedCommit(NamedTuple):
    """A group's offset in a partition; without metadata, it is an operator's reset."""

    offset: int
    metadata: str = ""


@dataclass(slots=True)
class _SimulatedLog:
    messages: list[SimulatedMessage] = field(default_factory=list)
    first: int = 0
    """The lowest offset that can be read."""


@dataclass(slots=True)
class _SimulatedTopic:
    id: str
    logs: list[_SimulatedLog]


class SimulatedMember(Protocol):
    """A member that shares a group's partitions with others."""

    group: str
    topics: Sequence[str]


class SimulatedMembers:
    """The members of each group, and the partitions that they own; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[str, list[SimulatedMember]] = defaultdict(list)
        self._owners: dict[tuple[str, TopicPartition], SimulatedMember] = {}

    def join(self, member: SimulatedMember) -> None:
        """Let a member share the group's partitions."""
        with self._lock:
            self._members[member.group].append(member)

    def leave(self, member: SimulatedMember) -> None:
        """Remove a member that left or whose session ended; its partitions are free. Harmless when repeated."""
        with self._lock:
            if member in self._members[member.group]:
                self._members[member.group].remove(member)
            self._owners = {key: owner for key, owner in self._owners.items() if owner is not member}

    def share(self, member: SimulatedMember, topics: Mapping[str, Sequence[TopicPartition]]) -> set[TopicPartition]:
        """The partitions of these topics that this member should own: each topic is divided among its members."""
        with self._lock:
            shares: set[TopicPartition] = set()
            for topic, tps in topics.items():
                readers = [other for other in self._members[member.group] if topic in other.topics]
                shares.update(tps[readers.index(member) :: len(readers)] if member in readers else ())
            return shares

    def acquire(self, member: SimulatedMember, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Become the owner of those partitions that have none; return these, sorted."""
        with self._lock:
            free = [tp for tp in sorted(tps) if (member.group, tp) not in self._owners]
            self._owners |= {(member.group, tp): member for tp in free}
            return free

    def release(self, member: SimulatedMember, tps: Collection[TopicPartition]) -> None:
        """Stop owning these partitions."""
        with self._lock:
            for tp in tps:
                if self._owners.get((member.group, tp)) is member:
                    del self._owners[member.group, tp]


class SimulatedBroker:
    """Topics, groups and their offsets; from any thread.

    Attributes:
        failing: While this is set, nothing is read, commits fail, and every source reports this text as its problem.
    """

    def __init__(self) -> None:
        self.failing = ""
        self._lock = threading.RLock()
        self._topics: dict[str, _SimulatedTopic] = {}
        self.members = SimulatedMembers()
        self._committed: dict[tuple[str, TopicPartition], SimulatedCommit] = {}

    # Topics

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; it gets another id than a deleted topic of the same name."""
        with self._lock:
            if name in self._topics:
                raise ValueError(f"there is a topic {name} already")
            self._topics[name] = _SimulatedTopic(secrets.token_hex(8), [_SimulatedLog() for _ in range(partitions)])

    def delete_topic(self, name: str) -> None:
        """Delete a topic; as with Kafka, groups keep their offsets."""
        with self._lock:
            del self._topics[name]

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int = 0,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a message; return its offset."""
        with self._lock:
            log = self._topics[topic].logs[partition]
            offset = log.messages[-1].offset + 1 if log.messages else log.first
            log.messages.append(SimulatedMessage(offset, value, key, headers, timestamp_ms))
            return offset

    def expire(self, topic: str, partition: int, below: int) -> None:
        """Delete the messages below an offset, as retention does."""
        with self._lock:
            log = self._topics[topic].logs[partition]
            log.messages = [message for message in log.messages if message.offset >= below]
            log.first = max(log.first, below)

    def topic_id(self, topic: str) -> str:
        """The topic's id, empty while there is no such topic."""
        with self._lock:
            return self._topics[topic].id if topic in self._topics else ""

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """The topic's partitions, none while there is no such topic."""
        with self._lock:
            known = self._topics.get(topic)
            return [TopicPartition(topic, number) for number in range(len(known.logs) if known else 0)]

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """The lowest offset that can be read, and that of the next message; zeros if there is no such topic."""
        with self._lock:
            if tp.topic not in self._topics:
                return 0, 0
            log = self._topics[tp.topic].logs[tp.partition]
            return log.first, log.messages[-1].offset + 1 if log.messages else log.first

    def read(self, tp: TopicPartition, offset: int, count: int = CHUNK_MESSAGES) -> list[SimulatedMessage]:
        """Messages from an offset on, in order."""
        with self._lock:
            if self.failing or tp.topic not in self._topics:
                return []
            log = self._topics[tp.topic].logs[tp.partition]
            start = max(0, offset - log.messages[0].offset) if log.messages else 0
            return log.messages[start : start + count]

    # Offsets

    def committed(self, group: str, tp: TopicPartition) -> SimulatedCommit | None:
        """The group's commit of a partition, None if there is none."""
        with self._lock:
            return self._committed.get((group, tp))

    def commit(self, group: str, tp: TopicPartition, committed: SimulatedCommit | None) -> None:
        """Set a group's offset, or delete it; without metadata this is an operator's reset."""
        with self._lock:
            if committed is None:
                self._committed.pop((group, tp), None)
            else:
                self._committed[group, tp] = committed
