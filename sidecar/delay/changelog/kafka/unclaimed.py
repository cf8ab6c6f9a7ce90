"""Reads changelogs as the group's commits have them. Creates no topic, claims no partition, appends nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.partition_state import NO_STORES
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord, Restorer
from sidecar.delay.changelog.kafka.clients import admin_config, reader_config
from sidecar.delay.changelog.kafka.topics import number_of
from sidecar.delay.changelog.records import RecordLineage, topic_hash
from sidecar.delay.changelog.takeover import Start
from sidecar.delay.rows import ORIGIN_MAX
from sidecar.errors import SidecarError, UnavailableError
from sidecar.sources.kafka.offsets import Offsets
from sidecar.sources.kafka.reach import ClientErrors, await_topics, forbidden, is_forbidden, text_of
from sidecar.sources.kafka.topics import MadeAgain, TopicIds
from sidecar.state.offset_map import Identity, decode

T = TypeVar("T")


def _is_missing(answer: object) -> bool:
    return isinstance(answer, KafkaError) and answer.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


START_S = 10.0
"""Longest wait for the brokers."""
PATIENCE_S = 30.0
"""Longest time for all requests to the brokers."""
_NEW = (1 << 64) - 1
"""An incarnation that no message has."""


def topics_of(settings: KafkaSettings) -> Collection[str]:
    """The topics that exist.

    Raises:
        UnavailableError: No broker answers.
    """
    try:
        return AdminClient(admin_config(settings)).list_topics(timeout=START_S).topics
    except KafkaException as error:
        servers = settings.bootstrap_servers
        raise UnavailableError(f"Kafka at {servers} does not tell its topics: {text_of(error.args[0])}") from error


class Unclaimed(NamedTuple):
    """The changelog of a partition, as it was when it was looked at."""

    store: int
    """The id of the changelog."""
    first: int
    end: int
    """Offsets of the first record, and behind the last one."""
    start: Start
    """Read from the group's commit."""


class UnclaimedRestorer:
    """A `Restorer` for a `Takeover` that takes nothing over: each read ends where the changelog ended.

    Args:
        count: Called with the number of records that were read.
    """

    def __init__(
        self, restorer: Restorer, known: Mapping[TopicPartition, Unclaimed], count: Callable[[int], None]
    ) -> None:
        self._restorer = restorer
        self._known = known
        self._count = count
        self._ends = {tp: each.end for tp, each in known.items()}

    def open(self, tp: TopicPartition) -> int:
        """The id of the changelog."""
        return self._known[tp].store

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        """Append nothing; return the offset that the last entry would have."""
        self._ends[tp] += sum(1 for _ in entries)
        return self._ends[tp] - 1

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        for records in self._restorer.read(tp, end, begin):
            yield records
            self._count(len(records))


