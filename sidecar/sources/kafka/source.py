"""Kafka by a consumer group: one thread owns the client. Decides nothing about messages; the core does.

Comments at the lines concerned explain the client's traps and how each is avoided.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from sidecar.config.source import KafkaSource as KafkaSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.errors import StateError
from sidecar.sources.base import SESSION, Listener, Original, ReadPast
from sidecar.sources.kafka.columns import KafkaColumns, runs_of
from sidecar.sources.kafka.commits import Commits
from sidecar.sources.kafka.config import client_config, consumer_config
from sidecar.sources.kafka.ends import Ends
from sidecar.sources.kafka.errors import forbidden, is_credentials, is_forbidden, text_of
from sidecar.sources.kafka.fetch import Fetcher
from sidecar.sources.kafka.group import evict_predecessors, leave_behind_nothing, members_called
from sidecar.sources.kafka.memory import Memories
from sidecar.sources.kafka.offsets import Offsets
from sidecar.sources.kafka.reach import await_topics, metadata_characters
from sidecar.sources.kafka.recall import Recall
from sidecar.sources.kafka.start import Found, Starts
from sidecar.sources.kafka.topics import MadeAgain, TopicIds, is_mock
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State
from sidecar.state.offset_map import Identity

CHUNK_MESSAGES = 500
BUSY_WAIT_S = 0.005
START_PATIENCE_S = 2.0
"""How long the loop may wait for the answers about start offsets."""
RETRY_S, RETRY_SHARE = 1.0, 4
"""Retry after 1 s, or after four times the duration of the last attempt: at most a fifth of the time."""
MEMBER_PATIENCE_S = 1.0
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class KafkaSource:
    """The source on confluent-kafka.

    Args:
        settings: `source.kafka`.
        state: Has the member id and the state of partitions.
        rules: 4 bytes, a hash of what decides where a message goes.
        queue_bytes: Limit of the client's queue.
        client_id: See `place_id`; a `client.id` of the settings may be shared with others, so none is looked up by it.
    """

    columns: Columns = KafkaColumns()
    name = "Kafka"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = 0.05

    def __init__(
        self, settings: KafkaSettings, state: State, rules: bytes, queue_bytes: int, client_id: str = ""
    ) -> None:
        self._settings = settings
        self._state = state
        self._rules = rules
        self._queue_bytes = queue_bytes
        self._client_id = "" if "client.id" in settings.properties else client_id
        self._config = consumer_config(settings, queue_bytes, client_id or "sidecar")
        self._identities: dict[TopicPartition, Identity] = {}
        self._assigned: set[TopicPartition] = set()
        self._given: list[TopicPartition] | None = None
        """What the group gave us in the present `consume()`."""
        self._lost: set[str] = set()
        """Topics of the partitions that were lost last."""
        self._waiting: dict[TopicPartition, KafkaError] = {}
        """Ours, but where to go on could not be told, and why."""
        self._retry_at_s = 0.0
        self._paused: frozenset[TopicPartition] = frozenset()
        self._failure: BaseException | None = None
        self._troubles = Troubles(lambda *told: self._listener.event(*told), "kafka.failed", "kafka.recovered")
        self._refusal = ""
        self._joined = False
        self._chunk = CHUNK_MESSAGES
        self._busy = False
        self._one_topic = len(settings.topics) == 1 and not settings.topics[0].startswith("^")
        self._fetcher = Fetcher(client_config(settings))
        self._made_again = MadeAgain(aloud="debug" in settings.properties)
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
            self._config
            | {
                "logger": self._made_again,
                "error_cb": self._safely(self._on_error),
                "on_commit": self._safely(self._on_commit),
            }
        )
        try:
            self.cluster_id = await_topics(
                self._consumer, self._settings, lambda: self._refusal, self._troubles.now, listener.waiting
            )
        except BaseException:
            self._consumer.close()
            raise
        self._admin = AdminClient(client_config(self._settings))
        self._topic_ids = TopicIds(self._admin, self.cluster_id, self._made_again)
        if not is_mock(self.cluster_id):  # which never answers
            self.metadata_characters = metadata_characters(self._admin, listener.event)
        self._ends = Ends(self._admin, str(self._config["isolation.level"]))
        self._state.bind(self.cluster_id, self._settings.group_id)
        self._memories = Memories(self._state, listener.event)
        self._commits = Commits(self._consumer, listener, self._rules, self._identities, self._memories)
        self._evict_predecessors()
        self._starts = Starts(
            Offsets(self._consumer),
            self._topic_ids,
            self._settings,
            self.cluster_id,
            self._rules,
            self._state.load_partitions().get,
            Recall(self._memories, self._rules, self._fetcher.digest, listener.event),
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
        """Save the member id before the join ends: if this process is killed from now on, its successor evicts it."""
        deadline = time.monotonic() + MEMBER_PATIENCE_S
        while not (member := self._consumer.memberid()) and time.monotonic() < deadline:
            time.sleep(0.002)
        if member:
            self._save_member(member)

    def _save_member(self, member: str) -> None:
        try:
            self._state.save_member(self._settings.group_id, member)
        except StateError as error:  # a full disk delays the next start by 9 s, and loses no message
            self._listener.event("member.not_saved", "warning", {"reason": str(error)})

    def _safely(self, callback: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            try:
                callback(*args)
            except BaseException as error:  # noqa: BLE001  # raised from poll() instead
                self._failure = self._failure or error

        return call

    def _evict_predecessors(self) -> None:
        group, left = self._settings.group_id, self._state.member()
        member = left[1] if left is not None and left[0] == group else ""
        alone = self._client_id if not is_mock(self.cluster_id) else ""  # the mock may not answer

        def find() -> Sequence[str]:
            return members_called(self._admin, group, alone) if alone else ()

        evict_predecessors(self._settings, member, find, self._listener.event)

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived, in the order of each partition; serves the listener meanwhile."""
        self._take_waiting()
        self._watch_ends()
        self._watch_topic_ids()  # before consume(): messages of the old id must not be taken for the new one's
        # A waiting call returns all that is fetched meanwhile: 20 MB in 50 ms with a queue of 4 MiB; this way, 8 MB.
        if not self._busy:
            time.sleep(timeout_s)
        messages = self._consumer.consume(self._chunk, min(timeout_s, BUSY_WAIT_S) if self._busy else 0)
        self._busy = len(messages) == self._chunk
        if anew := {tp for told in self._made_again.take().items() for tp in self._reload_topic(*told)}:
            messages = [message for message in messages if _tp_of(message) not in anew]
        if self._failure is None and self._given is not None:
            given, self._given = self._given, None
            self._take(given)
        if self._failure is not None:
            raise self._failure
        if not messages:
            return ()
        if any(map(Message.error, messages)):
            return self._with_errors(messages)
        self._adapt_chunk(messages)
        return runs_of(messages, one_topic=self._one_topic)

    def _adapt_chunk(self, messages: list[Message]) -> None:
        """One call may return 500 messages of 1 MB each: request fewer if messages are large."""
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
            found += runs_of(good) if good else ()
            good = []
            tp = _tp_of(message)
            if error.code() == KafkaError._PARTITION_EOF:
                found.append(ReadPast(tp, message.offset() or 0))
            elif self._on_partition_error(tp, error):
                reloaded.add(tp)
        found += runs_of(good) if good else ()
        return [one for one in found if one.tp not in reloaded]  # earlier messages belong to an ended ownership

    def _on_partition_error(self, tp: TopicPartition, error: KafkaError) -> bool:
        """Return whether the partition was taken anew."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and tp in self._assigned:
            self._listener.event("offset.out_of_range", "warning", tp.fields())
            self.reload(tp)
            return True
        if is_forbidden(error) and not self._joined:  # later, an operator may correct it
            raise forbidden(error, tp.topic, self._settings.group_id)
        if code not in _GONE or self._is_named(tp.topic):
            self._troubles.put(tp.topic or "client", f"{tp.topic} {text_of(error)}".strip())
        return False

    def problems(self) -> Mapping[str, str]:
        """Present problems with the broker: a key, and a sentence for an operator."""
        now = self._troubles.now
        if SESSION not in now or not self._lost or self._lost - now.keys():
            return now
        gone = f"the topic {min(self._lost)} does not exist any more: make it again"  # with it everything was lost
        return {**now, SESSION: f"{gone} (it is read from its start), or take it out of source.kafka.topics"}

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Pause these partitions, and read all other assigned ones."""
        wanted = frozenset(tps) & self._assigned
        for change, these in (
            (self._consumer.pause, wanted - self._paused),
            (self._consumer.resume, self._paused - wanted),
        ):
            here = [ck.TopicPartition(*tp[:2]) for tp in these if tp in self._assigned]
            if here:
                change(here)
        self._paused = wanted

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the partition's next message will get, if known without a request."""
        bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp[:2]), cached=True)
        asked = self._ends.end(tp)
        end = max(bounds[1] if bounds else -1, -1 if asked is None else asked)  # cached: constant while paused
        return end if end >= 0 else None

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as the broker has it, None if it is gone; from one other thread.

        Raises:
            UnavailableError: The broker does not answer.
        """
        return self._fetcher.fetch(tp, offset)

    # Committing

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        self._commits.begin(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is not reported any more."""
        return self._commits.now(items)

    def _on_commit(self, error: KafkaError | None, done: Sequence[ck.TopicPartition]) -> None:
        if self._commits.ended(error, done):
            self._troubles.clear("client")

    # The group

    def _on_error(self, error: KafkaError) -> None:
        if is_credentials(error):
            self._refusal = text_of(error)
        if error.fatal():
            raise KafkaException(error)
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._troubles.put("client", text_of(error))

    def _on_assign(self, consumer: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        # Start offsets are requested after consume(): after a list_topics() here, the next callback aborts the process.
        self._given = (self._given or []) + [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        consumer.incremental_assign([])  # else the client would assign all by itself
        self._save_member(consumer.memberid() or "")

    def _take(self, tps: Sequence[TopicPartition]) -> None:
        """Start reading partitions; a partition whose start is unknown is retried, and delays no other."""
        begun_s = time.monotonic()
        found, failed = self._starts.find(tps, START_PATIENCE_S) if tps else Found([], {})
        self._waiting = {tp: error for tp, error in self._waiting.items() if tp not in tps} | failed
        self._retry_at_s = time.monotonic() + max(RETRY_S, RETRY_SHARE * (time.monotonic() - begun_s))
        self._tell_waiting()
        for one in found:
            self._identities[one.tp] = Identity(self.cluster_id, self._settings.group_id, one.topic_id, one.incarnation)
        here = [one.tp for one in found]
        self._assigned.update(here)
        self._paused -= set(here)
        self._consumer.incremental_assign([ck.TopicPartition(*one.tp[:2], one.read_from) for one in found])
        self._ends.ask_soon()
        if found or not tps:
            self._joined = True
            self._troubles.clear(SESSION)
            self._listener.assigned(found)

    def _tell_waiting(self) -> None:
        if not self._waiting:
            self._troubles.clear("start")
            return
        for tp, error in self._waiting.items():
            if is_forbidden(error) and not self._joined:
                raise forbidden(error, tp.topic, self._settings.group_id)
        tp, error = min(self._waiting.items(), key=lambda item: item[0])
        others = f" and {len(self._waiting) - 1} more" if len(self._waiting) > 1 else ""
        self._troubles.put("start", f"{tp}{others} cannot be read yet: {text_of(error)}")

    def _take_waiting(self) -> None:
        if self._waiting and time.monotonic() >= self._retry_at_s:
            self._take(sorted(self._waiting))

    def _on_revoke(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._listener.revoking(tps & self._assigned)
        self._drop(tps)

    def _on_lost(self, _: ck.Consumer, partitions: Sequence[ck.TopicPartition]) -> None:
        tps = {TopicPartition(tp.topic, tp.partition) for tp in partitions}
        self._lost = {tp.topic for tp in tps}
        self._troubles.put(SESSION, "the session with the group ended, and no partition was given to us since")
        self._listener.lost(tps & self._assigned)
        self._drop(tps)

    def _drop(self, tps: Collection[TopicPartition]) -> None:
        here = self._assigned.intersection(tps)
        self._assigned -= here
        self._paused -= here
        for tp in here:
            self._identities.pop(tp, None)
        self._waiting = {tp: error for tp, error in self._waiting.items() if tp not in tps}
        if self._given is not None:
            self._given = [tp for tp in self._given if tp not in tps]
        self._starts.forget(tps)
        self._ends.forget(tps)
        for topic in {tp.topic for tp in tps} - {tp.topic for tp in self._assigned}:
            if not self._is_named(topic):
                self._troubles.clear(topic)
        self._tell_waiting()
        # Not left to the client: it would include waiting partitions, fail, and go on reading another member's.
        self._consumer.incremental_unassign([ck.TopicPartition(*tp[:2]) for tp in here])

    def reload(self, tp: TopicPartition) -> None:
        """Give the partition up and take it again from its committed state."""
        self._reload(self._assigned & {tp})

    def _reload(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self._listener.reloading(tp)
        if tps:
            self._drop(tps)
            self._take(sorted(tps))

    def _reload_topic(self, topic: str, topic_id: str) -> Collection[TopicPartition]:
        """Reload the topic's partitions that were assigned under another id; returns them."""
        tps = {tp for tp in self._assigned if tp.topic == topic and self._identities[tp].topic_id != topic_id}
        self._reload(tps)
        return tps

    def _watch_ends(self) -> None:
        self._ends.watch(self._assigned)
        self._troubles.put("ends", "no broker has told the ends of our logs for 10 s" if self._ends.silent else "")

    def _is_named(self, topic: str) -> bool:
        """Whether a deleted topic is a problem: a topic that matches a pattern may be deleted."""
        return topic in self._settings.topics

    def _watch_topic_ids(self) -> None:
        for topic, topic_id in self._topic_ids.watch({tp.topic for tp in self._assigned}):
            if topic_id is None:
                self._troubles.put(topic, f"the topic {topic} does not exist any more" if self._is_named(topic) else "")
                continue
            self._troubles.clear(topic, "client")
            self._reload_topic(topic, topic_id)

    def close(self) -> None:
        """Leave the group and disconnect; what is assigned is revoked first."""
        with contextlib.suppress(RuntimeError):
            member = "" if is_mock(self.cluster_id) else self._consumer.memberid() or ""
            self._consumer.close()
            leave_behind_nothing(self._settings, self._admin, member, self._listener.event)
        self._memories.close()
        self._fetcher.close()
        if self._failure is not None:
            raise self._failure


def _tp_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)
