"""The changelog of delayed messages in a real Kafka: its topics, appends through outages, and reading back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from sidecar.config.delay import ChangelogSettings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.kafka.producer import KafkaChangelog
from sidecar.delay.changelog.kafka.restorer import KafkaRestorer
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.errors import ConfigError, UnavailableError
from tests.support.kafka import (
    PASSWORD,
    USER,
    Broker,
    KafkaBroker,
    MakeTopic,
    Outgoing,
    produce,
    produce_transaction,
    unique,
)
from tests.support.process import free_ports, missing, wait_until

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
COMPACT = {"cleanup.policy": "compact", "max.message.bytes": "8000000"}
SOON = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}
"""Compacted at once."""
MARKED = 1
"""The offset behind the mark, in partition 0."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be stopped, with rules of access; the plaintext listener is the administrator's."""
    folder = tmp_path_factory.mktemp("changelog") / "broker"
    with KafkaBroker(folder, secure=True, config=AUTHORIZER) as broker:
        yield broker


class Member:
    """A process of the group, as far as the changelog goes.

    Args:
        source: The topic that it reads.
        bootstrap: The brokers.
        group: Its group.
        template: `delay.changelog.topic`.
        properties: Of the client.
    """

    def __init__(
        self,
        source: str,
        bootstrap: str,
        *,
        group: str = "g 1",
        template: str = "sidecar-delay-{group}-{topic}",
        **properties: str,
    ) -> None:
        given = {"bootstrap_servers": bootstrap, "group_id": group, "topics": [source], "properties": properties}
        self.source = source
        self.told: list[tuple[str, str, Any]] = []
        kafka = KafkaSettings.model_validate(given)
        changelog = ChangelogSettings(topic=template)
        self.topics = Topics(kafka, changelog, lambda *event: self.told.append(event))
        self.restorer = KafkaRestorer(self.topics, patience_s=5.0)
        self.changelog = KafkaChangelog(self.topics)
        self.name = self.topics.name(source)

    def tp(self, partition: int = 0) -> TopicPartition:
        """A partition of the source."""
        return TopicPartition(self.source, partition)

    def read(self, end: int, partition: int = 0) -> list[ChangelogRecord]:
        """All records below an offset, but for the topic's mark."""
        begin = 0 if partition else MARKED
        return [record for batch in self.restorer.read(self.tp(partition), end, begin) for record in batch]

    def serve_until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Serve until a condition holds."""

        def served() -> object:
            self.changelog.serve(0.05)
            return condition()

        wait_until(served, timeout_s, "the changelog is served", detail=lambda: self.changelog.broken)

    def append(self, *entries: ChangelogEntry, partition: int = 0) -> int:
        """Append entries and wait; the offset of the last."""
        offsets: list[int] = []
        self.changelog.append(self.tp(partition), entries, offsets.append)
        self.serve_until(lambda: offsets)
        return offsets[0]

    def close(self) -> None:
        """Disconnect."""
        self.changelog.close()
        self.restorer.close()


@pytest.fixture
def member(kafka: Broker, topic: str) -> Iterator[Member]:
    """A member of the shared broker with a topic of one partition."""
    member = Member(topic, kafka.bootstrap)
    yield member
    member.close()


def settings(broker: Broker, topic: str) -> dict[str, str]:
    """All settings of a topic."""
    (future,) = broker.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(10).items()}


def partitions(broker: Broker, topic: str) -> int:
    """The number of a topic's partitions."""
    return len(broker.admin.list_topics(topic, timeout=10).topics[topic].partitions)


# Topics


