"""What every `Source` does, checked on the one in memory and on real brokers; nothing of any one's inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.config.source.section import SourceSection as Settings
from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.state.interface import State
from tests.support.kafka import Broker
from tests.support.memory_state import MemoryState
from tests.support.origins import HEADER, KafkaOrigin, Origin, RocketMqOrigin, SimulatedOrigin
from tests.support.reading import Reading
from tests.support.rocketmq import RocketMqNode

PARTITIONS = 2
VALUES = [b"\0", b"a\0b", b"\n\n", b"\xff\xfe", bytes(range(256)), b"x" * 300_000, *(b"%d" % i for i in range(100))]
MORE = [b"more %d" % i for i in range(50)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqNode]:
    """A node with a proxy."""
    with RocketMqNode(tmp_path_factory.mktemp("rocketmq") / "node", proxy={}) as node:
        yield node


SOURCES = ["simulated", "kafka", "remoting", "grpc", "native"]


@pytest.fixture(params=SOURCES)
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Origin:
    """Each kind of source with its broker."""
    if request.param == "simulated":
        return SimulatedOrigin()
    if request.param == "kafka":
        broker: Broker = request.getfixturevalue("kafka")
        return KafkaOrigin(broker, tmp_path)
    return RocketMqOrigin(request.getfixturevalue("node"), request.param, tmp_path)


def test_every_source_of_the_settings_is_here() -> None:
    """Each source that a file may name, and each client, is in this suite."""
    named = set(Settings.keys().values())
    clients = set(get_args(RocketMqSettings.model_fields["client"].annotation))
    assert {"simulated"} | clients | named - {"rocketmq"} == set(SOURCES)


Open = Callable[..., Reading[Any]]


@pytest.fixture
def topic(origin: Origin) -> str:
    """A topic of two partitions."""
    return origin.create_topic(PARTITIONS)


@pytest.fixture
def open_(origin: Origin, topic: str) -> Iterator[Open]:
    """Opens members of one group: `open_(state)`; they end with the test."""
    group, opened = origin.create_group(), []

    def make(state: State | None = None, member: str = "first") -> Reading[Any]:
        opened.append(Reading(origin.source(group, topic, state or MemoryState(), member)))
        return opened[-1]

    yield make
    for reading in opened:
        reading.source.close()


def send(origin: Origin, topic: str, values: list[bytes]) -> None:
    """Half to each partition."""
    for partition in range(PARTITIONS):
        origin.send(topic, values[partition::PARTITIONS], partition, b"blau")


def ours(reading: Reading[Any], topic: str) -> set[TopicPartition]:
    """The partitions of the topic that a member has."""
    return {tp for tp in reading.assignments if tp.topic == topic}


def test_each_message_is_read_once_and_whole(origin: Origin, topic: str, open_: Open) -> None:
    """Binary, NUL, newlines, large: value and headers byte for byte, none twice."""
    reading = open_()
    send(origin, topic, VALUES)
    assert Counter(reading.read(len(VALUES))) == Counter(VALUES)
    messages = [message for found in reading.messages.values() for message in found]
    headers = reading.source.columns.headers(messages)
    assert all(dict(one or ())[HEADER] == b"blau" for one in headers)


def test_offsets_rise_in_a_partition(origin: Origin, topic: str, open_: Open) -> None:
    """Whatever the order of the messages, no offset comes twice, and none is below where the partition began."""
    reading = open_()
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    for tp, messages in reading.messages.items():
        offsets = list(reading.source.columns.offsets(messages))
        assert offsets == sorted(set(offsets))
        assert all(offset >= reading.assignments[tp].read_from for offset in offsets)


def test_what_is_committed_is_not_read_again(origin: Origin, topic: str, open_: Open) -> None:
    """A successor at the same place goes on behind it, under the same scope."""
    state = MemoryState()
    reading = open_(state)
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    assert all(reading.commit()[tp] for tp in ours(reading, topic))
    scopes = {tp: one.scope for tp, one in reading.assignments.items()}
    reading.close(settle=True)
    successor = open_(state)
    send(origin, topic, MORE)
    assert Counter(successor.read(len(MORE))) == Counter(MORE)
    again = {tp: one for tp, one in successor.assignments.items() if tp.topic == topic}
    assert {tp: one.scope for tp, one in again.items()}.items() <= scopes.items()
    assert all(one.resumed for one in again.values())


def test_what_is_not_committed_is_read_again(origin: Origin, topic: str, open_: Open) -> None:
    """A successor gets all that its predecessor had read and not settled, and each once."""
    state = MemoryState()
    reading = open_(state)
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    reading.close(settle=False)
    assert Counter(open_(state).read(len(VALUES))) == Counter(VALUES)


def test_paused_partitions_rest(origin: Origin, topic: str, open_: Open) -> None:
    """Of a paused partition nothing more is handed over, until it is not paused any more."""
    reading = open_()
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    reading.source.pause(reading.assignments.keys())
    send(origin, topic, MORE)
    for _ in range(20):
        reading.turn()
    assert len(reading.values()) == len(VALUES)
    reading.source.pause([])
    assert Counter(reading.read(len(VALUES) + len(MORE))) == Counter(VALUES + MORE)


def test_a_message_can_be_fetched_again(origin: Origin, topic: str, open_: Open) -> None:
    """While it is not settled; one that is not there is None."""
    reading = open_()
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    tp, messages = next((tp, found) for tp, found in reading.messages.items() if found)
    columns = reading.source.columns
    (offset,), (value,) = columns.offsets(messages[:1]), columns.values(messages[:1])
    found = reading.source.fetch(tp, offset)
    assert found is not None
    assert (found.value, dict(found.headers)[HEADER]) == (value, b"blau")
    assert reading.source.fetch(tp, offset + 1_000_000) is None


def test_a_commit_of_another_incarnation_is_not_made(origin: Origin, topic: str, open_: Open) -> None:
    """A state that was made before its partition was taken again is never told to be durable, and changes nothing."""
    state = MemoryState()
    reading = open_(state)
    send(origin, topic, VALUES)
    reading.read(len(VALUES))
    for tp, messages in reading.messages.items():
        last = max(reading.source.columns.offsets(messages), default=0)
        assert not reading.source.commit_now([CommitItem(tp, "another", PartitionState(last + 1, last + 1))]).get(tp)
    reading.close(settle=False)
    assert Counter(open_(state).read(len(VALUES))) == Counter(VALUES)


def test_a_stop_tells_what_it_gives_up(origin: Origin, topic: str, open_: Open) -> None:
    """Every partition is revoked once, and closing again is harmless."""
    reading = open_()
    reading.until(lambda: ours(reading, topic), "partitions are assigned")
    had = set(reading.assignments)
    reading.close(settle=False)
    reading.source.close()
    assert {tp for word, tps in reading.changes if word == "revoking" for tp in tps} == had
    assert sum(len(tps) for word, tps in reading.changes if word == "revoking") == len(had)


def test_two_members_share(origin: Origin, topic: str, open_: Open) -> None:
    """Where partitions are owned, no two members have one; either way each message comes to one member, once."""
    first, second = open_(member="first"), open_(member="second")

    def shared() -> bool:
        first.turn()
        second.turn()
        mine, theirs = ours(first, topic), ours(second, topic)
        if not origin.owns_partitions:
            return bool(mine and theirs)
        return bool(mine and theirs) and not mine & theirs and len(mine | theirs) == PARTITIONS

    first.until(shared, "both have a share")
    send(origin, topic, VALUES)

    def all_are_read() -> bool:
        second.turn()
        return len(first.values()) + len(second.values()) >= len(VALUES)

    first.until(all_are_read, "all is read")
    assert Counter(first.values() + second.values()) == Counter(VALUES)


def test_a_healthy_broker_is_no_problem(origin: Origin, topic: str, open_: Open) -> None:
    """Once messages come, nothing is told to be wrong."""
    reading = open_()
    send(origin, topic, MORE)
    reading.read(len(MORE))
    assert reading.source.problems() == {}
