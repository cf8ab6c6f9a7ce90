"""Where partitions go on when some of the brokers do not answer; on a real broker in the integration tests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka as ck
import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.lineage import Stamp
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.kafka.offsets import Offsets
from sidecar.sources.kafka.start import CommitMemory, KafkaStartOffsets, Memories, Recall
from sidecar.sources.kafka.topics import TopicIds
from sidecar.state.interface import ProgressKey, Rules
from sidecar.state.offset_map import Identity, encode
from tests.support.memory_state import MemoryState

RULES = b"same"
HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
CLUSTER, GROUP, TOPIC_ID = "cluster", "group", "id"


class Brokers:
    """A client of two brokers: partition 0 is led by broker 0, partition 1 by broker 1; a frozen one never answers."""

    def __init__(self) -> None:
        self.frozen: set[int] = set()
        self.starts = {HERE: 0, THERE: 0}
        self.ends = {HERE: 100, THERE: 100}
        self.commits: dict[TopicPartition, tuple[int, str]] = {}
        self.asked: list[list[TopicPartition]] = []

    def list_topics(self, topic: str = "", timeout: float = 0.0) -> Any:
        partitions = {p: SimpleNamespace(leader=p) for p in (0, 1)}
        topics = [topic] if topic else ["orders", "payments"]
        return SimpleNamespace(topics={each: SimpleNamespace(partitions=partitions) for each in topics})

    def committed(self, asked: Sequence[ck.TopicPartition], timeout: float) -> list[Any]:
        found = [self.commits.get(TopicPartition(tp.topic, tp.partition), (-1001, "")) for tp in asked]
        return [SimpleNamespace(offset=offset, metadata=metadata, error=None) for offset, metadata in found]

    def offsets_for_times(self, asked: Sequence[ck.TopicPartition], timeout: float) -> list[Any]:
        tps = [TopicPartition(tp.topic, tp.partition) for tp in asked]
        self.asked.append(tps)
        if self.frozen.intersection(tp.partition for tp in tps):
            time.sleep(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "timed out"))
        bounds = [(self.ends if at.offset == -1 else self.starts)[tp] for tp, at in zip(tps, asked, strict=True)]
        return [
            SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=bound, error=None)
            for tp, bound in zip(tps, bounds, strict=True)
        ]


def starts_of(
    brokers: Brokers, told: list[str], start: str = "earliest", state: MemoryState | None = None
) -> KafkaStartOffsets:
    """What decides, asking those brokers."""

    def tell(name: str, level: str, fields: Mapping[str, object]) -> None:
        told.append(f"{name}: {fields['expired']}" if "expired" in fields else name)

    settings = KafkaSettings.model_validate(
        {"bootstrap_servers": "localhost:9092", "group_id": GROUP, "topics": ["orders"], "start": start}
    )
    ids = cast(TopicIds, SimpleNamespace(find=lambda topics, timeout_s: dict.fromkeys(topics, TOPIC_ID)))
    recall = Recall(Memories(state or MemoryState(), tell), Rules(RULES), lambda tp, offset: None, tell)
    return KafkaStartOffsets(
        Offsets(cast(ck.Consumer, brokers)), ids, settings, CLUSTER, Rules(RULES), lambda tp: None, recall, tell
    )


def test_a_frozen_leader_keeps_back_its_own_partitions_alone() -> None:
    """What other brokers lead is found, within the time that was given; later the rest."""
    brokers = Brokers()
    starts = starts_of(brokers, [])
    brokers.frozen = {0}
    begun_s = time.monotonic()
    found = starts.find([HERE, THERE], 1.0)
    assert time.monotonic() - begun_s < 2.0
    assert [one.tp for one in found[0]] == [THERE]
    assert found[1][HERE].code() == KafkaError._TIMED_OUT
    brokers.frozen = set()
    assert [one.tp for one in starts.find([HERE], 0.3)[0]] == [HERE]


def test_all_partitions_of_a_leader_are_one_question() -> None:
    """However many partitions are assigned, a broker is asked twice: for the starts and for the ends of their logs."""
    brokers = Brokers()
    brokers.list_topics = lambda **_: SimpleNamespace(  # type: ignore[method-assign]
        topics={"orders": SimpleNamespace(partitions={p: SimpleNamespace(leader=0) for p in (0, 1)})}
    )
    assert len(starts_of(brokers, []).find([HERE, THERE], 1)[0]) == 2
    assert brokers.asked == [[HERE, THERE]] * 2


def test_partitions_of_several_topics_are_found_at_once() -> None:
    """Their leaders are asked for together."""
    brokers, other = Brokers(), TopicPartition("payments", 0)
    brokers.starts[other], brokers.ends[other] = 0, 10
    found = starts_of(brokers, []).find([HERE, other], 1)
    assert ([one.tp for one in found[0]], found[1]) == ([HERE, other], {})


def test_a_partition_of_a_new_group_that_waited_is_still_one() -> None:
    """With `start: latest` it starts at the end, although others of the group have committed meanwhile."""
    brokers = Brokers()
    starts = starts_of(brokers, [], "latest")
    brokers.frozen = {1}
    (here,) = starts.find([HERE, THERE], 1.0)[0]
    brokers.commits[HERE] = (100, "")
    brokers.frozen = set()
    (there,) = starts.find([THERE], 1.0)[0]
    assert (here.read_from, there.read_from) == (100, 100)
    assert starts.find([THERE], 1.0)[0][0].read_from == 0  # a new partition of an old group


def test_a_log_counts_as_truncated_when_it_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader may tell an old end for a moment: that is asked again, and costs nobody else any time."""
    brokers, told = Brokers(), list[str]()
    starts = starts_of(brokers, told)
    identity = Identity(CLUSTER, GROUP, TOPIC_ID, 7)
    brokers.commits[HERE] = (90, encode(identity, RULES, PartitionState(90, 120)))
    found = starts.find([HERE, THERE], 1)
    assert ([one.tp for one in found[0]], list(found[1])) == ([THERE], [HERE])
    assert "120 was read before" in found[1][HERE].str()
    brokers.ends[HERE] = 120
    (start,) = starts.find([HERE], 1)[0]
    assert (start.scope, told) == (identity.scope, [])
    brokers.ends[HERE] = 100
    assert not starts.find([HERE], 1)[0]
    monkeypatch.setattr("sidecar.sources.kafka.start.TRUNCATION_PATIENCE_S", 0.0)
    (start,) = starts.find([HERE], 1)[0]
    assert (start.read_from, told) == (90, ["partition.truncated"])
    assert start.scope != identity.scope


