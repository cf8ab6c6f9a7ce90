"""Checks of Kafka: reachability, topics and group with the rights that are needed. Only describes; joins no group."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic  # type: ignore[attr-defined]

from sidecar.check.findings import Finding, failed
from sidecar.config.delay import ChangelogSettings
from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.delay.changelog.kafka.restorer import KafkaRestorer
from sidecar.delay.changelog.kafka.topics import Topics
from sidecar.errors import EXIT_CONFIG, EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, SidecarError, UnavailableError
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.reach import is_credentials, is_forbidden, metadata_characters, refused, text_of
from sidecar.sources.kafka.topics import is_mock

T = TypeVar("T")

REACH_S = 4.0
ASK_S = 4.0
ASSIGNOR = "cooperative-sticky"
_WORDS = {AclOperation.READ: "Read", AclOperation.WRITE: "Write"}
_READ = (AclOperation.READ,)
_WRITE = (AclOperation.WRITE,)


class _TopicFacts(NamedTuple):
    """A topic as the broker describes it."""

    partitions: int = 0
    allowed: Collection[AclOperation] | None = None
    """None if the broker does not report them."""
    error: KafkaError | None = None


def check_kafka(settings: Settings) -> Iterator[Finding]:
    """Check the cluster, the topics that are read and written, and the group."""
    kafka = settings.source.kafka
    cluster = _KafkaChecker(kafka)
    cluster.connect()
    yield Finding(f"Kafka at {kafka.bootstrap_servers}", cluster.summary)
    yield from cluster.sources()
    yield cluster.group()
    if settings.delay and settings.delay.changelog:
        yield from cluster.changelogs(settings.delay.changelog)
    if isinstance(settings.dead_letters, DeadLetterSettings) and settings.dead_letters.kafka_:
        cure = "create the topic: most brokers do not do so themselves"
        yield cluster.topic(settings.dead_letters.kafka.topic, "topic of dead letters", _WRITE, cure)
    yield from cluster.limits()


def cluster_id(kafka: KafkaSettings) -> str:
    """The id of the cluster; empty if no broker answers, or if it has none."""
    try:
        found: str = AdminClient(client_config(kafka)).list_topics(timeout=ASK_S).cluster_id or ""
    except KafkaException:
        return ""
    return "" if is_mock(found) else found


class _KafkaChecker:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._refusals: list[str] = []
        self._problems: list[str] = []
        config: dict[str, Any] = {**client_config(settings), "error_cb": self._on_error}
        self._admin = AdminClient(config)
        self._described: dict[str, _TopicFacts] = {}
        self._metadata: Any = None

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            (self._refusals if is_credentials(error) else self._problems).append(text_of(error))

    def connect(self) -> None:
        """Get the list of topics; raises `UnavailableError`, or `CredentialsError` if credentials are refused."""
        deadline_s, servers = time.monotonic() + REACH_S, self._settings.bootstrap_servers
        while self._metadata is None:
            reason = ""
            try:
                self._metadata = self._admin.list_topics(timeout=1.0)
            except KafkaException as error:
                reason = text_of(error.args[0])
            self._admin.poll(0.1)
            if self._refusals:
                raise refused(servers, self._refusals[0])
            if reason and time.monotonic() >= deadline_s:
                raise UnavailableError(
                    f"not reached within {REACH_S:g} s: {self._problems[-1] if self._problems else reason}",
                    hint="check source.kafka.bootstrap_servers, and that the broker runs and is reachable from here",
                )

    @property
    def summary(self) -> str:
        return f"{_count(len(self._metadata.brokers), 'broker')}, cluster {self._metadata.cluster_id}"

    def sources(self) -> Iterator[Finding]:
        for entry in self._settings.topics:
            if entry.startswith("^"):
                yield self._pattern(entry)
            else:
                yield self.topic(entry, "topic", _READ, "create the topic, or correct source.kafka.topics")

    def topic(self, name: str, kind: str, needed: Sequence[AclOperation], cure: str) -> Finding:
        """A topic that must exist, with these rights."""
        found, subject = self._describe([name])[name], f"{kind} {name}"
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return Finding(subject, "it does not exist, or may not be described", cure, EXIT_UNAVAILABLE)
        return self._judged(subject, f"the topic {name}", found, needed)

    def _judged(self, subject: str, what: str, found: _TopicFacts, needed: Sequence[AclOperation]) -> Finding:
        words = " and ".join(_WORDS[one] for one in needed)
        operations = f"Describe and {words}" if len(needed) == 1 else f"Describe, {words}"
        cure = f"allow this user the operations {operations} on {what}"
        if found.error is not None and is_forbidden(found.error):
            return Finding(subject, text_of(found.error), cure, EXIT_NO_PERMISSION)
        if found.error is not None:
            return Finding(subject, text_of(found.error), "check the broker's log", EXIT_UNAVAILABLE)
        size = _count(found.partitions, "partition")
        if found.allowed is None:
            return Finding(subject, f"{size}; the broker does not report the rights")
        if lacking := [_WORDS[one] for one in needed if one not in found.allowed]:
            return Finding(subject, f"{' and '.join(lacking)} is not allowed", cure, EXIT_NO_PERMISSION)
        return Finding(subject, f"{size}; {words} allowed")

    def _pattern(self, entry: str) -> Finding:
        names, subject = sorted(name for name in self._metadata.topics if re.match(entry, name)), f"topics {entry}"
        topics = self._describe(names)
        bad = [found for name in names if not (found := self._judged(subject, name, topics[name], _READ)).ok]
        count = _count(len(names), "topic")
        if not bad:
            return Finding(subject, f"{count}; topics that are created later are read too")
        return bad[0]._replace(text=f"{len(bad)} of {count} cannot be read: {bad[0].text}")

    def group(self) -> Finding:
        """The group; the check neither joins it nor commits to it."""
        name, subject = self._settings.group_id, f"group {self._settings.group_id}"
        cure = f"allow this user the operations Describe and Read on the group {name}"
        if is_mock(self._metadata.cluster_id or ""):
            return Finding(subject, "the mock cluster does not report it")
        options: dict[str, Any] = {"include_authorized_operations": True, "request_timeout": ASK_S}
        try:
            found = _result(self._admin.describe_consumer_groups([name], **options)[name])
        except KafkaException as error:
            forbidden = is_forbidden(error.args[0])
            text, code = text_of(error.args[0]), EXIT_NO_PERMISSION if forbidden else EXIT_UNAVAILABLE
            text = "Read is not allowed" if forbidden else text
            return Finding(subject, text, cure if forbidden else "check the broker's log", code)
        if found.authorized_operations and AclOperation.READ not in found.authorized_operations:
            return Finding(subject, "Read is not allowed", cure, EXIT_NO_PERMISSION)
        if found.members and found.partition_assignor not in ("", ASSIGNOR):
            text = f"it has members that are not Sidecar: their assignor is {found.partition_assignor}, not {ASSIGNOR}"
            return Finding(subject, text, "stop them, or set another source.kafka.group_id", EXIT_CONFIG)
        hosts = sorted({member.host.lstrip("/") for member in found.members})
        members = f"{_count(len(found.members), 'member')} on {', '.join(hosts)}" if hosts else "no members now"
        return Finding(subject, f"{members}; Read allowed" if found.authorized_operations else members)

    def changelogs(self, changelog: ChangelogSettings) -> Iterator[Finding]:
        """The compacted topics of delayed messages."""
        kafka, needed = self._settings, (AclOperation.READ, AclOperation.WRITE)
        sources = [topic for topic in kafka.topics if not topic.startswith("^")]
        for source, name in zip(sources, changelog.names(kafka), strict=True):
            found = self._describe([name])[name]
            if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                judged = self._creatable(name, self._describe([source])[source].partitions or 1, changelog)
            else:
                judged = self._judged(f"topic of delayed messages {name}", f"the topic {name}", found, needed)
            yield self._ours(judged, name, changelog) if judged.ok else judged

    def _ours(self, judged: Finding, name: str, changelog: ChangelogSettings) -> Finding:
        """The finding on a topic, or a finding that the topic is another group's."""
        topics = Topics(self._settings, changelog, lambda *_: None)
        with closing(KafkaRestorer(topics, ASK_S)) as restorer:
            try:
                if self._described[name].error is None:
                    restorer.refuse_foreign(name)
            except SidecarError as error:
                return failed(judged.subject, error)
        return judged

    def _creatable(self, name: str, partitions: int, changelog: ChangelogSettings) -> Finding:
        """Whether the topic may be created: the broker judges a request that creates nothing."""
        subject, replicas = f"topic of delayed messages {name}", changelog.replicas(len(self._metadata.brokers))
        cure = f"allow this user the operation Create on it, or create it: compacted, with {partitions} partitions"
        asked = NewTopic(name, partitions, replicas)
        options: dict[str, Any] = {"operation_timeout": ASK_S, "request_timeout": ASK_S, "validate_only": True}
        try:
            _result(self._admin.create_topics([asked], **options)[name])
        except KafkaException as error:
            if is_forbidden(error.args[0]):
                return Finding(subject, "it is missing, and may not be created", cure, EXIT_NO_PERMISSION)
            text = f"it is missing, and cannot be created: {text_of(error.args[0])}"
            return Finding(subject, text, "check delay.changelog.replication_factor", EXIT_UNAVAILABLE)
        return Finding(subject, "it is missing, and will be created at the start")

    def limits(self) -> Iterator[Finding]:
        """The room for metadata beside an offset; yields nothing if it is large enough."""
        try:
            metadata_characters(self._admin, lambda *_: None)
        except SidecarError as error:
            yield Finding("offset.metadata.max.bytes", str(error), error.hint, error.exit_code)

    def _describe(self, names: Sequence[str]) -> Mapping[str, _TopicFacts]:
        asked = [name for name in names if name not in self._described]
        if asked and is_mock(self._metadata.cluster_id or ""):
            self._described |= {name: _listed(self._metadata, name) for name in asked}
        elif asked:
            options: dict[str, Any] = {"include_authorized_operations": True, "request_timeout": ASK_S}
            futures = self._admin.describe_topics(ck.TopicCollection(asked), **options)
            self._described |= {name: self._answered(name, futures[name]) for name in asked}
        return self._described

    def _answered(self, name: str, future: Future[Any]) -> _TopicFacts:
        try:
            found = _result(future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:
                return _listed(self._metadata, name)
            return _TopicFacts(error=error.args[0])
        return _TopicFacts(len(found.partitions), found.authorized_operations)


def _listed(metadata: Any, name: str) -> _TopicFacts:
    """The topic from the list of all topics, without rights: the broker is too old to report them."""
    found = metadata.topics.get(name)
    if found is None or found.error is not None:
        return _TopicFacts(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    return _TopicFacts(len(found.partitions))


def _result(future: Future[T]) -> T:
    try:
        return future.result(ASK_S + 1)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")) from error


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
