"""Finds the groups that hold back the watermarks of partitions. Changes nothing."""

from __future__ import annotations

from sidecar.core.partition.partition import Partition
from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.ops.snapshot import BlockingGroup

WIDE_SPAN = 10_000
"""Span of offsets above which a partition's status names the groups that hold its watermark."""
HOLDERS_MAX = 20


def blocking(pipeline: Pipeline) -> list[BlockingGroup]:
    """The groups that hold the watermark of each partition with a wide span; failing groups come first."""
    found = []
    for tp, partition in sorted(
        (tp, owned) for tp, owned in pipeline.partitions.items() if owned.reach.span > WIDE_SPAN
    ):
        groups = holders(pipeline, partition)
        found += [BlockingGroup(tp.topic, tp.partition, group, tp.broker) for group in groups[:HOLDERS_MAX]]
    return found


def holders(pipeline: Pipeline, partition: Partition) -> list[str]:
    """The groups that hold a partition's watermark; failing ones come first."""
    failing = pipeline.delivery.outbox.groups.failing
    return sorted(_holders(partition), key=lambda group: (not failing(group), group))


def _holders(partition: Partition) -> set[str]:
    """The group that holds the watermark; if an intent serves all groups, those with unsettled messages in it."""
    watermark = partition.watermark
    intents = [intent for intent in partition.promises.intents if intent.first == watermark]
    lanes = partition.lanes.values()
    holding = {lane.group for lane in lanes for part in lane.live if part.intent in intents}
    return holding | {lane.group for lane in partition.lanes.open() if lane.buffer.fragments[0].first == watermark}