def test_a_missing_topic_is_made_for_the_source(kafka: Broker, make_topic: MakeTopic) -> None:
    """It is compacted, takes the source's largest message, and has its partitions; its number is not 0."""
    source = make_topic(3, {"max.message.bytes": "3000000"})
    member = Member(source, kafka.bootstrap)
    assert 0 < member.restorer.open(member.tp(1)) < 1 << 48
    found = settings(kafka, member.name)
    assert (found["cleanup.policy"], found["max.message.bytes"]) == ("compact", str(3_000_000 + (64 << 10)))
    assert (found["delete.retention.ms"], found["segment.bytes"]) == ("3600000", str(64 << 20))
    assert (partitions(kafka, member.name), member.told) == (3, [])


def test_two_members_make_a_topic_at_once(kafka: Broker, make_topic: MakeTopic) -> None:
    """Both succeed, with the number of the same topic; so do members that come later."""
    for _ in range(5):
        source = make_topic(2)
        numbers = at_once([Member(source, kafka.bootstrap) for _ in range(2)])
        numbers.append(Member(source, kafka.bootstrap).restorer.open(TopicPartition(source, 1)))
        assert len(numbers) == 3
        assert len(set(numbers)) == 1


def at_once(members: Sequence[Member]) -> list[int]:
    """What members get that open their topic at the same time."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: member.restorer.open(member.tp()), members))


def test_a_topic_made_again_has_another_number(kafka: Broker, member: Member) -> None:
    """The number is of the topic's id."""
    before = member.restorer.open(member.tp())
    kafka.delete_topic(member.name)
    assert Member(member.source, kafka.bootstrap).restorer.open(member.tp()) != before


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy=compact"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy=compact"),
        ({"max.message.bytes": "4194304"}, "max.message.bytes=4259840"),
    ],
)
def test_a_topic_that_loses_or_refuses_messages_is_refused(
    kafka: Broker, member: Member, change: dict[str, str], cure: str
) -> None:
    """The error has the command; after the command, the topic is taken."""
    kafka.create_topic(member.name, 1, COMPACT | change)
    with pytest.raises(ConfigError) as refused:
        member.restorer.open(member.tp())
    said = f"{refused.value} Try: {refused.value.hint}"
    assert missing(said, member.name, kafka.bootstrap, "kafka-configs.sh", f"--add-config {cure}", "local") == []
    kafka.delete_topic(member.name)
    kafka.create_topic(member.name, 1, COMPACT)
    assert member.restorer.open(member.tp())


def test_a_short_memory_of_tombstones_is_told_once(kafka: Broker, member: Member) -> None:
    """A topic with a small `delete.retention.ms` is used, with a warning."""
    kafka.create_topic(member.name, 1, COMPACT | {"delete.retention.ms": "1000"})
    for _ in range(2):
        member.restorer.open(member.tp())
    ((name, level, fields),) = member.told
    assert (name, level, fields["topic"]) == ("delay.changelog_warning", "warning", member.name)
    assert "delete.retention.ms is 1000" in fields["reason"]


def test_partitions_are_added_with_the_source(kafka: Broker, member: Member) -> None:
    """A new partition of the source has a changelog, to which the clients that run already append."""
    member.restorer.open(member.tp())
    member.append(ChangelogEntry(b"a", b"1"))
    kafka.add_partitions(member.source, 3)
    member.restorer.open(member.tp(2))
    assert partitions(kafka, member.name) == 3
    assert member.append(ChangelogEntry(b"b", b"2"), partition=2) == 0
    assert member.restorer.append(member.tp(2), [ChangelogEntry(b"c", b"3")]) == 1
    assert [record.key for record in member.read(2, partition=2)] == [b"b", b"c"]


# Owners


def test_the_group_that_came_first_keeps_a_topic(kafka: Broker, topic: str) -> None:
    """Of groups that open one topic at once, one gets it; it gets it again later too, and the others name it."""
    name = unique("held")
    groups = [unique("group") for _ in range(4)]

    def opened(group: str) -> str:
        try:
            Member(topic, kafka.bootstrap, group=group, template=name).restorer.open(TopicPartition(topic, 0))
        except ConfigError as error:
            return str(error)
        return ""

    for _ in range(2):
        with ThreadPoolExecutor(len(groups)) as pool:
            said = dict(zip(groups, pool.map(opened, groups), strict=True))
        (first,) = (group for group, text in said.items() if not text)
        assert all(missing(said[group], group, first) == [] for group in groups if group != first)
        groups = sorted(groups, key=lambda group: group == first)


