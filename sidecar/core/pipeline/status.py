"""The pipeline at one instant, as status, health and metrics show it: plain values. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sidecar.core.books import GROUPS_MAX, OTHER, Accounts, Books, Counts, DeliveryCounts, OpenGroup, OpenMessages
from sidecar.core.cutting import Cutter
from sidecar.core.delivery.delivery import Delivery
from sidecar.core.delivery.outbox import Stage
from sidecar.core.delivery.pace import PaceStatus
from sidecar.core.groups import FailingGroup
from sidecar.core.intake.intake import Intake
from sidecar.core.partition.partition import Ownerships, Partition
from sidecar.core.parts import Lane
from sidecar.core.pipeline.gate import Gate
from sidecar.core.records import Fragment, TopicPartition, group_label

WIDE_SPAN = 10_000
"""Span of offsets above which a partition's status names the groups that hold its watermark."""
HOLDERS_MAX = 20


class PartitionCounts(NamedTuple):
    """The books of a partition with its delayed messages, and its offsets; None if it is no longer owned."""

    tp: TopicPartition
    counts: Counts
    watermark: int | None = None
    position: int | None = None


class SpentSpan(NamedTuple):
    """A partition that is not read because its span is used up."""

    tp: TopicPartition
    group: str | None
    """The group that holds its watermark, a failing one first; None if commits are behind."""
    fails: bool


class UnusableIds(NamedTuple):
    """Messages whose id cannot be compared."""

    messages: int = 0
    last: TopicPartition | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Counts are since the start of the process, unless they say otherwise."""

    totals: Books = field(default_factory=Books)
    partitions: Sequence[PartitionCounts] = ()
    stops: Mapping[str, str] = field(default_factory=dict)
    """The reasons for which nothing at all is read: a word and a sentence for each."""
    spent: Sequence[SpentSpan] = ()
    paused: frozenset[TopicPartition] = frozenset()
    held_bytes: int = 0
    failing: Sequence[FailingGroup] = ()
    retries_waiting: int = 0
    """Batches that wait for their next try now."""
    blocking: Sequence[tuple[TopicPartition, str]] = ()
    """Partitions with a wide span, and the groups that hold their watermark; failing groups come first."""
    storing_letters: bool = False
    all_filtered: str | None = None
    """The first unwanted tags, if so many messages were read without a wanted one that a person should know."""
    unusable_ids: UnusableIds = field(default_factory=UnusableIds)
    batches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Ended batches by group and result."""
    sends: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Answered sends by group and verdict."""
    cuts: Mapping[str, int] = field(default_factory=dict)
    """Batches that were cut, by reason."""
    tags_refused: Mapping[str, int] = field(default_factory=dict)
    """Messages that were filtered by their tags, by what refused them."""
    pace: PaceStatus = field(default_factory=PaceStatus)
    twins_waiting: int = 0
    """Messages whose twin is claimed now."""
    delivered: DeliveryCounts = field(default_factory=DeliveryCounts)


def status_of(
    owned: Ownerships, books: Accounts, gate: Gate, delivery: Delivery, intake: Intake, cutter: Cutter
) -> PipelineStatus:
    """The status of a pipeline with these parts."""
    odd, unwanted, claims = intake.reading.odd_ids, intake.unwanted, delivery.claims
    wide = sorted((tp, each) for tp, each in owned.items() if each.reach.span > WIDE_SPAN)
    return PipelineStatus(
        totals=books.total(),
        partitions=[_counts(owned, books, tp) for tp in sorted({tp.source for tp in books})],
        stops=gate.stops,
        spent=[_spent(owned[tp], delivery) for tp in sorted(gate.spent)],
        paused=gate.paused,
        held_bytes=gate.held_bytes,
        failing=delivery.outbox.groups.failures(),
        retries_waiting=delivery.outbox.count(Stage.WAITING),
        blocking=[(tp, group) for tp, each in wide for group in _holders(each, delivery)[:HOLDERS_MAX]],
        storing_letters=bool(delivery.letters),
        all_filtered=intake.unwanted_tags if unwanted.is_all else None,
        unusable_ids=UnusableIds() if odd is None else UnusableIds(odd.count, odd.last, odd.why),
        batches=delivery.outbox.ended.counts(),
        sends=delivery.delivered.sends.counts(),
        cuts=dict(cutter.cuts),
        tags_refused=dict(intake.refused),
        pace=delivery.pace.status(),
        twins_waiting=0 if claims is None else claims.askings.waiting,
        delivered=delivery.delivered.read(),
    )


def _counts(owned: Ownerships, books: Accounts, tp: TopicPartition) -> PartitionCounts:
    partition, counts = owned.get(tp), books.of(tp).counts()
    if partition is None:
        return PartitionCounts(tp, counts)
    return PartitionCounts(tp, counts, partition.watermark, partition.reach.position)


def _spent(partition: Partition, delivery: Delivery) -> SpentSpan:
    group = next(iter(_holders(partition, delivery)), None)
    return SpentSpan(partition.tp, group, group is not None and delivery.outbox.groups.failing(group))


def _holders(partition: Partition, delivery: Delivery) -> list[str]:
    """The groups that hold a partition's watermark; failing ones come first.

    If an intent serves all groups, those with unsettled messages in it.
    """
    watermark, failing = partition.watermark, delivery.outbox.groups.failing
    intents = [intent for intent in partition.promises.intents if intent.first == watermark]
    lanes = partition.lanes.values()
    holding = {lane.group for lane in lanes for part in lane.live if part.intent in intents}
    holding |= {lane.group for lane in partition.lanes.open() if lane.buffer.fragments[0].first == watermark}
    return sorted(holding, key=lambda group: (not failing(group), group))


def open_messages(owned: Ownerships) -> OpenMessages:
    """The unsettled messages of all partitions; takes about 0.5 ms for a thousand open groups.

    Of more than `GROUPS_MAX` groups, the others count together.
    """
    oldest = dict[TopicPartition, int]()
    groups = dict[str, OpenGroup]()
    for tp, partition in owned.items():
        for name, lane in partition.lanes.items():
            label = name if name in groups or len(groups) < GROUPS_MAX else OTHER
            group = groups.setdefault(label, OpenGroup())
            if lane.buffer.fragments:
                group.batches += 1
                group.messages += lane.buffer.count
                group.nbytes += lane.buffer.nbytes
            at_ms = _oldest(lane)
            if at_ms is not None:
                group.oldest_ms = at_ms if group.oldest_ms is None else min(group.oldest_ms, at_ms)
                oldest[tp.source] = min(oldest.get(tp.source, at_ms), at_ms)
    return OpenMessages(oldest, {group_label(name): found for name, found in groups.items()})


def _oldest(lane: Lane) -> int | None:
    """The oldest timestamp: a lane's messages come in order, and cut ones are before open ones."""
    firsts: Iterable[Fragment] = [part.fragments[0] for part in lane.live if part.fragments] + lane.buffer.fragments[:1]
    return min((each.stamp_ms for each in firsts if each.stamp_ms is not None), default=None)
