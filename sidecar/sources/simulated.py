"""A broker in memory and its source, for tests of the daemon and of users. No socket, thread or clock may come in.

It behaves as Kafka does where a pipeline can tell: partitions of a topic are divided among the members of a group, the
committed offset carries metadata, a topic that is made again has another id, and an offset without metadata is an
operator's reset.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple, Protocol

from sidecar.core.effects import CommitItem
from sidecar.core.partition.lineage import TOKEN_BITS, Lineage
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.partition.state import PartitionState
from sidecar.core.records import Columns, Header, Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.base import Assignment, Listener, Original, ReadPast
from sidecar.state.offset_map import Identity, Origin, decode, encode

CLUSTER = "simulated"
CHUNK_MESSAGES = 500
"""The most messages of one partition that a poll returns."""


class SimulatedMessage(NamedTuple):
    """A message as the broker keeps it."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None


class SimulatedColumns:
    """`records.Columns` for simulated messages."""

    def offsets(self, messages: Sequence[SimulatedMessage]) -> Iterable[int]:
        """The offset of each message."""
        return map(attrgetter("offset"), messages)

    def timestamps(self, messages: Sequence[SimulatedMessage]) -> Iterable[int | None]:
        """The timestamp of each message in milliseconds since the epoch, None where it has none."""
        return map(attrgetter("timestamp_ms"), messages)

    def keys(self, messages: Sequence[SimulatedMessage]) -> Iterable[bytes | None]:
        """The key of each message."""
        return map(attrgetter("key"), messages)

    def headers(self, messages: Sequence[SimulatedMessage]) -> Iterable[Sequence[Header]]:
        """The headers of each message."""
        return map(attrgetter("headers"), messages)

    def values(self, messages: Sequence[SimulatedMessage]) -> Iterable[bytes | None]:
        """The value of each message."""
        return map(attrgetter("value"), messages)

    def details(self, messages: Sequence[SimulatedMessage]) -> Iterable[None]:
        """None."""
        return repeat(None, len(messages))


class Committed(NamedTuple):
    """A group's offset in a partition; without metadata an operator's reset."""

    offset: int
    metadata: str = ""


@dataclass(slots=True)
class _Log:
    messages: list[SimulatedMessage] = field(default_factory=list)
    first: int = 0
    """The lowest offset that can be read."""


@dataclass(slots=True)
class _Topic:
    id: str
    logs: list[_Log]


class Member(Protocol):
    """What shares a group's partitions with others."""

    group: str
    topics: Sequence[str]