def test_a_topic_with_records_and_without_a_mark_is_marked_by_the_first_group(kafka: Broker, topic: str) -> None:
    """Its mark lies behind what it had, and keeps other groups out."""
    name, first, second = unique("held"), unique("group"), unique("group")
    kafka.create_topic(name, 1, COMPACT)
    produce(kafka.bootstrap, name, [Outgoing(0, b"v", b"%d" % i) for i in range(3_000)])
    for _ in range(2):
        Member(topic, kafka.bootstrap, group=first, template=name).restorer.open(TopicPartition(topic, 0))
        assert kafka.end_offsets(name) == {0: 3_001}
    with pytest.raises(ConfigError, match=first):
        Member(topic, kafka.bootstrap, group=second, template=name).restorer.open(TopicPartition(topic, 0))


# Entries


def test_entries_are_read_back_as_they_were(member: Member) -> None:
    """Nulls stay nulls, empty values empty, and 2 MB are whole; offsets are in the order of the calls."""
    large = os.urandom(2_000_000)
    member.restorer.open(member.tp())
    done: list[tuple[str, int]] = []
    entries = [
        ChangelogEntry(b"null", None),
        ChangelogEntry(b"empty", b""),
        ChangelogEntry(b"large", large),
        ChangelogEntry(b"", b"no key"),
    ]
    member.changelog.append(member.tp(), entries[:3], lambda offset: done.append(("first", offset)))
    member.changelog.append(member.tp(), entries[3:], lambda offset: done.append(("second", offset)))
    assert done == []
    member.serve_until(lambda: len(done) == 2)
    assert done == [("first", MARKED + 2), ("second", MARKED + 3)]
    assert member.read(MARKED + 4) == [ChangelogRecord(offset, *entry) for offset, entry in enumerate(entries, MARKED)]
    assert [record.offset for record in member.read(MARKED + 2)] == [MARKED, MARKED + 1]


def test_a_restorer_appends_and_waits(member: Member) -> None:
    """All entries are appended in order, any number of them; none is a call without an effect."""
    member.restorer.open(member.tp())
    assert member.restorer.append(member.tp(), []) == -1
    entries = (ChangelogEntry(b"%d" % i, bytes(1_000)) for i in range(30_000))
    assert member.restorer.append(member.tp(), entries) == MARKED + 29_999
    assert member.restorer.append(member.tp(), [ChangelogEntry(b"last", None)]) == MARKED + 30_000
    assert [int(record.key) for record in member.read(MARKED + 30_000)] == list(range(30_000))


def test_reading_stops_at_the_end_behind_compacted_records(kafka: Broker, member: Member) -> None:
    """The records below the end are gone, and records above it are not given."""
    kafka.create_topic(member.name, 1, COMPACT | SOON)
    member.restorer.open(member.tp())
    member.append(*(ChangelogEntry(b"%d" % (i % 10), b"old") for i in range(50)))

    def compacted() -> bool:
        member.append(ChangelogEntry(b"%d" % (time.monotonic_ns() % 10), b"new"), ChangelogEntry(b"other", b"new"))
        return len(member.read(50)) < 10

    wait_until(compacted, 30, "the topic is compacted")
    assert all(record.offset < 50 for record in member.read(50))


