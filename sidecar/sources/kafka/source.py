"""Kafka through a consumer group: one thread owns the client. The core decides about messages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource as KafkaSettings
from sidecar.core.effects import CommitItem
from sidecar.core.partition.room import METADATA_CHARACTERS
from sidecar.core.records import Columns, Original, Run, TopicPartition
from sidecar.sources.base import Listener, ReadPast
from sidecar.sources.kafka.client import IDLE_WAIT_S, KafkaClient
from sidecar.sources.kafka.columns import Failed, KafkaColumns
from sidecar.sources.kafka.commits import KafkaCommits
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.ends import Ends
from sidecar.sources.kafka.fetch import KafkaFetcher
from sidecar.sources.kafka.lane.lane import FastLane
from sidecar.sources.kafka.lane.messages import LaneColumns
from sidecar.sources.kafka.membership import KafkaRebalances, Membership
from sidecar.sources.kafka.partitions import Partitions
from sidecar.sources.kafka.reach import await_topics, metadata_characters
from sidecar.sources.kafka.start.memory import Memories
from sidecar.sources.kafka.start.offsets import Offsets
from sidecar.sources.kafka.start.recall import Recall
from sidecar.sources.kafka.start.start_offsets import KafkaStartOffsets
from sidecar.sources.kafka.topics import TopicIds, is_mock
from sidecar.sources.troubles import Troubles
from sidecar.state.interface import State
from sidecar.state.rules import Rules


class KafkaSource:
    """The source on confluent-kafka.

    Args:
        state: Has the member id and the state of partitions.
        queue_bytes: Limit of the client's queue.
        client_id: See `place_id`. A `client.id` of the settings may be shared, so no member is looked up by it.
        lane: Reads in place of the client; the reason if there is none.
    """

    name = "Kafka"
    metadata_characters = METADATA_CHARACTERS
    idle_poll_s = IDLE_WAIT_S

    @property
    def is_emptied(self) -> bool:
        """Whether the client's queue was empty after the last `poll`."""
        return not self._client.has_more

    @property
    def lane_bytes(self) -> int:
        """Memory of the fast lane, without the client's messages."""
        return self._client.lane.memory_bytes if self._client.lane is not None else 0

    def __init__(
        self,
        settings: KafkaSettings,
        state: State,
        rules: Rules,
        queue_bytes: int,
        client_id: str,
        lane: FastLane | str,
    ) -> None:
        taken = lane if isinstance(lane, FastLane) else None
        self.no_lane: str | None = "" if isinstance(lane, FastLane) else lane
        self.columns: Columns = LaneColumns() if taken else KafkaColumns()
        self._settings = settings
        self._state = state
        self._rules = rules
        self._client_id = "" if "client.id" in settings.properties else client_id
        self._client = KafkaClient(settings, queue_bytes, client_id or "sidecar", taken)
        self._fetcher = KafkaFetcher(client_config(settings))
        self._rebalances: KafkaRebalances | None = None

    # Joining

    def open(self, listener: Listener) -> None:
        """Connect, evict the predecessor and join the group.

        Raises:
            UnavailableError: The broker cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The broker refuses the credentials.
        """
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
        self._state.bind(cluster_id, settings.group_id)
        memories = self._memories = Memories(self._state, listener.event)
        topic_ids = TopicIds(admin, cluster_id, client.made_again)
        self._membership = Membership(consumer, admin if answers else None, settings, self._state, listener.event)
        self._membership.evict_predecessors(self._client_id)
        starts = KafkaStartOffsets(
            Offsets(consumer),
            topic_ids,
            settings,
            cluster_id,
            self._rules,
            self._state.load_partitions().get,
            Recall(memories, self._rules, self._fetcher.digest, listener.event),
            listener.event,
        )
        ends = Ends(admin, client.isolation_level)
        self._partitions = Partitions(consumer, settings, listener, troubles, starts, ends, topic_ids, client.lane)
        self._commits = KafkaCommits(consumer, listener, self._rules, self._partitions.identities, memories)
        self._rebalances = KafkaRebalances(self._partitions, self._membership, listener, troubles)
        consumer.subscribe(
            settings.topics,
            on_assign=client.safely(self._rebalances.assigned),
            on_revoke=client.safely(self._rebalances.revoked),
            on_lost=client.safely(self._rebalances.lost),
        )
        self._membership.remember()

    # Reading

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived, in the order of each partition; calls the listener meanwhile."""
        client, partitions = self._client, self._partitions
        partitions.tend()  # before consume(): messages of the old id must not be taken for the new one's
        found = client.read(timeout_s)
        if anew := {tp for topic in client.made_again.take().items() for tp in partitions.reload_topic(*topic)}:
            found = [each for each in found if each.tp not in anew]
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
        """Present problems with the broker: a key, and a sentence for an operator."""
        return self._rebalances.problems() if self._rebalances is not None else {}

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Pause these partitions, and read all other assigned ones."""
        self._partitions.pause(tps)

    def reload(self, tp: TopicPartition) -> None:
        """Give up the partition and take it again from its committed state."""
        self._partitions.reload([tp])

    def distrust(self, tp: TopicPartition) -> None:
        """Another member went on from the older commit: take the partition next from the broker's commit."""
        self._memories.distrust(tp)

    def end(self, tp: TopicPartition) -> int | None:
        """The offset of the partition's next message, if known without a request."""
        return self._partitions.end(tp)

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as it is at the broker, None if it is gone; may be called from one other thread.

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

    def close(self) -> None:
        """Leave the group and disconnect; assigned partitions are revoked first."""
        self._client.release()
        with contextlib.suppress(RuntimeError):
            self._membership.leave()
        self._commits.close()
        self._fetcher.close()
        self._client.check()