def test_the_folder_has_the_commit_from_which_a_partition_goes_on() -> None:
    """A store forgets what is void by another's commit; the row before would count that if the broker lost it."""
    brokers, state = Brokers(), MemoryState()
    identity = Identity(CLUSTER, GROUP, TOPIC_ID, 7)
    text = encode(identity, RULES, PartitionState(40, 40), Stamp(2, 3))
    state.save_progress({ProgressKey.of(HERE): json.dumps(CommitMemory(40, text, TOPIC_ID, [], []))})
    brokers.commits[HERE] = (50, encode(identity, RULES, PartitionState(50, 60), Stamp(9, 1)))
    starts_of(brokers, [], state=state).find([HERE], 1)
    memory = CommitMemory.load(state.load_progress()[ProgressKey.of(HERE)])
    assert memory is not None
    assert memory.watermark == 50


def test_an_expired_commit_is_not_one_that_is_behind() -> None:
    """The folder's state applies, unless a store tells of a member that went on since."""
    brokers, state, told = Brokers(), MemoryState(), list[str]()
    text = encode(Identity(CLUSTER, GROUP, TOPIC_ID, 7), RULES, PartitionState(40, 40), Stamp(2, 3))
    state.save_progress({ProgressKey.of(HERE): json.dumps(CommitMemory(40, text, TOPIC_ID, [], []))})
    (start,) = starts_of(brokers, told, state=state).find([HERE], 1)[0]
    assert (start.read_from, start.is_remembered, told) == (40, True, ["commit.expired"])


def test_what_retention_took_from_a_reset_offset_is_counted() -> None:
    """An operator's offset below the log's start is moved there, and the event has the number of lost messages."""
    brokers, told = Brokers(), list[str]()
    brokers.commits[HERE], brokers.starts[HERE] = (30, ""), 70
    (start,) = starts_of(brokers, told).find([HERE], 1)[0]
    assert (start.read_from, told) == (70, ["partition.reset", "offset.expired: 40"])


def test_an_offset_of_an_operator_behind_the_end_is_moved_there_and_told() -> None:
    """The log was truncated, or the offset was never in it."""
    brokers, told = Brokers(), list[str]()
    brokers.commits[HERE] = (130, "")
    (start,) = starts_of(brokers, told).find([HERE], 1)[0]
    assert (start.read_from, told) == (100, ["partition.reset", "partition.truncated"])