@dataclass(slots=True)
class CommitLook:
    """Looks at changelogs once: at those of the source's topics, or at those of topics that it does not read.

    Args:
        name_of: The name of a topic's changelog.
        rules: 4 bytes, the hash of the rules.
        now: The position of the present time.
        left_of: Returns, by a changelog's name and the topics that exist, its topic if the source does not read it, or
            if it does not exist; empty for any other name. None to look at the source's topics.
    """

    settings: KafkaSettings
    name_of: Callable[[str], str]
    rules: bytes
    now: int
    left_of: Callable[[str, Collection[str]], str] | None = None
    missing: list[str] = field(default_factory=list)
    """The changelogs that do not exist."""
    _errors: ClientErrors = field(default_factory=ClientErrors)

    def run(self, is_wanted: Callable[[TopicPartition], bool]) -> dict[TopicPartition, Unclaimed]:
        """The changelogs of the wanted partitions that have any.

        Raises:
            UnavailableError: No broker answers, or a topic of the source is unknown.
            CredentialsError: The broker refuses the credentials, or access to a topic or the group.
        """
        settings = self.settings
        least_ms = min(settings.start_timeout_ms, int(START_S * 1000))
        awaited = {} if self.left_of is None else {"topics": ["^$"]}
        patient = settings.model_copy(update={"start_timeout_ms": least_ms, **awaited})
        config = reader_config(settings) | {"group.id": settings.group_id, "error_cb": self._errors}
        with closing(ck.Consumer(config)) as consumer:
            cluster_id = await_topics(
                consumer, patient, lambda: self._errors.refusal, self._errors.problems, lambda _: None
            )
            try:
                return self._look(consumer, cluster_id, is_wanted)
            except KafkaException as error:
                raise self._failed(error.args[0], "") from error

    def _look(
        self, consumer: ck.Consumer, cluster_id: str, is_wanted: Callable[[TopicPartition], bool]
    ) -> dict[TopicPartition, Unclaimed]:
        offsets, admin = Offsets(consumer), AdminClient(admin_config(self.settings))
        offsets.within(PATIENCE_S)
        tps = self._left(consumer, offsets) if self.left_of else offsets.partitions(self.settings.topics)
        logs = self._logs(consumer, offsets, [tp for tp in tps if is_wanted(tp)])
        if not logs:
            return {}
        commits, bounds = self._commits(admin, logs, offsets.left_s()), offsets.bounds(list(logs.values()))
        topics = {each.topic for pair in logs.items() for each in pair}
        ids = TopicIds(admin, cluster_id, MadeAgain()).find(topics, offsets.left_s())
        found = {}
        for tp, log in logs.items():
            between = self._good(log.topic, bounds[log])
            topic_id = "" if self.left_of and _is_missing(ids.get(tp.topic)) else ids.get(tp.topic, "")
            topic_id, log_id = self._good(tp.topic, topic_id), self._good(log.topic, ids.get(log.topic, ""))
            commit = commits[tp]
            if commit.error is not None:
                raise self._failed(commit.error, tp.topic)
            start = self._start(commit, Identity(cluster_id, self.settings.group_id, topic_id, 0))
            found[tp] = Unclaimed(number_of(log_id or log.topic), between.low, between.high, start)
        return found

    def _left(self, consumer: ck.Consumer, offsets: Offsets) -> list[TopicPartition]:
        """The partitions of changelogs whose topics are not read, by those that their topics have or had."""
        assert self.left_of is not None
        known = consumer.list_topics(timeout=offsets.left_s()).topics
        left = [(topic, known[name]) for name in known if (topic := self.left_of(name, known))]
        return [TopicPartition(topic, number) for topic, log in left for number in log.partitions]

    def _commits(
        self, admin: AdminClient, tps: Iterable[TopicPartition], patience_s: float
    ) -> dict[TopicPartition, ck.TopicPartition]:
        """The group's commits. A consumer would ask for them again and again where the right is missing."""
        group_id = self.settings.group_id
        asked = ck.ConsumerGroupTopicPartitions(group_id, [ck.TopicPartition(*tp[:2]) for tp in tps])
        answer = admin.list_consumer_group_offsets([asked], request_timeout=patience_s)[group_id]
        found = answer.result(patience_s).topic_partitions
        return {TopicPartition(each.topic, each.partition): each for each in found}

    def _logs(
        self, consumer: ck.Consumer, offsets: Offsets, tps: Sequence[TopicPartition]
    ) -> dict[TopicPartition, TopicPartition]:
        """The partitions of changelogs that exist, by those of the source."""
        logs: dict[TopicPartition, TopicPartition] = {}
        for topic in sorted({tp.topic for tp in tps}):
            name = self.name_of(topic)
            known = consumer.list_topics(name, timeout=offsets.left_s()).topics[name]
            if known.error is not None and known.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._failed(known.error, name)
            if known.error is not None:
                self.missing.append(name)
            logs |= {
                tp: TopicPartition(name, tp.partition)
                for tp in tps
                if tp.topic == topic and tp.partition in known.partitions
            }
        return logs

    def _start(self, commit: ck.TopicPartition, known: Identity) -> Start:
        """Where the next owner would continue."""
        topic, offset = topic_hash(known.topic_id), commit.offset
        decoded = decode(commit.metadata, offset, known, self.rules)
        if decoded.state is not None:
            state, lineage = decoded.state, RecordLineage(decoded.incarnation, topic)
            return Start(state.stores, lineage, state.watermark, state.seen, self.now)
        if offset < 0:  # expired, or never there: nothing shows that messages are read again
            offset = ORIGIN_MAX
        return Start(NO_STORES, RecordLineage(_NEW, topic), offset, offset, self.now)

    def _good(self, topic: str, answer: T | KafkaError) -> T:
        if isinstance(answer, KafkaError):
            raise self._failed(answer, topic)
        return answer

    def _failed(self, error: KafkaError, topic: str) -> SidecarError:
        servers = self.settings.bootstrap_servers
        if is_forbidden(error):
            return forbidden(error, topic, self.settings.group_id)
        return UnavailableError(
            f"Kafka at {servers} does not tell what is held{topic and f' in {topic}'}: {text_of(error)}",
            hint="check that the brokers run and are reachable from here, and run the command again",
        )
