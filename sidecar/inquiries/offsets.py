"""The offsets of the consumer group, shown and reset for an operator. Joins no group, and decides nothing.

With RocketMQ, the state folder counts beside them: where it proves that its own watermark is newer than the broker's
offset, the daemon goes on from there. So it is read, and a reset is noted in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

import confluent_kafka as ck
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.config.members import rules_hash
from sidecar.config.model import Settings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Original, TopicPartition
from sidecar.errors import ConfigError, NoStateError, SidecarError, UnavailableError
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.fetch import KafkaFetcher
from sidecar.sources.kafka.offsets import LogBounds, Offsets
from sidecar.sources.kafka.reach import ClientErrors, await_topics, forbidden, is_forbidden, text_of
from sidecar.sources.kafka.topics import MadeAgain, TopicIds
from sidecar.sources.rocketmq.progress import QueueProgress
from sidecar.sources.rocketmq.remoting.inquiry import Inquiry
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.requests import RETRY, commit_waves, read_offset
from sidecar.state.database import DATABASE_FILE
from sidecar.state.inspection import Inspection
from sidecar.state.interface import ProgressKey
from sidecar.state.offset_map import Identity, Origin, decode
from sidecar.state.store import Store

START_MS = 10_000
"""Longest wait for a broker, in ms: short, because an operator waits."""
PATIENCE_S = 20.0
WRITERS = {
    Origin.OURS: "sidecar",
    Origin.OTHER_RULES: "sidecar, under other rules",
    Origin.OTHER_TOPIC: "sidecar, for an earlier topic of this name",
}

T = TypeVar("T")


class PartitionOffsets(NamedTuple):
    """A partition's offsets at the broker."""

    tp: TopicPartition
    committed: int | None
    """The watermark; None if nothing is committed."""
    seen: int | None
    """Offset below which messages were read; None if Sidecar did not commit this."""
    low: int
    high: int
    """First offset of the log, and offset of its next message."""
    writer: str
    """The program that committed; empty without a commit."""
    state: PartitionState | None = None
    """The state in Sidecar's commit; None for other programs and other rules."""
    scope: str = ""
    """Scope in which an offset identifies one message; empty if the commit has none."""

    @property
    def lag(self) -> int:
        """Messages between the watermark, or the beginning of the log, and its end."""
        return self.high - min(max(self.committed or 0, self.low), self.high)


