"""Builds components from settings: the only module that knows which class serves which setting. Starts nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sidecar.config.failures import DeadLetterSettings
from sidecar.config.members import place_of
from sidecar.config.model import Settings
from sidecar.config.sinks import SinkSettings
from sidecar.config.source.kafka import KafkaSettings
from sidecar.config.tags import OFFSET_MSG_ID, Dedup, Tags, canonical
from sidecar.core.backoff import Backoff
from sidecar.core.batching import Limits
from sidecar.core.cutting import BatchRules
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.intake.reading import ReadingRules, ReadTags
from sidecar.core.messages.due import ReadDue, due_reader
from sidecar.core.messages.fields import Field, Raw
from sidecar.core.messages.tag_index import TagIndex
from sidecar.core.messages.tags import UNTAGGED, Memo, TagFilter
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.runtime.dead_letters import DeadLettersInState, DeadLetterStore, Fetch, Keeper, Originals, SendBack
from sidecar.runtime.lane import lane_rules, refusal
from sidecar.sinks.base import Context, Sink, build_sink, open_sink
from sidecar.sinks.formats import TagsOf
from sidecar.sources.kafka.columns import KafkaColumns, LaneColumns

if TYPE_CHECKING:
    from sidecar.delay.sought import Sought

QUEUE_SHARE = 16
"""The client's queue gets 1/16 of the budget; one call may return four times the queue (measured: 15 of 4 MiB)."""
HELD_SHARE = 4
"""A source with a leased client holds four times the queue; the fifth share is for messages read ahead."""
QUEUE_MIN_BYTES = 1 << 20
PUSHED_MAX = 4_096
"""Limit of the length of an expression for brokers, since each request for messages contains it."""


def queue_bytes_of(settings: Settings) -> int:
    """The client's share of the memory budget."""
    return max(QUEUE_MIN_BYTES, settings.memory.budget_bytes // QUEUE_SHARE)


def held_bytes_of(settings: Settings) -> int:
    """The share of messages held by the pipeline: what the client's queue and the messages of one call leave."""
    return settings.memory.budget_bytes - 5 * queue_bytes_of(settings)


def pushed_expression(settings: Settings) -> str:
    """Filter for RocketMQ's brokers: they can filter by their own tags, but not by several in one field."""
    tags = settings.tags
    wanted = canonical(tags.subscribe)
    if wanted == ["*"] or tags.field != Field("header", "TAGS") or tags.split:
        return "*"
    unwanted = canonical(tags.exclude) if tags.exclude else []
    asked = [tag for tag in wanted if tag not in unwanted]
    # Brokers know no quotes: they would split such a tag, or take it for all.
    if any(tag == "'*'" or "|" in tag or tag != tag.strip() for tag in asked):
        return "*"
    pushed = " || ".join(asked)
    return pushed if len(pushed) <= PUSHED_MAX else "*"


def filters_at_broker(settings: Settings) -> bool:
    """Whether brokers of RocketMQ leave unwanted messages out."""
    return bool(settings.source.chosen.pushed_filter) or pushed_expression(settings) != "*"


def is_retried(tp: TopicPartition) -> bool:
    """Whether this is the group's retry topic, to which RocketMQ's brokers copy handed-back messages."""
    return tp.topic.startswith("%RETRY%")


def groups_of(
    settings: Settings, columns: Columns
) -> Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]:
    """A function that returns the group of each message; None for a message that no group wants."""
    return _groups_by(settings.tags.filter().groups, _tag_reader(settings.tags, columns))


def pipeline_groups_of(
    settings: Settings, columns: Columns
) -> Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]:
    """`groups_of` with the groups of the pipeline, which are one if the sink joins them."""
    return _groups_by(pipeline_groups(settings), _tag_reader(settings.tags, columns))


def _groups_by(
    groups: Mapping[Raw, str | None], read_tags: ReadTags
) -> Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]:
    return lambda tp, messages: map(groups.__getitem__, read_tags(tp, messages))


def pipeline_groups(settings: Settings) -> Mapping[Raw, str | None]:
    """The pipeline's group by raw tags: the tag group, or one for all messages if the sink joins them."""
    filter_ = settings.tags.filter()
    return _joined(filter_) if settings.sink.chosen.joins_groups else filter_.groups


def _joined(filter_: TagFilter) -> Mapping[Raw, str | None]:
    groups = filter_.groups
    return Memo(lambda raw: None if groups[raw] is None else UNTAGGED, within=groups)


def known_groups(settings: Settings) -> tuple[str, ...]:
    """The pipeline's groups that are known before the first message."""
    return (UNTAGGED,) if settings.sink.chosen.joins_groups else settings.tags.known_groups