def test_reading_stops_where_the_last_offsets_have_no_record(kafka: Broker, member: Member) -> None:
    """The end of the partition is the end, though no record precedes it directly; an empty one has no records."""
    member.restorer.open(member.tp())
    assert member.read(MARKED) == []
    produce_transaction(kafka.bootstrap, member.name, [Outgoing(0, b"v", b"k")], transactional_id=member.name)
    wait_until(lambda: kafka.end_offsets(member.name) == {0: MARKED + 2}, 10, "the marker is there")
    assert member.read(MARKED + 2) == [ChangelogRecord(MARKED, b"k", b"v")]


def test_a_message_that_is_too_large_breaks_it(member: Member) -> None:
    """The topic's limit counts, not the client's: `broken` has the command, and no entry of that call is done."""
    member.restorer.open(member.tp())
    done: list[int] = []
    member.changelog.append(
        member.tp(), [ChangelogEntry(b"a", b"b"), ChangelogEntry(b"large", os.urandom(20 << 20))], done.append
    )
    member.changelog.append(member.tp(), [ChangelogEntry(b"c", b"d")], done.append)
    member.serve_until(lambda: member.changelog.broken)
    assert missing(member.changelog.broken, member.name, "too large", "kafka-configs.sh", "max.message.bytes=") == []
    with pytest.raises(UnavailableError, match="too large"):
        member.restorer.append(member.tp(), [ChangelogEntry(b"large", os.urandom(20 << 20))])
    for _ in range(10):
        member.changelog.serve(0.05)
    assert done == []


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_breaks_it(kafka: Broker, member: Member, *, again: bool) -> None:
    """It is noticed though nothing is appended, also if the topic was made again at once, by hand alone."""
    member.restorer.open(member.tp())
    member.append(ChangelogEntry(b"a", b"b"))
    kafka.delete_topic(member.name)
    if again:
        kafka.create_topic(member.name, 1, COMPACT)
    member.serve_until(lambda: member.changelog.broken, 30)
    assert missing(member.changelog.broken, member.name, "was deleted", "restart") == []
    assert (member.name in kafka.topics()) is again
    assert member.restorer.open(member.tp())


def test_entries_that_wait_for_a_broker_are_appended_once(own: KafkaBroker) -> None:
    """Through a stop and a start, entries are acknowledged in order, none twice; meanwhile `waiting` says why."""
    member = Member(own.create_topic(unique("topic"), 2), own.bootstrap)
    done: dict[int, list[int]] = {0: [], 1: []}
    for partition in done:
        member.restorer.open(member.tp(partition))

    def append(count: int) -> None:
        for partition, offsets in done.items():
            for _ in range(count):
                entries = [ChangelogEntry(b"%d" % i, os.urandom(500)) for i in range(10)]
                member.changelog.append(member.tp(partition), entries, offsets.append)

    append(200)
    member.serve_until(lambda: done[0])
    append(200)
    own.kill()
    append(200)
    assert member.changelog.waiting == ""
    member.serve_until(lambda: member.changelog.waiting)
    assert missing(member.changelog.waiting, own.bootstrap, "does not acknowledge") == []
    own.start()
    member.serve_until(lambda: all(len(offsets) == 600 for offsets in done.values()), 60)
    assert (member.changelog.waiting, member.changelog.broken) == ("", "")
    for partition, offsets in done.items():
        begin = 0 if partition else MARKED
        assert offsets == [begin + 10 * i + 9 for i in range(600)]
        keys = [int(record.key) for record in member.read(begin + 6_000, partition)]
        assert keys == list(range(10)) * 600
    assert own.end_offsets(member.name) == {0: MARKED + 6_000, 1: 6_000}
    member.close()


def test_no_broker_is_no_endless_wait(kafka: Broker, member: Member) -> None:
    """Opening, appending and reading end with an error while no broker answers."""
    (port,) = free_ports(1)
    lonely = Member(member.source, f"localhost:{port}")
    lonely.restorer = KafkaRestorer(lonely.topics, patience_s=0.5)
    with pytest.raises(UnavailableError, match=f"localhost:{port}"):
        lonely.restorer.open(lonely.tp())
    with pytest.raises(UnavailableError):
        lonely.restorer.append(lonely.tp(), [ChangelogEntry(b"a", b"b")])
    with pytest.raises(UnavailableError, match="could not be read"):
        lonely.read(5)
    begun = time.monotonic()
    lonely.close()
    assert time.monotonic() - begun < 1