class GroupOffsets:
    """Reads and resets the group's offsets; a context manager.

    Args:
        rules: 4 bytes, the hash of the rules.

    Raises:
        UnavailableError: No broker answers, or a topic of the source is unknown.
        CredentialsError: The broker refuses the credentials, or access to a topic or the group.
    """

    stays = "a killed member stays for 9 s"
    """Explains to an operator why members that have ended may still be listed."""

    def __init__(self, settings: KafkaSettings, rules: bytes) -> None:
        self._settings = settings.model_copy(update={"start_timeout_ms": min(settings.start_timeout_ms, START_MS)})
        self._rules = rules
        self._errors = ClientErrors()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        config = client_config(self._settings)
        own = {"group.id": self._settings.group_id, "enable.auto.commit": False, "error_cb": self._errors}
        consumer = self._stack.enter_context(closing(ck.Consumer(config | own)))
        try:
            self._cluster_id = await_topics(
                consumer, self._settings, lambda: self._errors.refusal, self._errors.problems, lambda _: None
            )
        except SidecarError:
            self._stack.close()
            raise
        self._admin, self._offsets = AdminClient(config), Offsets(consumer)
        self._config = config
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def members(self) -> list[str]:
        """Client id and host of each member of the group."""
        group_id = self._settings.group_id
        asked = self._admin.describe_consumer_groups([group_id], request_timeout=PATIENCE_S)[group_id]
        members = self._answer(asked).members
        return [f"{member.client_id} on {member.host.lstrip('/')}" for member in members]

    def partitions(self) -> list[PartitionOffsets]:
        """All partitions of the source's topics, in order."""
        offsets = self._offsets
        offsets.within(PATIENCE_S)
        try:
            tps = sorted(offsets.partitions(self._settings.topics))
            bounds = offsets.bounds(tps)
            ids = TopicIds(self._admin, self._cluster_id, MadeAgain()).find({tp.topic for tp in tps}, offsets.left_s())
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        commits = self._committed(tps)
        return [self._one(tp, commits.get(tp), self._good(bounds[tp]), self._good(ids.get(tp.topic, ""))) for tp in tps]

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        """The offset of the first message that is not older; None if there is none."""
        self._offsets.within(PATIENCE_S)
        try:
            return self._offsets.at_time(tp, at_ms)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as stored at the broker; None if it is gone."""
        fetcher = KafkaFetcher(self._config)
        self._stack.callback(fetcher.close)
        return fetcher.fetch(tp, offset)

    def reset(self, targets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for the group, which must have no member; without state, as any tool does.

        Raises:
            UnavailableError: The group has a member again, or the broker does not answer.
        """
        offsets = [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in targets.items()]
        asked = ck.ConsumerGroupTopicPartitions(self._settings.group_id, offsets)
        (future,) = self._admin.alter_consumer_group_offsets([asked], request_timeout=PATIENCE_S).values()
        for each in self._answer(future).topic_partitions:
            if each.error is not None:
                raise self._failed(each.error)

    def _committed(self, tps: list[TopicPartition]) -> dict[TopicPartition, ck.TopicPartition]:
        # By the admin client: a consumer would repeat the request forever where the right is missing.
        group_id = self._settings.group_id
        asked = ck.ConsumerGroupTopicPartitions(group_id, [ck.TopicPartition(*tp[:2]) for tp in tps])
        answer = self._answer(self._admin.list_consumer_group_offsets([asked], request_timeout=PATIENCE_S)[group_id])
        return {TopicPartition(each.topic, each.partition): each for each in answer.topic_partitions}

    def _one(self, tp: TopicPartition, commit: Any, bounds: LogBounds, topic_id: str) -> PartitionOffsets:
        if commit is None or commit.offset < 0:
            return PartitionOffsets(tp, None, None, bounds.low, bounds.high, "")
        known = Identity(self._cluster_id, self._settings.group_id, topic_id, 0)
        decoded = decode(commit.metadata, commit.offset, known, self._rules)
        seen = decoded.state.seen if decoded.state is not None else None
        writer = WRITERS.get(decoded.origin, "another program")
        scope = replace(known, incarnation=decoded.incarnation).scope if decoded.state is not None else ""
        return PartitionOffsets(tp, commit.offset, seen, bounds.low, bounds.high, writer, decoded.state, scope)

    def _answer(self, future: Any) -> Any:
        try:
            return future.result(PATIENCE_S)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error

    def _good(self, answer: T | KafkaError) -> T:
        if isinstance(answer, KafkaError):
            raise self._failed(answer)
        return answer

    def _failed(self, error: KafkaError) -> SidecarError:
        if is_forbidden(error):
            return forbidden(error, "", self._settings.group_id)
        return UnavailableError(
            f"Kafka at {self._settings.bootstrap_servers}: {text_of(error)}",
            hint="check that the brokers run and are reachable from here, and run the command again",
        )


ELSEWHERE = "another program or host"


def offsets_of(settings: Settings) -> GroupOffsets | QueueOffsets:
    """The offsets of the source's group; raises `ConfigError` if the client reads no queues, so that there are none."""
    if settings.source.rocketmq is None:
        return GroupOffsets(settings.source.kafka, rules_hash(settings))
    return QueueOffsets(settings)