class SimulatedBroker:
    """Topics, groups and their offsets; from any thread.

    Attributes:
        failing: While this is set, nothing is read, commits fail, and every source tells this text as its problem.
    """

    def __init__(self) -> None:
        self.failing = ""
        self._lock = threading.RLock()
        self._topics: dict[str, _Topic] = {}
        self._members: dict[str, list[Member]] = defaultdict(list)
        self._owners: dict[tuple[str, TopicPartition], Member] = {}
        self._committed: dict[tuple[str, TopicPartition], Committed] = {}

    # Topics

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic; one of this name that was deleted before had another id."""
        with self._lock:
            if name in self._topics:
                raise ValueError(f"there is a topic {name} already")
            self._topics[name] = _Topic(secrets.token_hex(8), [_Log() for _ in range(partitions)])

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
        """Append a message; returns its offset."""
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
            found = self._topics.get(topic)
            return [TopicPartition(topic, number) for number in range(len(found.logs) if found else 0)]

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """The lowest offset that can be read, and that of the next message; zeros while there is no such topic."""
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

    # Groups

    def committed(self, group: str, tp: TopicPartition) -> Committed | None:
        """What the group committed of a partition, None where it committed nothing."""
        with self._lock:
            return self._committed.get((group, tp))

    def commit(self, group: str, tp: TopicPartition, committed: Committed | None) -> None:
        """Set a group's offset, or forget it; without metadata this is an operator's reset."""
        with self._lock:
            if committed is None:
                self._committed.pop((group, tp), None)
            else:
                self._committed[group, tp] = committed

    def join(self, member: Member) -> None:
        """Let a member share the group's partitions."""
        with self._lock:
            self._members[member.group].append(member)

    def leave(self, member: Member) -> None:
        """A member ends, or its session does: what it owned is free. Harmless when repeated."""
        with self._lock:
            if member in self._members[member.group]:
                self._members[member.group].remove(member)
            self._owners = {at: owner for at, owner in self._owners.items() if owner is not member}

    def share(self, member: Member) -> set[TopicPartition]:
        """The partitions that this member should own: each topic is dealt out among the members that read it."""
        with self._lock:
            found: set[TopicPartition] = set()
            for topic in member.topics:
                readers = [one for one in self._members[member.group] if topic in one.topics]
                found.update(self.partitions(topic)[readers.index(member) :: len(readers)] if member in readers else ())
            return found

    def acquire(self, member: Member, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Become the owner of those partitions that have none; returns these, sorted."""
        with self._lock:
            free = [tp for tp in sorted(tps) if (member.group, tp) not in self._owners]
            self._owners |= {(member.group, tp): member for tp in free}
            return free

    def release(self, member: Member, tps: Collection[TopicPartition]) -> None:
        """Own these no more."""
        with self._lock:
            for tp in tps:
                if self._owners.get((member.group, tp)) is member:
                    del self._owners[member.group, tp]


class SimulatedSource:
    """A member of a group on a simulated broker.

    Args:
        broker: Where messages come from.
        group: The consumer group.
        topics: Their names.
        rules: 4 bytes, a hash of what decides where a message goes: other rules discard the committed state.
    """

    name = "Simulated"
    columns: Columns = SimulatedColumns()
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = 0.05

    def __init__(self, broker: SimulatedBroker, group: str, topics: Sequence[str], rules: bytes = b"rule") -> None:
        self.group = group
        self.topics = topics
        self._broker = broker
        self._rules = rules
        self._identities: dict[TopicPartition, Identity] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._told_end: dict[TopicPartition, int] = {}
        """Up to where the listener knows that nothing is left to read."""
        self._paused: frozenset[TopicPartition] = frozenset()
        self._begun: list[Mapping[TopicPartition, bool]] = []
        """Ends of commits that the next poll tells."""
        self._joined = False

    def open(self, listener: Listener) -> None:
        """Join the group.

        Raises:
            UnavailableError: The broker is failing, or a topic is unknown.
        """
        self._listener = listener
        missing = [topic for topic in self.topics if not self._broker.topic_id(topic)]
        if self._broker.failing or missing:
            raise UnavailableError(self._broker.failing or f"there is no topic {missing[0]}")
        self._broker.join(self)

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:  # noqa: ARG002
        """What has come, in the order of each partition; serves the listener meanwhile, and never waits."""
        begun, self._begun = self._begun, []
        for results in begun:
            self._listener.committed(results, 0.0)
        if self._broker.failing:
            return []
        self._rebalance()
        return [found for tp in sorted(self._positions.keys() - self._paused) for found in self._read(tp)]

    def _read(self, tp: TopicPartition) -> Iterable[Run | ReadPast]:
        if self._positions[tp] < self._broker.bounds(tp)[0]:
            self._listener.event("offset.out_of_range", "warning", tp.fields())
            self.reload(tp)
        messages = self._broker.read(tp, self._positions[tp])
        if messages:
            self._positions[tp] = messages[-1].offset + 1
            yield Run(tp, messages, messages[0].offset, messages[-1].offset)
        elif self._told_end.get(tp) != self._positions[tp]:
            self._told_end[tp] = self._positions[tp]
            yield ReadPast(tp, self._positions[tp])

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read from all assigned partitions but these."""
        self._paused = frozenset(tps)

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the partition's next message will get."""
        return self._broker.bounds(tp)[1]

    def problems(self) -> Mapping[str, str]:
        """What the broker is told to fail with, and the topics that are gone."""
        if self._broker.failing:
            return {"client": self._broker.failing}
        gone = [topic for topic in self.topics if not self._broker.topic_id(topic)]
        return {topic: f"the topic {topic} does not exist any more" for topic in gone}

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as the broker has it, None when it is gone.

        Raises:
            UnavailableError: The broker is failing.
        """
        if self._broker.failing:
            raise UnavailableError(self._broker.failing)
        for message in self._broker.read(tp, offset, 1):
            if message.offset == offset:
                return Original(message.key, message.value, message.headers, message.timestamp_ms)
        return None

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Make these states durable; the next poll tells the listener."""
        self._begun.append(self._commit(items))

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable; the ends of commits begun before are not told any more."""
        self._begun.clear()
        return self._commit(items)

    def _commit(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        ours = [item for item in items if item.tp in self._identities]
        ours = [item for item in ours if self._identities[item.tp].scope == item.scope]
        if self._broker.failing and ours:
            self._listener.event("commit.failed", "warning", {"reason": self._broker.failing})
            return dict.fromkeys((item.tp for item in ours), False)
        for item in ours:
            parent = item.lineage.parent if item.lineage is not None else None
            text = encode(self._identities[item.tp], self._rules, item.state, item.stamp, parent)
            self._broker.commit(self.group, item.tp, Committed(item.state.watermark, text))
        return dict.fromkeys((item.tp for item in ours), True)

    # The group

    def _rebalance(self) -> None:
        share = self._broker.share(self)
        if leaving := self._positions.keys() - share:
            self._listener.revoking(leaving)
            self._drop(leaving)
        made_again = [tp for tp, one in self._identities.items() if one.topic_id != self._broker.topic_id(tp.topic)]
        for tp in made_again:
            self.reload(tp)
        taken = self._broker.acquire(self, share - self._positions.keys())
        if taken or not self._joined:
            self._joined = True
            self._listener.assigned([self._take(tp) for tp in taken])

    def _take(self, tp: TopicPartition) -> Assignment:
        topic_id, (low, high) = self._broker.topic_id(tp.topic), self._broker.bounds(tp)
        known, committed = Identity(CLUSTER, self.group, topic_id, 0), self._broker.committed(self.group, tp)
        state, incarnation, stamp = PartitionState(low, low), secrets.randbits(64), None
        resumed = False
        if committed is not None:
            told = decode(committed.metadata, committed.offset, known, self._rules)
            if resumed := told.origin is Origin.OURS and told.state is not None:
                assert told.state is not None
                state, incarnation, stamp = told.state, told.incarnation, told.stamp
            else:
                event = "topic.recreated" if told.origin is Origin.OTHER_TOPIC else "partition.reset"
                start = low if told.origin is Origin.OTHER_TOPIC else min(max(committed.offset, low), high)
                state = PartitionState(start, start)
                self._listener.event(event, "warning", tp.fields() | {"reason": told.origin.value})
        self._identities[tp] = Identity(CLUSTER, self.group, topic_id, incarnation)
        read_from = self._positions[tp] = max(state.watermark, low)
        lineage = Lineage(secrets.randbits(TOKEN_BITS), stamp)
        scope = self._identities[tp].scope
        return Assignment(tp, scope, state, topic_id, incarnation, resumed, read_from, lineage)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        self._broker.release(self, tps)
        for tp in list(tps):
            del self._positions[tp], self._identities[tp]
            self._told_end.pop(tp, None)

    def reload(self, tp: TopicPartition) -> None:
        """Give the partition up and take it again from what is committed."""
        if tp in self._positions:
            self._listener.reloading(tp)
            self._drop({tp})
            self._listener.assigned([self._take(one) for one in self._broker.acquire(self, [tp])])

    def lose(self) -> None:
        """End as a member whose session is over: its partitions are others' already, and it may join again."""
        tps = set(self._positions)
        self._broker.leave(self)
        self._listener.lost(tps)
        self._drop(tps)
        self._broker.join(self)

    def close(self) -> None:
        """Leave the group; what is assigned is revoked first. Harmless when repeated."""
        if tps := set(self._positions):
            self._listener.revoking(tps)
            self._drop(tps)
        self._broker.leave(self)