def sought_of(settings: Settings, tag: str | None, group: str | None) -> Sought:
    """Held messages of a tag or a tag group, if they are given."""
    from sidecar.delay.columns import HeldColumns
    from sidecar.delay.sought import Sought

    read_tags, filter_ = _tag_reader(settings.tags, HeldColumns(origins=True)), settings.tags.filter()
    return Sought(filter_, read_tags, tag_index_of(settings.tags, filter_), tag, group)


def tag_index_of(tags: Tags, filter_: TagFilter) -> TagIndex:
    """The rules by which a store of delayed messages indexes tags, with the wanted tags."""
    return TagIndex(filter_, json.dumps([place_of(tags.field), tags.split or ""]))


def _tag_reader(tags: Tags, columns: Columns) -> ReadTags:
    field = tags.field
    return field.reader(columns) if field else lambda tp, messages: [None] * len(messages)


def due_reader_of(settings: Settings, columns: Columns) -> ReadDue | None:
    """A function that returns the due time of each message; None if no message is held."""
    return due_reader(settings.delay.rules, columns) if settings.delay else None


def build(settings: Settings, columns: Columns) -> tuple[Pipeline, Sink]:
    """Build the pipeline and the sink; raises like `build_sink`."""
    reading, batching, rules, sink = build_parts(settings, columns)
    return Pipeline(reading, batching, rules, random.random), sink


def build_parts(settings: Settings, columns: Columns) -> tuple[ReadingRules, BatchRules, DeliveryRules, Sink]:
    """Build the rules of the pipeline, and the sink; raises like `build_sink`."""
    reading, sink = build_reading(settings, columns)
    digest = columns.digest if isinstance(columns, KafkaColumns | LaneColumns) else None
    # Bitmaps of ids cannot be kept in files, so all kinds of ids are kept in the same way.
    reading = replace(reading, bitmap_ids=False, digest=digest)
    if settings.delay is not None:
        from sidecar.core.messages.cancels import cancel_reader

        reading = replace(reading, due=due_reader_of(settings, columns), cancels=cancel_reader(columns))
    return reading, batch_rules(settings), delivery_rules(settings, sink.framer.separator), sink


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """The settings for the rules of reading and the sink: values, of which Spark's driver sends copies.

    Args:
        sink: Settings of the sink, with their secrets.
        is_delayed: Whether messages may be held.
        in_lane: Whether the lane can sort messages.
        is_rocketmq: Whether messages may be RocketMQ's.
        filtered_at_broker: Whether the broker omits unwanted messages.
    """

    tags: Tags
    dedup: Dedup
    sink_name: str
    sink: SinkSettings
    group_id: str
    state_dir: Path
    is_delayed: bool = False
    in_lane: bool = False
    is_rocketmq: bool = False
    filtered_at_broker: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ReadingPlan:
        return cls(
            settings.tags,
            settings.dedup,
            settings.sink.name,
            settings.sink.chosen,
            settings.source.group_id,
            settings.state.dir,
            is_delayed=settings.delay is not None,
            in_lane=not refusal(settings),
            is_rocketmq=settings.source.rocketmq is not None,
            filtered_at_broker=bool(settings.source.rocketmq) and filters_at_broker(settings),
        )

    def open(self, columns: Columns) -> tuple[ReadingRules, Sink]:
        """Build the rules of reading messages, and the sink; raises like `build_sink`."""
        in_rows, dedup = columns, self.dedup
        if self.is_delayed:
            from sidecar.delay.columns import BothColumns

            in_rows, columns = BothColumns(columns, origins=True), BothColumns(columns, origins=False)
        read_tags, filter_ = _tag_reader(self.tags, columns), self.tags.filter()
        tags_of = _tags_of(filter_, read_tags)
        sink = open_sink(self.sink_name, self.sink, Context(in_rows, tags_of, filter_.groups, self.state_dir))
        framer = sink.framer
        if self.is_rocketmq:
            from sidecar.runtime.stored_rows import framer_of

            framer = framer_of(self.sink.row_format, columns, tags_of, framer)
        in_lane = self.in_lane and isinstance(columns, LaneColumns)
        lane = lane_rules(self.tags, dedup, self.sink.row_format, filter_) if in_lane else {}
        odd, ids, keys = None, None, None
        if dedup.field is not None:
            from sidecar.core.messages.ids import OddIds, id_reader, key_reader

            odd = OddIds(dedup.field, dedup.as_, columns)
            if dedup.ledger is None:
                ids = id_reader(dedup.field, dedup.as_, columns)
            else:
                keys = key_reader(dedup.field, dedup.as_, columns, self.group_id, odd)
        reading = ReadingRules(
            columns=columns,
            framer=framer,
            tags=read_tags,
            groups=_joined(filter_) if self.sink.joins_groups else filter_.groups,
            unwanted=filter_.unwanted.keys(),
            may_want=filter_.may_want,
            plain_mask=filter_.plain_mask,
            refused=filter_.refused,
            filtered_at_broker=self.filtered_at_broker,
            ids=ids,
            capacity=dedup.capacity,
            bitmap_ids=dedup.as_ == "int",
            keep_ms=dedup.keep_ms,
            copies=is_retried if dedup.by == OFFSET_MSG_ID and not dedup.ledger else None,
            keys=keys,
            odd_ids=odd,
            tag_index=tag_index_of(self.tags, filter_) if self.is_delayed else None,
            **lane,
        )
        return reading, sink