# Rights


def rule(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    """A rule about our user."""
    return AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, permission)


@pytest.fixture
def deny(own: KafkaBroker) -> Iterator[Callable[[str, AclOperation], None]]:
    """Takes a right from our user until the end of the test."""
    rules: list[AclBinding] = []

    def put(topic: str, operation: AclOperation) -> None:
        # A topic with a rule is closed to all that no rule allows.
        wanted = [rule(ResourceType.TOPIC, topic, AclOperation.ALL, AclPermissionType.ALLOW)]
        wanted.append(rule(ResourceType.TOPIC, topic, operation, AclPermissionType.DENY))
        if operation == AclOperation.CREATE:
            wanted.append(rule(ResourceType.BROKER, "kafka-cluster", operation, AclPermissionType.DENY))
        for one in wanted:
            rules.append(one)
            for future in own.admin.create_acls([one]).values():
                future.result(10)

    yield put
    for one in rules:
        filtered = AclBindingFilter(
            one.restype, one.name, one.resource_pattern_type, one.principal, one.host, one.operation,
            one.permission_type,
        )  # fmt: skip
        for future in own.admin.delete_acls([filtered]).values():
            future.result(10)


@pytest.fixture
def restricted(own: KafkaBroker) -> Iterator[Member]:
    """A member with our user's rights."""
    mechanism = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": USER, "sasl.password": PASSWORD}
    source = own.create_topic(unique("topic"), 2)
    member = Member(source, own.address("SASL_PLAINTEXT"), **mechanism, **login)
    yield member
    member.close()


def test_the_command_is_told_if_the_topic_may_not_be_created(
    own: KafkaBroker, restricted: Member, deny: Callable[[str, AclOperation], None]
) -> None:
    """The error has the command that creates the topic, and the other store; a topic created by hand is taken."""
    deny(restricted.name, AclOperation.CREATE)
    with pytest.raises(ConfigError) as refused:
        restricted.restorer.open(restricted.tp())
    wanted = ["kafka-topics.sh", "--create", restricted.name, "--partitions 2", "--config cleanup.policy=compact"]
    assert missing(refused.value.hint, *wanted, "delay.store: local") == []
    own.create_topic(restricted.name, 2, COMPACT)
    assert restricted.restorer.open(restricted.tp())


@pytest.mark.parametrize(
    "operation", [AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS]
)
def test_a_missing_right_is_told(
    own: KafkaBroker, restricted: Member, deny: Callable[[str, AclOperation], None], operation: AclOperation
) -> None:
    """The error names the topic and the operations that are needed."""
    own.create_topic(restricted.name, 2, COMPACT)
    deny(restricted.name, operation)
    with pytest.raises(ConfigError) as refused:
        restricted.restorer.open(restricted.tp())
    assert restricted.name in str(refused.value)
    assert missing(refused.value.hint, "Describe", "DescribeConfigs", "Read", "Write", "delay.store: local") == []


def test_a_right_that_is_taken_away_breaks_it(restricted: Member, deny: Callable[[str, AclOperation], None]) -> None:
    """`broken` names the topic and the right; nothing is done."""
    restricted.restorer.open(restricted.tp())
    restricted.append(ChangelogEntry(b"a", b"b"))
    deny(restricted.name, AclOperation.WRITE)
    done: list[int] = []
    restricted.changelog.append(restricted.tp(), [ChangelogEntry(b"c", b"d")], done.append)
    restricted.serve_until(lambda: restricted.changelog.broken)
    assert missing(restricted.changelog.broken, restricted.name, "Write") == []
    assert done == []
