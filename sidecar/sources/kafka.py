"""Kafka by a consumer group: one thread owns the client. Decides nothing about messages; the core does.

Traps that were met, and how each is closed, are told where the line stands that closes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException, Message

from sidecar.config.source import KafkaSource as KafkaSettings
from sidecar.core.effects import CommitItem
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.errors import StateError, UnavailableError
from sidecar.sources.base import Assignment, Listener, Original, ReadPast
from sidecar.sources.kafka_columns import KafkaColumns, runs_of
from sidecar.sources.kafka_commits import Commits
from sidecar.sources.kafka_config import SESSION_TIMEOUT_MS, client_config, consumer_config
from sidecar.sources.kafka_errors import forbidden, is_credentials, is_forbidden, refused, text_of
from sidecar.sources.kafka_fetch import Fetcher
from sidecar.sources.kafka_group import evict
from sidecar.sources.kafka_start import Starts
from sidecar.sources.kafka_topics import TopicIds
from sidecar.state.interface import State
from sidecar.state.offset_map import Identity

CHUNK_MESSAGES = 500
BUSY_WAIT_S = 0.005
LIST_TIMEOUT_S = 2.0
ASSIGN_PATIENCE_S = 60.0
MEMBER_PATIENCE_S = 1.0


class KafkaSource:
    """The source on confluent-kafka.

    Args:
        settings: `source.kafka`.
        state: For the member id and for what was known of partitions.
        rules: 4 bytes, a hash of what decides where a message goes.
        queue_bytes: What the client may hold before it is consumed.
    """

    columns: Columns = KafkaColumns()

    def __init__(self, settings: KafkaSettings, state: State, rules: bytes, queue_bytes: int) -> None:
        self._settings = settings
        self._state = state
        self._rules = rules
        self._queue_bytes = queue_bytes
        self._config = consumer_config(settings, queue_bytes)
        self._identities: dict[TopicPartition, Identity] = {}
        self._assigned: set[TopicPartition] = set()
        self._paused: frozenset[TopicPartition] = frozenset()
        self._failure: BaseException | None = None
        self._problems: dict[str, str] = {}
        self._refusal = ""
        self._joined = False
        self._chunk = CHUNK_MESSAGES
        self._busy = False
        self._one_topic = len(settings.topics) == 1 and not settings.topics[0].startswith("^")
        self._fetcher = Fetcher(client_config(settings))
        self.cluster_id = ""

    # Joining

    def open(self, listener: Listener) -> None:
        """Connect, evict the predecessor and join the group.

        Raises:
            UnavailableError: The broker cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The broker refuses the credentials.
        """
        self._listener = listener
        # A callback that raises makes consume() lose what it fetched: every one is wrapped.
        self._consumer = ck.Consumer(
            self._config | {"error_cb": self._safely(self._on_error), "on_commit": self._safely(self._on_commit)}
        )
        self._commits = Commits(self._consumer, listener, self._rules, self._identities)
        try:
            self._await_topics(time.monotonic() + self._settings.start_timeout_ms / 1000)
        except BaseException:
            self._consumer.close()
            raise
        self._topic_ids = TopicIds(client_config(self._settings), self.cluster_id)
        self._state.bind(self.cluster_id, self._settings.group_id)
        self._evict_predecessor()
        self._starts = Starts(
            self._consumer,
            self.cluster_id,
            self._settings.group_id,
            self._settings.topics,
            self._settings.start,
            self._rules,
            self._state.load_partitions().get,
            listener.event,
        )
        self._consumer.subscribe(
            self._settings.topics,
            on_assign=self._safely(self._on_assign),
            on_revoke=self._safely(self._on_revoke),
            on_lost=self._safely(self._on_lost),
        )
        self._remember_member()

    def _remember_member(self) -> None:
        """The broker names us before it lets us in: killed from then on, we are evicted by our successor."""
        deadline = time.monotonic() + MEMBER_PATIENCE_S
        while not (member := self._consumer.memberid()) and time.monotonic() < deadline:
            time.sleep(0.002)
        if member:
            self._save_member(member)

    def _save_member(self, member: str) -> None:
        try:
            self._state.save_member(self._settings.group_id, member)
        except StateError as error:  # a full disk costs the next start 9 s, no message
            self._listener.event("member.not_saved", "warning", {"reason": str(error)})

    def _safely(self, callback: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            try:
                callback(*args)
            except BaseException as error:  # noqa: BLE001  # raised from poll() instead
                self._failure = self._failure or error

        return call

    def _await_topics(self, deadline_s: float) -> None:
        wanted = [topic for topic in self._settings.topics if not topic.startswith("^")]
        reason = "it did not answer"
        while True:
            missing = wanted
            try:
                cluster = self._consumer.list_topics(
                    timeout=max(0.1, min(LIST_TIMEOUT_S, deadline_s - time.monotonic()))
                )
                self.cluster_id = cluster.cluster_id or ""
                missing = [t for t in wanted if t not in cluster.topics or cluster.topics[t].error is not None]
                if not missing:
                    break
                reason = ""
            except KafkaException as error:
                reason = text_of(error.args[0])
            self._consumer.poll(0.1)  # serves the callback that hears of refusals
            self._refuse([] if reason else missing)
            if time.monotonic() >= deadline_s:
                raise self._unavailable(missing, reason)

    def _refuse(self, missing: Sequence[str]) -> None:
        """Fail at once where waiting cures nothing."""
        if self._refusal:
            raise refused(self._settings.bootstrap_servers, self._refusal)
        for topic in missing:  # a list of all topics leaves out what may not be seen
            with contextlib.suppress(KafkaException):
                error = self._consumer.list_topics(topic, timeout=LIST_TIMEOUT_S).topics[topic].error
                if error is not None and is_forbidden(error):
                    raise forbidden(error, topic, self._settings.group_id)

    def _unavailable(self, missing: Sequence[str], reason: str) -> UnavailableError:
        waited = f"for {self._settings.start_timeout_ms / 1000:g} s (source.kafka.start_timeout)"
        servers = self._settings.bootstrap_servers
        if reason:
            detail = self._problems.get("client") or reason
            return UnavailableError(
                f"Kafka at {servers} could not be reached {waited}: {detail}",
                hint="check source.kafka.bootstrap_servers, and that the broker runs and is reachable from here",
            )
        return UnavailableError(
            f"Kafka at {servers} does not know the topic {', '.join(missing)} {waited}",
            hint="create the topic, or correct source.kafka.topics",
        )

    def _evict_predecessor(self) -> None:
        left = self._state.member()
        if left is None or left[0] != self._settings.group_id:
            return
        begun = time.monotonic()
        try:
            evict(self._settings.bootstrap_servers, self._settings.properties, *left)
            seconds = round(time.monotonic() - begun, 3)
            self._listener.event("member.evicted", "info", {"member": left[1], "seconds": seconds})
        except Exception as error:  # noqa: BLE001  # going on without costs 9 s, no message
            fields = {"member": left[1], "reason": str(error), "waits_seconds": SESSION_TIMEOUT_MS / 1000}
            self._listener.event("member.not_evicted", "warning", fields)

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """What has come, in the order of each partition; serves the listener meanwhile."""
        self._watch_topic_ids()  # before consume(): what came under the old id must not be taken for the new one's
        # A call that waits takes all that is fetched meanwhile, 20 MB in 50 ms with a queue of 4 MiB; so it is 8 MB.
        if not self._busy:
            time.sleep(timeout_s)
        messages = self._consumer.consume(self._chunk, min(timeout_s, BUSY_WAIT_S) if self._busy else 0)
        self._busy = len(messages) == self._chunk
        if self._failure is not None:
            raise self._failure
        if not messages:
            return ()
        if any(map(Message.error, messages)):
            return self._with_errors(messages)
        self._adapt_chunk(messages)
        return runs_of(messages, one_topic=self._one_topic)

    def _adapt_chunk(self, messages: list[Message]) -> None:
        """One call may hand over 500 messages of 1 MB each: ask for fewer where they are large."""
        sample = max(len(messages[i]) for i in (0, len(messages) // 2, -1))
        self._chunk = max(1, min(CHUNK_MESSAGES, self._queue_bytes // (4 * max(sample, 1))))

    def _with_errors(self, messages: list[Message]) -> list[Run | ReadPast]:
        found: list[Run | ReadPast] = []
        good: list[Message] = []
        reloaded: set[TopicPartition] = set()
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
                continue
            if good:
                found += runs_of(good)
                good = []
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            if error.code() == KafkaError._PARTITION_EOF:
                found.append(ReadPast(tp, message.offset() or 0))
            elif self._on_partition_error(tp, error):
                reloaded.add(tp)
        found += runs_of(good) if good else ()
        return [one for one in found if one.tp not in reloaded]  # what was read before belongs to an ended ownership

    def _on_partition_error(self, tp: TopicPartition, error: KafkaError) -> bool:
        """Returns whether the partition was taken anew."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and tp in self._assigned:
            self._listener.event("offset.out_of_range", "warning", {"topic": tp.topic, "partition": tp.partition})
            self.reload(tp)
            return True
        if is_forbidden(error) and not self._joined:  # later it may be a mistake that somebody mends
            raise forbidden(error, tp.topic, self._settings.group_id)
        self._problem(tp.topic or "client", f"{tp.topic} {text_of(error)}".strip())
        return False

    def _problem(self, key: str, text: str) -> None:
        if self._problems.get(key) != text:
            self._problems[key] = text
            self._listener.event("kafka.failed", "warning", {"what": key, "reason": text})

    def problems(self) -> Mapping[str, str]:
        """What is wrong with the broker at present: a key, and a sentence for an operator."""
        return self._problems

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read from all assigned partitions but these."""
        wanted = frozenset(tps) & self._assigned
        for change, these in (
            (self._consumer.pause, wanted - self._paused),
            (self._consumer.resume, self._paused - wanted),
        ):
            here = [ck.TopicPartition(*tp) for tp in these if tp in self._assigned]
            if here:
                change(here)
        self._paused = wanted

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the partition's next message will get, as far as known without asking."""
        bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), cached=True)
        return bounds[1] if bounds and bounds[1] >= 0 else None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as the broker has it, None when it is gone; from any one other thread.

        Raises:
            UnavailableError: The broker does not answer.
        """
        return self._fetcher.fetch(tp, offset)

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` tells the end."""
        self._commits.begin(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable behind any commit begun before, whose end is not told any more."""
        return self._commits.now(items)

    def _on_commit(self, error: KafkaError | None, done: Sequence[ck.TopicPartition]) -> None:
        if self._commits.ended(error, done):
            self._problems.pop("client", None)

    # The group

    def _on_error(self, error: KafkaError) -> None:
        if is_credentials(error):
            self._refusal = text_of(error)
        if error.fatal():
            raise KafkaException(error)
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._problem("client", text_of(error))

    def _on_assign(self, consumer: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._take(tps)
        self._save_member(consumer.memberid() or "")

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        found = self._find_patiently(tps) if tps else []
        for one in found:
            group = self._settings.group_id
            self._identities[one.tp] = Identity(self.cluster_id, group, one.topic_id, one.incarnation)
        self._joined = True
        self._assigned.update(tps)
        self._paused -= set(tps)
        starts = [ck.TopicPartition(one.tp.topic, one.tp.partition, one.read_from) for one in found]
        if starts:
            self._consumer.incremental_assign(starts)
        self._listener.assigned(found)

    def _find_patiently(self, tps: Sequence[TopicPartition]) -> list[Assignment]:
        deadline = time.monotonic() + ASSIGN_PATIENCE_S
        while True:
            try:
                return self._starts.find(tps, self._topic_ids.find({tp.topic for tp in tps}))
            except KafkaException as error:
                if is_forbidden(error.args[0]) and not self._joined:
                    raise forbidden(error.args[0], tps[0].topic, self._settings.group_id) from error
                if time.monotonic() > deadline:
                    raise UnavailableError(f"Kafka does not tell where to go on: {error.args[0].str()}") from error
                self._problem("client", f"asking where to go on: {error.args[0].str()}")
                time.sleep(0.2)

    def _on_revoke(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._listener.revoking(tps)
        self._drop(tps)

    def _on_lost(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._listener.lost(tps)
        self._drop(tps)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        self._assigned.difference_update(tps)
        self._paused -= set(tps)
        for tp in tps:
            self._identities.pop(tp, None)

    def reload(self, tp: TopicPartition) -> None:
        """Give the partition up and take it again from what is committed."""
        if tp not in self._assigned:
            return
        self._listener.lost([tp])
        self._drop([tp])
        self._consumer.incremental_unassign([ck.TopicPartition(*tp)])
        self._take([tp])

    def _watch_topic_ids(self) -> None:
        for topic, topic_id in self._topic_ids.watch({tp.topic for tp in self._assigned}):
            if topic_id is None:
                self._problem(topic, f"the topic {topic} does not exist any more")
                continue
            self._problems.pop(topic, None)
            self._problems.pop("client", None)
            for tp in [tp for tp in self._assigned if tp.topic == topic and self._identities[tp].topic_id != topic_id]:
                self.reload(tp)

    def close(self) -> None:
        """Leave the group and disconnect; what is assigned is revoked first."""
        with contextlib.suppress(RuntimeError):
            self._consumer.close()
        self._fetcher.close()
        if self._failure is not None:
            raise self._failure
