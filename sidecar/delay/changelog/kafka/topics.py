"""The topics of changelogs: created if they are missing, checked, and known by their ids. Moves no entry."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from sidecar.config.delay import ChangelogSettings
from sidecar.config.source.kafka import TOPIC, KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.kafka import rules
from sidecar.delay.changelog.kafka.clients import admin_config
from sidecar.errors import ConfigError, UnavailableError
from sidecar.owner import Owner
from sidecar.sources.base import Tell
from sidecar.sources.kafka.reach import is_forbidden, text_of
from sidecar.sources.kafka.topics import MadeAgain, TopicIds, is_mock

T = TypeVar("T")

TIMEOUT_S = 5.0
AWAIT_S = 10.0
"""How long a new topic, or a new partition, may be unknown to the broker that is asked."""
FRESH_S = 10.0
"""How long the id of a topic is trusted: all partitions of an assignment are opened in this time."""
_REFUSED = {KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG}
_CHANGING: dict[str, Any] = {"operation_timeout": TIMEOUT_S, "request_timeout": AWAIT_S}
_NEEDED = {AclOperation.READ: "Read", AclOperation.WRITE: "Write"}


class _Topic(NamedTuple):
    """A topic as a broker describes it."""

    partitions: int
    replicas: int
    brokers: int
    id: str
    """Empty if the broker has no topic ids."""
    lacking: str
    """The operations that are not allowed; empty if it is not known."""


class _Opened(NamedTuple):
    topic: _Topic
    at_s: float


class Topics:
    """Opens the topics of changelogs. For any thread.

    Args:
        part_bytes: Size of the largest part that is parked.
    """

    def __init__(self, kafka: KafkaSettings, changelog: ChangelogSettings, tell: Tell, part_bytes: int = 0) -> None:
        self.kafka = kafka
        """The settings of the clients."""
        self._changelog = changelog
        self._tell = tell
        self._part_bytes = part_bytes
        self._busy = threading.Lock()
        self._opened: dict[str, _Opened] = {}
        self._checked: dict[str, str] = {}
        """The id under which a topic was checked."""
        self._client: AdminClient | None = None
        self._ids: TopicIds | None = None

    @property
    def servers(self) -> str:
        """The brokers, for texts."""
        return self.kafka.bootstrap_servers

    def name(self, topic: str) -> str:
        """The name of the changelog of a topic.

        Raises:
            ConfigError: No topic can have it, or the source reads it.
        """
        name = self._changelog.name(self.kafka.group_id, topic)
        text = "which no topic can have (at most 249 characters)" if not re.fullmatch(TOPIC, name) else ""
        if entry := self.kafka.entry_of(name):
            text = f"which source.kafka.topics ({entry}) reads"
        if text:
            raise ConfigError(
                f"delayed messages of the topic {topic} cannot be held: their topic would be {name}, {text}",
                hint=f"set another delay.changelog.topic, {rules.LOCAL}",
            )
        return name

    @property
    def owner(self) -> Owner:
        """The group, whose mark its topics have."""
        return Owner(self.kafka.group_id)

    def open(self, tp: TopicPartition) -> int:
        """Like `Restorer.open`; settings are checked once for each id, and an id is trusted for 10 s."""
        name = self.name(tp.topic)
        with self._busy:
            known = self._opened.get(name)
            stale = known is None or tp.partition >= known.topic.partitions
            if known is None or stale or time.monotonic() - known.at_s > FRESH_S:
                known = self._opened[name] = _Opened(self._look(name, tp), time.monotonic())
        return number_of(known.topic.id or name)

    def id_of(self, name: str) -> str:
        """The id of a changelog's topic when it was opened last; empty if it has none."""
        known = self._opened.get(name)
        return known.topic.id if known else ""

    def watch(self) -> Iterator[tuple[str, str | None]]:
        """Request ids every 5 s without waiting; yield the answers: topic and id, None for a topic that is gone."""
        if self._ids is not None:
            yield from self._ids.watch([name for name, known in tuple(self._opened.items()) if known.topic.id])

    def forget_topic(self, name: str) -> None:
        """Have the next `open` ask about a topic again."""
        self._opened.pop(name, None)

    def _look(self, name: str, tp: TopicPartition) -> _Topic:
        source = self._describe(tp.topic)
        if source is None:
            raise UnavailableError(f"Kafka at {self.servers} does not know the topic {tp.topic}")
        found = self._describe(name, source)
        checked = found is not None and self._checked.get(name) == (found.id or name)
        config = {} if checked else rules.with_parts(self._config(tp.topic) or {}, self._part_bytes)
        if found is None:
            found = self._create(name, source, config)
        wanted = max(source.partitions, tp.partition + 1)
        if found.partitions < wanted:
            found = self._grow(name, wanted)
        if found.lacking:
            raise self._unusable(name, f"it may not be used: {found.lacking} is not allowed", self._allowing())
        if not checked:
            self._check(name, found, source, config)
            self._checked[name] = found.id or name
        return found

    def _check(self, name: str, found: _Topic, source: _Topic, config: rules.Config) -> None:
        mine = self._config(name)
        if mine is None:
            raise self._unusable(name, "its settings may not be read", self._allowing())
        if not mine:
            return
        if refused := rules.refusal(self.servers, name, mine, config):
            raise refused
        for text in rules.warnings(mine, config, found.replicas, source.replicas):
            self._tell("delay.changelog_warning", "warning", {"topic": name, "reason": text})

    def _create(self, name: str, source: _Topic, config: rules.Config) -> _Topic:
        replicas = self._replicas(source)
        topic = NewTopic(name, source.partitions, replicas, config=rules.settings_of(config, replicas))
        try:
            self._result(self._admin.create_topics([topic], **_CHANGING)[name])
        except KafkaException as error:
            code, text = error.args[0].code(), text_of(error.args[0])
            if is_forbidden(error.args[0]) or code in _REFUSED:
                cure = self._creating(name, source, config)
                raise self._unusable(name, f"it is missing, and may not be created: {text}", cure) from error
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                most = f"set delay.changelog.replication_factor to at most {source.brokers}"
                hint = f"start the brokers that are missing, or {most}"
                raise UnavailableError(f"the topic {name} cannot be created: {text}", hint=hint) from error
            if code != KafkaError.TOPIC_ALREADY_EXISTS:  # another member may have created it
                raise self._unavailable(error.args[0], name) from error
        return self._await(name, 1)

    def _grow(self, name: str, wanted: int) -> _Topic:
        try:
            self._result(self._admin.create_partitions([NewPartitions(name, wanted)], **_CHANGING)[name])
        except KafkaException as error:
            code, text = error.args[0].code(), text_of(error.args[0])
            if is_forbidden(error.args[0]) or code in _REFUSED:
                what = f"it needs {wanted} partitions, as the source's topic has, and they may not be added: {text}"
                raise self._unusable(name, what, f"run {rules.growing(self.servers, name, wanted)}") from error
            if code != KafkaError.INVALID_PARTITIONS:  # another member may have added them
                raise self._unavailable(error.args[0], name) from error
        return self._await(name, wanted)

    def _await(self, name: str, partitions: int) -> _Topic:
        """The topic once it has these partitions; a broker may lag behind the one that changed it."""
        deadline_s = time.monotonic() + AWAIT_S
        reason = f"Kafka at {self.servers} does not know the partition {partitions - 1} of {name}"
        while time.monotonic() < deadline_s:
            try:
                found = self._describe(name)
                if found is not None and found.partitions >= partitions:
                    return found
            except UnavailableError as error:
                reason = str(error)
            time.sleep(0.05)
        raise UnavailableError(f"{reason}, {AWAIT_S:g} s after it was created")

    def _describe(self, name: str, source: _Topic | None = None) -> _Topic | None:
        """The topic; None if it is missing. `source` is the source's topic if this is its changelog."""
        try:
            cluster = self._admin.list_topics(name, timeout=TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error.args[0], name) from error
        found = cluster.topics[name]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        if found.error is not None and is_forbidden(found.error) and source is not None:
            cure = f"{self._allowing()}; if the topic is missing, {self._creating(name, source, {})}"
            raise self._unusable(name, f"it may not be described: {text_of(found.error)}", cure)
        if found.error is not None:
            raise self._unavailable(found.error, name)
        replicas = min((len(partition.replicas) for partition in found.partitions.values()), default=0)
        topic_id, lacking = self._identify(name, cluster.cluster_id or "")
        return _Topic(len(found.partitions), replicas, len(cluster.brokers), topic_id, lacking)

    def _identify(self, name: str, cluster_id: str) -> tuple[str, str]:
        """The topic's id, and the operations that are not allowed."""
        if is_mock(cluster_id):
            return "", ""
        self._ids = self._ids or TopicIds(self._admin, cluster_id, MadeAgain())
        options: dict[str, Any] = {"include_authorized_operations": True, "request_timeout": TIMEOUT_S}
        try:
            described = self._result(self._admin.describe_topics(ck.TopicCollection([name]), **options)[name])
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:  # brokers before 2.8 have no ids
                return "", ""
            raise self._unavailable(error.args[0], name) from error
        allowed = described.authorized_operations
        lacking = [text for operation, text in _NEEDED.items() if allowed is not None and operation not in allowed]
        return str(described.topic_id), " and ".join(lacking)

    def _config(self, name: str) -> dict[str, str] | None:
        """The topic's settings; None if they may not be read, empty if the broker has none (the mock cluster)."""
        if self._ids is None:
            return {}
        asked = ConfigResource(ResourceType.TOPIC, name)
        try:
            entries = self._result(self._admin.describe_configs([asked], request_timeout=TIMEOUT_S)[asked])
        except KafkaException as error:
            if is_forbidden(error.args[0]):
                return None
            raise self._unavailable(error.args[0], name) from error
        return {key: entry.value for key, entry in entries.items() if entry.value is not None}

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(admin_config(self.kafka))
        return self._client

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(AWAIT_S + TIMEOUT_S)
        except TimeoutError as error:  # a client that does not report its own
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")) from error

    def _replicas(self, source: _Topic) -> int:
        """The replication factor: a broker that is down does not lower it below that of the source's topic."""
        return max(self._changelog.replicas(source.brokers), self._changelog.replicas(source.replicas))

    def _creating(self, name: str, source: _Topic, config: rules.Config) -> str:
        replicas = self._replicas(source)
        settings = rules.settings_of(config, replicas)
        return f"run {rules.creating(self.servers, name, source.partitions, replicas, settings)}"

    def _allowing(self) -> str:
        return "allow our user the operations Describe, DescribeConfigs, Read and Write on it"

    def _unusable(self, name: str, text: str, cure: str) -> ConfigError:
        what = f"the topic {name} of Kafka at {self.servers} holds delayed messages, but {text}"
        return ConfigError(what, hint=f"{cure}, {rules.LOCAL}")

    def _unavailable(self, error: KafkaError, name: str) -> UnavailableError:
        return UnavailableError(f"Kafka at {self.servers} does not answer about the topic {name}: {text_of(error)}")


def number_of(text: str) -> int:
    """48 bits that identify a topic, never 0."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") or 1
