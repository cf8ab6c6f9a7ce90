"""A broker in memory and its source, for tests of the daemon and of users. No socket, thread or clock.

As far as a pipeline can see, the source behaves like Kafka: partitions of a topic are divided among the members of a
group, the committed offset carries metadata, a recreated topic has another id, and an offset without metadata is an
operator's reset.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import TOKEN_BITS, Lineage
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Columns, GetterColumns, Header, Original, Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.base import Assignment, Listener, ReadPast, Tell
from sidecar.state.offset_map import Identity, Origin, decode, encode

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


class SimulatedMembers:
    """The members of each group, and the partitions that they own; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[str, list[SimulatedSource]] = defaultdict(list)
        self._owners: dict[tuple[str, TopicPartition], SimulatedSource] = {}

    def join(self, member: SimulatedSource) -> None:
        with self._lock:
            self._members[member.group].append(member)

    def leave(self, member: SimulatedSource) -> None:
        """Remove a member that left or whose session ended; its partitions are free. Harmless when repeated."""
        with self._lock:
            if member in self._members[member.group]:
                self._members[member.group].remove(member)
            self._owners = {key: owner for key, owner in self._owners.items() if owner is not member}

    def share(self, member: SimulatedSource, topics: Mapping[str, Sequence[TopicPartition]]) -> set[TopicPartition]:
        """The partitions of these topics that this member should own: each topic is divided among its members."""
        with self._lock:
            shares: set[TopicPartition] = set()
            for topic, tps in topics.items():
                readers = [other for other in self._members[member.group] if topic in other.topics]
                shares.update(tps[readers.index(member) :: len(readers)] if member in readers else ())
            return shares

    def acquire(self, member: SimulatedSource, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Become the owner of those partitions that have none; return these, sorted."""
        with self._lock:
            free = [tp for tp in sorted(tps) if (member.group, tp) not in self._owners]
            self._owners |= {(member.group, tp): member for tp in free}
            return free

    def release(self, member: SimulatedSource, tps: Collection[TopicPartition]) -> None:
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
        self._topics: dict[str, tuple[str, list[_SimulatedLog]]] = {}
        """The id of each topic, and a log for each of its partitions."""
        self.members = SimulatedMembers()
        self._committed: dict[tuple[str, TopicPartition], SimulatedCommit] = {}

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; it gets another id than a deleted topic of the same name."""
        with self._lock:
            if name in self._topics:
                raise ValueError(f"there is a topic {name} already")
            self._topics[name] = secrets.token_hex(8), [_SimulatedLog() for _ in range(partitions)]

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
            log = self._topics[topic][1][partition]
            offset = log.messages[-1].offset + 1 if log.messages else log.first
            log.messages.append(SimulatedMessage(offset, value, key, headers, timestamp_ms))
            return offset

    def expire(self, topic: str, partition: int, below: int) -> None:
        """Delete the messages below an offset, as retention does."""
        with self._lock:
            log = self._topics[topic][1][partition]
            log.messages = [message for message in log.messages if message.offset >= below]
            log.first = max(log.first, below)

    def topic_id(self, topic: str) -> str:
        """The topic's id, empty while there is no such topic."""
        with self._lock:
            return self._topics[topic][0] if topic in self._topics else ""

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """The topic's partitions, none while there is no such topic."""
        with self._lock:
            _, logs = self._topics.get(topic, ("", ()))
            return [TopicPartition(topic, number) for number in range(len(logs))]

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """The lowest offset that can be read, and that of the next message; zeros if there is no such topic."""
        with self._lock:
            if tp.topic not in self._topics:
                return 0, 0
            log = self._topics[tp.topic][1][tp.partition]
            return log.first, log.messages[-1].offset + 1 if log.messages else log.first

    def read(self, tp: TopicPartition, offset: int, count: int = CHUNK_MESSAGES) -> list[SimulatedMessage]:
        """Messages from an offset on, in order."""
        with self._lock:
            if self.failing or tp.topic not in self._topics:
                return []
            log = self._topics[tp.topic][1][tp.partition]
            start = max(0, offset - log.messages[0].offset) if log.messages else 0
            return log.messages[start : start + count]

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


CLUSTER = "simulated"


SIMULATED_COLUMNS = GetterColumns(*map(attrgetter, ("offset", "timestamp_ms", "key", "headers", "value")))


@dataclass(slots=True)
class _Owned:
    identity: Identity
    position: int
    told_end: int = -1
    """The position last reported to the listener."""

    def read(self, broker: SimulatedBroker, tp: TopicPartition) -> Iterable[Run | ReadPast]:
        """The next messages of the partition, or its position."""
        messages = broker.read(tp, self.position)
        if messages:
            self.position = messages[-1].offset + 1
            yield Run(tp, messages, messages[0].offset, messages[-1].offset)
        elif self.told_end != self.position:
            self.told_end = self.position
            yield ReadPast(tp, self.position)


class SimulatedSource:
    """A `Source`: a member of a group on a simulated broker.

    Args:
        rules: 4 bytes, the hash of the rules: other rules discard the committed state.
    """

    name = "Simulated"
    columns: Columns = SIMULATED_COLUMNS
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = 0.05
    is_emptied = True
    no_lane: str | None = None
    lane_bytes = 0

    def __init__(self, broker: SimulatedBroker, group: str, topics: Sequence[str], rules: bytes = b"rule") -> None:
        self.group = group
        self.topics = topics
        self._broker = broker
        self._rules = rules
        self._owned: dict[TopicPartition, _Owned] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._joined = False
        self._begun: list[Mapping[TopicPartition, bool]] = []
        """The results of commits whose ends are not reported yet."""

    def open(self, listener: Listener) -> None:
        """Join the group.

        Raises:
            UnavailableError: The broker is failing, or a topic is unknown.
        """
        self._listener = listener
        missing = [topic for topic in self.topics if not self._broker.topic_id(topic)]
        if self._broker.failing or missing:
            raise UnavailableError(self._broker.failing or f"there is no topic {missing[0]}")
        self._broker.members.join(self)

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived, in the order of each partition; calls the listener meanwhile, and never waits."""
        begun, self._begun = self._begun, []
        for committed in begun:
            self._listener.committed(committed, 0.0)
        if self._broker.failing:
            return []
        self._rebalance()
        results: list[Run | ReadPast] = []
        for tp in sorted(self._owned.keys() - self._paused):
            if self._owned[tp].position < self._broker.bounds(tp)[0]:
                self._listener.event("offset.out_of_range", "warning", tp.fields())
                self.reload(tp)
            results += self._owned[tp].read(self._broker, tp)
        return results

    def pause(self, tps: Collection[TopicPartition]) -> None:
        self._paused = frozenset(tps)

    def end_of(self, tp: TopicPartition) -> int | None:
        return self._broker.bounds(tp)[1]

    def problems(self) -> Mapping[str, str]:
        """The text of `SimulatedBroker.failing`, and the topics that are gone."""
        if self._broker.failing:
            return {"client": self._broker.failing}
        gone = [topic for topic in self.topics if not self._broker.topic_id(topic)]
        return {topic: f"the topic {topic} no longer exists" for topic in gone}

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        if self._broker.failing:
            raise UnavailableError(self._broker.failing)
        for message in self._broker.read(tp, offset, 1):
            if message.offset == offset:
                return Original(message.key, message.value, message.headers, message.timestamp_ms)
        return None

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Make these states durable; the next poll reports the end to the listener."""
        begun = self._begun
        self._begun = [*begun, self.commit_now(items)]

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        self._begun = []
        ours = [item for item in items if item.tp in self._owned]
        ours = [item for item in ours if self._owned[item.tp].identity.scope == item.scope]
        if self._broker.failing and ours:
            self._listener.event("commit.failed", "warning", {"reason": self._broker.failing})
            return dict.fromkeys((item.tp for item in ours), False)
        for item in ours:
            parent = item.lineage.parent if item.lineage is not None else None
            text = encode(self._owned[item.tp].identity, self._rules, item.state, item.stamp, parent)
            self._broker.commit(self.group, item.tp, SimulatedCommit(item.state.watermark, text))
        return dict.fromkeys((item.tp for item in ours), True)

    def _rebalance(self) -> None:
        share = self._broker.members.share(self, {topic: self._broker.partitions(topic) for topic in self.topics})
        if leaving := self._owned.keys() - share:
            self._listener.revoking(leaving)
            self._drop(leaving)
        for tp in [
            tp for tp, queue in self._owned.items() if queue.identity.topic_id != self._broker.topic_id(tp.topic)
        ]:
            self.reload(tp)
        taken = self._acquire(share - self._owned.keys())
        if taken or not self._joined:
            self._joined = True
            self._listener.assigned(taken)

    def _acquire(self, tps: Collection[TopicPartition]) -> list[Assignment]:
        taken = []
        for tp in self._broker.members.acquire(self, tps):
            start, self._owned[tp] = _begin(self._broker, self.group, self._rules, tp, self._listener.event)
            taken.append(start)
        return taken

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        self._broker.members.release(self, tps)
        for tp in list(tps):
            del self._owned[tp]

    def reload(self, tp: TopicPartition) -> None:
        if tp in self._owned:
            self._listener.reloading(tp)
            self._drop({tp})
            self._listener.assigned(self._acquire([tp]))

    def lose(self) -> None:
        """End like a member whose session is over: its partitions already belong to others, and it may join again."""
        tps = set(self._owned)
        self._broker.members.leave(self)
        self._listener.lost(tps)
        self._drop(tps)
        self._broker.members.join(self)

    def close(self) -> None:
        """Leave the group; assigned partitions are revoked first. Harmless when repeated."""
        if tps := set(self._owned):
            self._listener.revoking(tps)
            self._drop(tps)
        self._broker.members.leave(self)


def _begin(
    broker: SimulatedBroker, group: str, rules: bytes, tp: TopicPartition, tell: Tell
) -> tuple[Assignment, _Owned]:
    topic_id, (low, high) = broker.topic_id(tp.topic), broker.bounds(tp)
    known, committed = Identity(CLUSTER, group, topic_id, 0), broker.committed(group, tp)
    state, incarnation, stamp = PartitionState(low, low), secrets.randbits(64), None
    resumed = False
    if committed is not None:
        decoded = decode(committed.metadata, committed.offset, known, rules)
        if resumed := decoded.origin is Origin.OURS and decoded.state is not None:
            assert decoded.state is not None
            state, incarnation, stamp = decoded.state, decoded.incarnation, decoded.stamp
        else:
            event = "topic.recreated" if decoded.origin is Origin.OTHER_TOPIC else "partition.reset"
            start = low if decoded.origin is Origin.OTHER_TOPIC else min(max(committed.offset, low), high)
            state = PartitionState(start, start)
            tell(event, "warning", tp.fields() | {"reason": decoded.origin.value})
    identity = Identity(CLUSTER, group, topic_id, incarnation)
    read_from = max(state.watermark, low)
    lineage = Lineage(secrets.randbits(TOKEN_BITS), stamp)
    assignment = Assignment(tp, identity.scope, state, topic_id, incarnation, resumed, read_from, lineage)
    return assignment, _Owned(identity, read_from)
