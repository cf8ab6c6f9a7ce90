"""Kafka through a consumer group: one thread owns the client. The core decides about messages."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Lineage
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Original, Run, TopicPartition
from sidecar.sources.base import Listener, ReadPast
from sidecar.sources.context import SourceContext
from sidecar.sources.kafka.columns import Failed, KafkaColumns, LaneColumns, runs_and_errors
from sidecar.sources.kafka.config import client_config, consumer_config
from sidecar.sources.kafka.fetch import KafkaFetcher
from sidecar.sources.kafka.offsets import Offsets
from sidecar.sources.kafka.partitions import Ends, Membership, Partitions
from sidecar.sources.kafka.reach import await_topics, is_credentials, metadata_characters, text_of
from sidecar.sources.kafka.start import CommitMemory, KafkaStartOffsets, Memories, Recall
from sidecar.sources.kafka.topics import MadeAgain, TopicIds, is_mock
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import Rules
from sidecar.state.offset_map import Identity, encode

if TYPE_CHECKING:
    from sidecar.sources.kafka.lane import FastLane

CHUNK_MESSAGES = 500
BUSY_WAIT_S, IDLE_WAIT_S = 0.005, 0.05


class KafkaClient:
    """A consumer of confluent-kafka, used on one thread; a lane may read in its place."""

    consumer: ck.Consumer
    """The consumer, after `open`."""

    def __init__(self, settings: KafkaSettings, queue_bytes: int, client_id: str, lane: FastLane | None = None) -> None:
        self.lane = lane
        self.made_again = MadeAgain(aloud="debug" in settings.properties)
        self.refusal = ""
        """Why the broker refused the credentials."""
        self.failure: BaseException | None = None
        """The first error of a callback."""
        self._config = consumer_config(settings, queue_bytes, client_id)
        self._queue_bytes = queue_bytes
        self._chunk = CHUNK_MESSAGES
        self.has_more = False
        self._commit_ended = False
        self._one_topic = len(settings.topics) == 1 and not settings.topics[0].startswith("^")

    def open(self, troubles: Troubles, on_commit: Callable[..., None]) -> None:
        def on_error(error: KafkaError) -> None:
            if is_credentials(error):
                self.refusal = text_of(error)
            if error.fatal():
                raise KafkaException(error)
            if error.code() != KafkaError._ALL_BROKERS_DOWN:
                troubles.put("client", text_of(error))

        def on_end(*ended: Any) -> None:
            self._commit_ended = True
            on_commit(*ended)

        callbacks = {"error_cb": self.safely(on_error), "on_commit": self.safely(on_end)}
        config = self._config | {"logger": self.made_again} | callbacks

        def make(more: dict[str, Any]) -> ck.Consumer:
            return ck.Consumer(config | more)

        self.consumer = make({}) if self.lane is None else self.lane.make(make)

    @property
    def isolation_level(self) -> str:
        return str(self._config["isolation.level"])

    def safely(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback: one that raises would make consume() lose the fetched messages."""

        def call(*args: Any) -> None:
            try:
                callback(*args)
            except BaseException as error:  # noqa: BLE001  # `check` raises it instead
                self.failure = self.failure or error

        return call

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def read(self, timeout_s: float) -> list[Run | Failed]:
        """Runs and errors that were fetched, waiting this long for them; serves callbacks meanwhile."""
        # A waiting call returns everything that is fetched meanwhile: 20 MB in 50 ms with a queue of 4 MiB; this way, 8
        # MB. The lane bounds a call by bytes, and waits for them no longer than they take to come.
        waits = self.has_more or (self.lane is not None and timeout_s <= BUSY_WAIT_S)
        is_idle = not waits and timeout_s >= IDLE_WAIT_S  # then the first message ends the wait
        if not waits and not is_idle:
            time.sleep(timeout_s)
        wait_s = min(timeout_s, BUSY_WAIT_S) if waits else 0
        if self.lane is not None:
            self._commit_ended = False
            strayed = self._strayed()
            if self._commit_ended:  # batches wait for it
                is_idle, wait_s = False, 0
            came = is_idle and bool(self.lane.read(timeout_s, 1)[0])
            found, self.has_more = self.lane.read(wait_s, more=came)
            return [*strayed, *found]
        first = self.consumer.consume(1, timeout_s) if is_idle else []
        messages = first + self.consumer.consume(self._chunk - len(first), wait_s)
        self.has_more = len(messages) == self._chunk
        if messages:
            # One call may return 500 messages of 1 MB each: request fewer if messages are large.
            sample = max(len(messages[i]) for i in (0, len(messages) // 2, -1))
            self._chunk = max(1, min(CHUNK_MESSAGES, self._queue_bytes // (4 * max(sample, 1))))
        return runs_and_errors(messages, one_topic=self._one_topic)

    def _strayed(self) -> list[Run | Failed]:
        """Serve callbacks; return errors, and messages that went past the lane."""
        found = []
        while (message := self.consumer.poll(0)) is not None:
            found.append(message)
        return runs_and_errors(found)

    def release(self) -> None:
        """Have the lane let go of the consumer, which is closed next."""
        if self.lane is not None:
            self.lane.close()


class KafkaCommits:
    """Makes states of the owned partitions durable; others are never named in a commit."""

    def __init__(
        self,
        consumer: ck.Consumer,
        listener: Listener,
        rules: Rules,
        identities: Mapping[TopicPartition, Identity],
        memories: Memories,
    ) -> None:
        self._consumer = consumer
        self._listener = listener
        self._rules = rules
        self._identities = identities
        self._memories = memories
        self._pending: deque[tuple[float, dict[TopicPartition, CommitMemory]]] = deque()
        """The beginnings of pending commits, and the rows to remember once they are acknowledged."""
        self._untold = 0
        """Number of the first of these whose end is not reported."""

    def begin_commit(self, items: Sequence[CommitItem]) -> None:
        memories = self._made(items)
        try:
            if memories:  # commit() without offsets skips a change of metadata only
                self._consumer.commit(offsets=_offsets(memories), asynchronous=True)
                self._pending.append((time.monotonic(), memories))
                return
        except KafkaException as error:
            self._failed(error.args[0].str())
        self._listener.committed(dict.fromkeys(memories, False), 0.0)

    def now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        self._untold = len(self._pending)
        memories = self._made(items)
        if not memories:
            return {}
        try:
            done = self._consumer.commit(offsets=_offsets(memories), asynchronous=False) or []
        except KafkaException as error:
            self._failed(error.args[0].str())
            return dict.fromkeys(memories, False)
        results = {TopicPartition(tp.topic, tp.partition): tp.error is None for tp in done}
        self._keep(memories, results)
        return results

    def ended(self, error: KafkaError | None, done: Sequence[ck.TopicPartition]) -> bool:
        """Handle the end of the oldest commit begun by `begin_commit`; return whether all of it succeeded."""
        begun_s, memories = self._pending.popleft()
        results = dict.fromkeys(memories, False)
        results |= {TopicPartition(tp.topic, tp.partition): error is None and tp.error is None for tp in done or ()}
        good = error is None and all(results.values())
        if self._untold:
            self._untold -= 1
            return good
        self._keep(memories, results)
        if not good:
            self._failed(str(error or next(tp.error for tp in done if tp.error is not None)))
        self._listener.committed(results, time.monotonic() - begun_s)
        return good

    def close(self) -> None:
        self._memories.close()

    def _failed(self, reason: str) -> None:
        self._listener.event("commit.failed", "warning", {"reason": reason})

    def _keep(self, memories: Mapping[TopicPartition, CommitMemory], results: Mapping[TopicPartition, bool]) -> None:
        self._memories.keep({tp: memory for tp, memory in memories.items() if results.get(tp)})

    def _made(self, items: Sequence[CommitItem]) -> dict[TopicPartition, CommitMemory]:
        return {item.tp: self._memory(item) for item in items if self._is_current(item)}

    def _memory(self, item: CommitItem) -> CommitMemory:
        identity = self._identities[item.tp]
        lineage = item.lineage or Lineage()
        text = encode(identity, self._rules.digest, item.state, item.stamp, lineage.parent, lineage.named)
        return CommitMemory.of(item.state.watermark, text, identity.topic_id, lineage)

    def _is_current(self, item: CommitItem) -> bool:
        """Whether the item is of the present ownership: the partition may have moved during the journal's write."""
        identity = self._identities.get(item.tp)
        return identity is not None and identity.scope == item.scope


def _offsets(memories: Mapping[TopicPartition, CommitMemory]) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(*tp[:2], memory.watermark, metadata=memory.text) for tp, memory in memories.items()]


class KafkaSource:
    """Kafka by confluent-kafka; a lane reads in its place, or there is the reason for none."""

    name = "Kafka"
    no_lane: str | None
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = IDLE_WAIT_S

    @property
    def is_emptied(self) -> bool:
        return not self._client.has_more

    @property
    def lane_bytes(self) -> int:
        return self._client.lane.memory_bytes if self._client.lane is not None else 0

    def __init__(self, settings: KafkaSettings, context: SourceContext, lane: FastLane | str) -> None:
        taken, self.no_lane = (None, lane) if isinstance(lane, str) else (lane, "")
        self.columns: Columns = LaneColumns() if taken else KafkaColumns()
        self._settings = settings
        self._context = context
        self._client = KafkaClient(settings, context.queue_bytes, context.place or "sidecar", taken)
        self._fetcher = KafkaFetcher(client_config(settings))
        self._membership: Membership | None = None

    def open(self, listener: Listener) -> None:
        """Connect, evict the predecessor and join the group."""
        settings, client = self._settings, self._client
        troubles = Troubles(listener.event, "kafka.failed", "kafka.recovered")

        def on_commit(*ended: Any) -> None:
            if self._commits.ended(*ended):
                troubles.clear("client")

        client.open(troubles, on_commit)
        consumer = client.consumer
        try:
            cluster_id = await_topics(consumer, settings, lambda: client.refusal, troubles.now, listener.waiting)
        except BaseException:
            client.release()
            consumer.close()
            raise
        admin, answers = AdminClient(client_config(settings)), not is_mock(cluster_id)
        if answers:
            self.metadata_characters = metadata_characters(admin, listener.event)
        state, rules = self._context.state, self._context.rules
        state.bind(cluster_id, settings.group_id)
        memories = self._memories = Memories(state, listener.event)
        topic_ids = TopicIds(admin, cluster_id, client.made_again)
        recall, known = Recall(memories, rules, self._fetcher.digest, listener.event), state.load_partitions().get
        starts = KafkaStartOffsets(
            Offsets(consumer), topic_ids, settings, cluster_id, rules, known, recall, listener.event
        )
        ends = Ends(admin, client.isolation_level)
        self._partitions = Partitions(consumer, settings, listener, troubles, starts, ends, topic_ids, client.lane)
        self._commits = KafkaCommits(consumer, listener, rules, self._partitions.identities, memories)
        asked = admin if answers else None
        self._membership = member = Membership(consumer, asked, settings, state, self._partitions, listener, troubles)
        # A `client.id` of the settings may be shared, so no member is looked up by it.
        member.evict_predecessors("" if "client.id" in settings.properties else self._context.place)
        consumer.subscribe(
            settings.topics,
            on_assign=client.safely(member.assigned),
            on_revoke=client.safely(member.revoked),
            on_lost=client.safely(member.lost),
        )
        member.remember()

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        client, partitions = self._client, self._partitions
        partitions.tend()  # before consume(): messages of the old id must not be taken for the new one's
        found = client.read(timeout_s)
        if reloaded := {tp for topic in client.made_again.take().items() for tp in partitions.reload_topic(*topic)}:
            found = [each for each in found if each.tp not in reloaded]
        if client.failure is None:
            partitions.take_given()
        client.check()
        return self._without_errors(found)

    def _without_errors(self, found: list[Run | Failed]) -> list[Run | ReadPast]:
        results: list[Run | ReadPast] = []
        reloaded: set[TopicPartition] = set()
        for each in found:
            if isinstance(each, Run):
                if self._client.lane is not None and each.sorter is None:  # it went past the lane, and left a hole
                    self._partitions.reload([each.tp])
                    reloaded.add(each.tp)
                results.append(each)
            elif each.error.code() == KafkaError._PARTITION_EOF:
                results.append(ReadPast(each.tp, each.offset))
            elif self._partitions.failed(each.tp, each.error):
                reloaded.add(each.tp)
        # Earlier messages of a partition that is taken again belong to an ownership that has ended.
        return [result for result in results if result.tp not in reloaded] if reloaded else results

    def problems(self) -> Mapping[str, str]:
        return self._membership.problems() if self._membership is not None else {}

    def pause(self, tps: Collection[TopicPartition]) -> None:
        self._partitions.pause(tps)

    def reload(self, tp: TopicPartition) -> None:
        self._partitions.reload([tp])

    def distrust(self, tp: TopicPartition) -> None:
        self._memories.distrust(tp)

    def end_of(self, tp: TopicPartition) -> int | None:
        return self._partitions.end_of(tp)

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        return self._fetcher.fetch(tp, offset)

    def commit(self, items: Sequence[CommitItem]) -> None:
        self._commits.begin_commit(items)

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        return self._commits.now(items)

    def close(self) -> None:
        self._client.release()
        if self._membership is not None:
            with contextlib.suppress(RuntimeError):
                self._membership.leave()
        self._commits.close()
        self._fetcher.close()
        self._client.check()