def build_reading(settings: Settings, columns: Columns) -> tuple[ReadingRules, Sink]:
    """Build the rules of reading messages, and the sink, by a plan of these settings."""
    return ReadingPlan.of(settings).open(columns)


def sink_of(settings: Settings, columns: Columns, read_tags: ReadTags | None = None) -> Sink:
    """The sink of the settings.

    Args:
        columns: Reads the fields of a row.
        read_tags: Reads the tags of messages, if they are not read from these columns.

    Raises:
        ConfigError: Certificates or a file of the sink cannot be used.
        StateError: Another process writes to the sink's file.
    """
    return build_sink(
        settings, columns, _tags_of(settings.tags.filter(), read_tags or _tag_reader(settings.tags, columns))
    )


def _tags_of(filter_: TagFilter, read_tags: ReadTags) -> TagsOf:
    return lambda tp, messages: map(filter_.tags, read_tags(tp, messages))


def batch_rules(settings: Settings) -> BatchRules:
    """Rules of cutting batches."""
    batch = settings.batch
    return BatchRules(
        by_group=batch.by == "group",
        limits=Limits(batch.max_messages, batch.max_bytes),
        linger_ms=batch.linger_ms,
        span_max=batch.span_max,
        held_max_bytes=held_bytes_of(settings),
    )


def delivery_rules(settings: Settings, separator: bytes, *, copied: bool = False) -> DeliveryRules:
    """Rules of delivering batches, by the separator of rows; for `copied`, see `DeliveryRules`."""
    retry, chosen, ledger = settings.retry, settings.sink.chosen, settings.dedup.ledger
    return DeliveryRules(
        backoff=Backoff(retry.backoff_ms, retry.backoff_max_ms),
        concurrency=chosen.batches_at_once,
        ordered=chosen.one_by_one,
        separator=separator,
        give_up_attempts=retry.give_up_after_attempts,
        give_up_ms=retry.give_up_after_ms,
        # One third is for the request, which the sink bounds, and one third for recording its result.
        lease_ms=ledger.remembering.claim_timeout_ms // 3 if ledger else None,
        numbered=settings.source.chosen.numbers_messages,
        copied=copied,
        park_after_ms=retry.park_after_ms,
        park_max_bytes=settings.batch.max_bytes,
        rates=chosen.rates,
        adaptive=chosen.adapts,
    )


def open_dead_letters(
    settings: Settings, keeper: Keeper, fetch: Fetch, send_back: SendBack | None = None
) -> DeadLetterStore:
    """Open the store of dead letters that the settings name, else the keeper's; `send_back` is RocketMQ's."""
    place, row_format = settings.dead_letters, settings.sink.chosen.row_format
    return dead_letter_store(place, row_format, settings.source.kafka_, keeper, fetch, send_back)


def dead_letter_store(
    place: Literal["state"] | DeadLetterSettings,
    row_format: str,
    kafka: KafkaSettings | None,
    keeper: Keeper,
    fetch: Fetch,
    send_back: SendBack | None = None,
) -> DeadLetterStore:
    """Open the store of dead letters at a place.

    Args:
        place: Value of the setting `dead_letters`.
        row_format: The sink's format.
        kafka: The source, if it is Kafka.
        keeper: Stores them if no topic is named.
        fetch: Reads a message again.
        send_back: Hands a message back; RocketMQ only.
    """
    originals = Originals(row_format, fetch)
    if isinstance(place, DeadLetterSettings) and place.rocketmq:
        assert send_back is not None
        from sidecar.runtime.broker_letters import DeadLettersAtBroker

        return DeadLettersAtBroker(send_back, place.delay_level, DeadLettersInState(keeper, originals))
    if isinstance(place, DeadLetterSettings):
        assert kafka is not None
        from sidecar.runtime.broker_letters import DeadLettersInTopic
        from sidecar.sources.kafka.config import client_config

        return DeadLettersInTopic(client_config(kafka), place.kafka.topic, originals)
    return DeadLettersInState(keeper, originals)