class QueueOffsets(Inquiry):
    """`GroupOffsets` of RocketMQ: offsets of queues, with the state folder's.

    Raises:
        ConfigError: The client is not `remoting`.
    """

    stays = "a disconnected member stays for 2 min"

    def __init__(self, settings: Settings) -> None:
        source = settings.source.rocketmq
        assert source is not None
        if source.client != "remoting":
            raise ConfigError(
                f"with client: {source.client}, single messages come and not queues: no offset tells which of them are "
                "settled, and those that come again are dropped as duplicates",
                hint="to read messages again, use another source.rocketmq.group, or client: remoting",
            )
        super().__init__(source, beside=[RETRY + source.group])
        self._folder = settings.state.dir
        self._rules = rules_hash(settings)

    def partitions(self) -> list[PartitionOffsets]:
        """All queues of the source's topics and of the group's retry topic, in order."""
        tps, asks = self.queues(), self.asks
        wanted = [(tp.broker, ask) for tp in tps for ask in (asks.committed(tp), asks.low(tp), asks.high(tp))]
        answers = self.answers(wanted, also=[Code.QUERY_NOT_FOUND])
        boots = self.brokers.boots({tp.broker for tp in tps})
        known = self._progress()  # after the brokers: the daemon writes progress before it commits
        return [self._one(tp, answers[3 * i : 3 * i + 3], boots.get(tp.broker, 0), known) for i, tp in enumerate(tps)]

    def at_time(self, tp: TopicPartition, at_ms: int) -> int | None:
        """The offset of the first message that is not older; the end of the log if there is none."""
        (answer,) = self.answers([(tp.broker, self.asks.at_time(tp, at_ms))])
        return read_offset(answer)

    def reset(self, targets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for the group, which must have no member, and note them in the state folder.

        Raises:
            UnavailableError: A broker does not answer, or the group has a member again.
            StateError: A process uses the state folder, or it cannot be written.
        """
        if not (self._folder / DATABASE_FILE).exists():
            self._commit(targets)
            return
        with closing(Store(self._folder)) as state:  # holding the store keeps a daemon from starting meanwhile
            self._commit(targets)
            known = {key.tp: QueueProgress.load(text) for key, text in state.load_progress().items()}
            state.save_progress(
                {ProgressKey.of(tp): row.reset_to(to).dump() for tp, to in targets.items() if (row := known.get(tp))}
            )

    def _commit(self, targets: Mapping[TopicPartition, int]) -> None:
        for tps in commit_waves(targets):
            self.answers([(tp.broker, self.asks.commit(tp, targets[tp])) for tp in tps])
        if members := self.members():
            raise UnavailableError(
                f"{', '.join(members)} has joined meanwhile, and may resume from the previous offset",
                hint="stop it, and repeat this command",
            )

    def _progress(self) -> dict[TopicPartition, QueueProgress]:
        try:
            texts = Inspection(self._folder).progress()
        except NoStateError:
            return {}
        return {tp: row for tp, text in texts.items() if (row := QueueProgress.load(text)) is not None}

    def _one(
        self, tp: TopicPartition, frames: list[Frame], boot: int, known: Mapping[TopicPartition, QueueProgress]
    ) -> PartitionOffsets:
        """The offsets of a queue by the daemon's rule for resuming it: see `remoting.start`."""
        committed, low, high = (read_offset(frame) if frame.code == Code.SUCCESS else None for frame in frames)
        ends = max(0, low or 0), max(0, high or 0)  # -1 while a topic is created again
        row = known.get(tp)
        if row is None or (committed is not None and (committed > row.watermark or row.was_set_back(committed, boot))):
            return PartitionOffsets(tp, committed, None, *ends, ELSEWHERE if committed else "")
        decoded = row.decoded(self._identity(0), self._rules)
        if decoded.state is None or decoded.state.seen > ends[1]:
            return PartitionOffsets(tp, committed, None, *ends, WRITERS.get(decoded.origin, ELSEWHERE))
        writer = "sidecar" if committed == row.watermark else f"sidecar; the broker has {committed}"
        scope = self._identity(decoded.incarnation).scope
        return PartitionOffsets(tp, row.watermark, decoded.state.seen, *ends, writer, decoded.state, scope)

    def _identity(self, incarnation: int) -> Identity:
        return Identity(self.routes.cluster, self.asks.wire(self.asks.group), "", incarnation)
