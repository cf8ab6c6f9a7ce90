"""The fast lane beside its Python twin: the same runs, sorted both ways, compared to the byte.

`python -m tests.support.lane_compared BOOTSTRAP MESSAGES SEED...` compares a random configuration for each seed.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import sidecar_fastlane as fastlane

from sidecar.config.model import Settings
from sidecar.core.intake.intake import Intake, Sorted
from sidecar.core.lineage import Lineage
from sidecar.core.partition.partition import Ownerships
from sidecar.core.partition.room import StateBudget
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.runtime.build import build_parts
from sidecar.runtime.lane import refusal_of_fields
from sidecar.sources.kafka.columns import KafkaColumns, LaneColumns
from sidecar.sources.kafka.lane import FastLane
from sidecar.spark.query.options import COLUMNS, Query
from sidecar.spark.query.task import read_span
from sidecar.spark.ranges import broker_of
from sidecar.spark.ranges.walk import Span
from tests.support.kafka import Broker, produce, unique
from tests.support.lane import client, lane_of
from tests.support.lane_cases import IDS, ODD_SHARE, produce_odd, random_settings, strange

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
QUEUE_BYTES = (200, 5_000, 100_000, 1 << 20, 16 << 20)
"""Limits of the client's queue, from which the lane has the size of its batches: from one message on."""
CHANGES, TAPPED = 0.2, 0.1
"""Shares of runs: rules change before them; Python looks at the lane's messages."""
WHAT = (
    "settings", "messages", "runs", "changes", "rows", "bytes", "ids", "filtered", "masked", "duplicate", "unframeable",
)  # fmt: skip


class Side:
    """The core's intake, for one of both ways."""

    def __init__(self, settings: Settings, columns: Columns, tps: Iterable[TopicPartition]) -> None:
        self._columns = columns
        self.reading = build_parts(settings, columns)[0]
        self.intake = Intake(self.reading)
        self.owned = Ownerships(b"\n")
        self.owned.limit(StateBudget(extra_bytes=1 << 62))
        for tp in tps:
            self.owned.take_partition(tp, "s", PartitionState(0, 0), Lineage())

    def change(self, settings: Settings) -> None:
        """Go on by other rules."""
        self.reading = build_parts(settings, self._columns)[0]
        self.intake.change(self.reading)

    def take(self, run: Run, *, tapped: bool = False) -> list[Any]:
        """Sort a run; all that became of it."""
        self.intake.tap = (lambda *_: None) if tapped else None
        partition = self.owned[run.tp]
        found = self.intake.sort(partition, run, 1.0)
        partition.reach.position = run.last + 1
        assert self.reading.digest is not None
        odd = self.intake.reading.odd_ids.count if self.intake.reading.odd_ids is not None else 0
        counts = found.filtered, found.masked, found.duplicate, odd
        return [*counts, self.reading.digest(run.messages[-1]), *_groups(found)]


def _groups(found: Sorted) -> list[Any]:
    return sorted(
        (group, list(one.offsets), bytes(one.data), list(one.ids or ()), list(one.unframeable), one.stamp_ms, one.after)
        for group, one in found.opened
    )


class Twins:
    """Both ways, and what they found.

    Args:
        settings: The configuration.
        by_python: All messages of each partition, as the client gives them.
    """

    def __init__(self, settings: Settings, by_python: Mapping[TopicPartition, list[ck.Message]]) -> None:
        self._messages = by_python
        self._offsets = {tp: [message.offset() or 0 for message in some] for tp, some in by_python.items()}
        self._twin = Side(settings, KafkaColumns(), by_python)
        self._lane = Side(settings, LaneColumns(), by_python)
        assert self._lane.reading.sorting is not None
        self.tally = Counter(dict.fromkeys(WHAT, 0) | {"settings": 1})
        self.mismatches: list[str] = []

    @property
    def count(self) -> int:
        """How many messages there are."""
        return sum(map(len, self._messages.values()))

    def change(self, settings: Settings) -> None:
        """Go on by other rules."""
        self.tally["changes"] += 1
        self._twin.change(settings)
        self._lane.change(settings)

    def take(self, run: Run, *, tapped: bool = False) -> None:
        """Sort a run of the lane, and the same messages in Python."""
        offsets, seen = self._offsets[run.tp], len(run.messages)
        start = bisect_left(offsets, run.first)
        some = self._messages[run.tp][start : start + seen]
        ours = self._lane.take(run, tapped=tapped)
        theirs = self._twin.take(Run(run.tp, some, some[0].offset() or 0, some[-1].offset() or 0))
        if ours != theirs:
            self.mismatches.append(f"{run.tp}@{run.first}-{run.last}: {ours!r:.2000} in C, {theirs!r:.2000} in Python")
        self.tally.update(messages=seen, runs=1, filtered=theirs[0], masked=theirs[1], duplicate=theirs[2])
        for _, framed, data, ids, odd, *_ in theirs[5:]:
            self.tally.update(rows=len(framed), bytes=len(data), ids=len(ids), unframeable=len(odd))


def compare_rows(settings: Settings, chance: random.Random, ends: Mapping[TopicPartition, int]) -> str:
    """Read ranges as a query's task does, in C and in Python; the first mismatch."""
    names = chance.sample(COLUMNS, chance.randint(1, len(COLUMNS)))
    for tp, end in ends.items():
        half = chance.randint(0, end)
        for start, stop in ((0, half), (half, end)):
            found = []
            for lane in ("on", "off"):
                kafka = settings.source.kafka.model_copy(update={"lane": lane})
                source = settings.source.model_copy(update={"kafka_": kafka})
                changed = settings.model_copy(update={"source": source})
                broker = broker_of(changed, refusal_of_fields(settings), retried=False)
                query = Query(broker, settings.tags, settings.dedup, "", ("json", "info"), tuple(names), 1, None)
                batches = list(read_span(query, Span(tp, "", start, stop, is_first=True)))
                for batch in batches:
                    batch.validate(full=True)
                found.append(pa.Table.from_batches(batches).to_pylist() if batches else [])
            if found[0] != found[1]:
                pairs = [(one, other) for one, other in zip(*found, strict=False) if one != other]
                return f"{tp}@{start}-{stop}: {len(found[0])} and {len(found[1])} rows, in C and in Python: {pairs[:1]}"
    return ""


def by_python(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[TopicPartition, list[ck.Message]]:
    """All messages of a topic as the twin reads them."""
    found: dict[TopicPartition, list[ck.Message]] = defaultdict(list)
    consumer, left = client(bootstrap, {}), sum(ends.values())
    consumer.assign([ck.TopicPartition(topic, partition, 0) for partition in ends])
    while left:
        for message in consumer.consume(500, 10):
            assert message.error() is None, message.error()
            found[TopicPartition(topic, message.partition() or 0)].append(message)
            left -= 1
    consumer.close()
    return dict(found)


def read(lane: FastLane, consumer: ck.Consumer, twins: Twins, tps: Iterable[TopicPartition]) -> Iterable[Run]:
    """All messages as the lane reads them."""
    lane.forward(tps)
    consumer.incremental_assign([ck.TopicPartition(tp.topic, tp.partition, 0) for tp in tps])
    lane.forward(tps)
    while twins.tally["messages"] < twins.count:
        assert consumer.poll(0) is None
        for run in lane.read(0.02)[0]:
            assert isinstance(run, Run)
            yield run


def compare(library: fastlane.Library, broker: Broker, count: int, seed: int) -> Twins:
    """A random configuration, and as many strange messages, on a topic of their own."""
    chance = random.Random(seed)
    stamps = {"message.timestamp.type": chance.choice(("CreateTime", "LogAppendTime"))}
    partitions = chance.randint(1, 8)
    topic = broker.create_topic(unique("lane"), partitions, stamps)
    odd = round(count * ODD_SHARE)
    kind = chance.choice(COMPRESSIONS)
    half = (count - odd) // 2
    produce(broker.bootstrap, topic, strange(chance, half, partitions), compression_type=kind)
    produce_odd(broker.bootstrap, topic, list(strange(chance, odd, partitions)), chance)
    produce(broker.bootstrap, topic, strange(chance, count - odd - half, partitions), compression_type=kind)
    messages = by_python(broker.bootstrap, topic, broker.end_offsets(topic))
    change = partial(random_settings, chance, broker.bootstrap, topic, chance.choice(IDS))
    twins = Twins(change(), messages)
    with lane_of(library, broker.bootstrap, chance.choice(QUEUE_BYTES)) as (lane, consumer):
        for run in read(lane, consumer, twins, list(messages)):
            if chance.random() < CHANGES:
                twins.change(change())
            twins.take(run, tapped=chance.random() < TAPPED)
    ends = {tp: (some[-1].offset() or 0) + 1 for tp, some in messages.items()}
    if mismatch := compare_rows(change(), chance, ends):
        twins.mismatches.append(mismatch)
    broker.delete_topic(topic)
    return twins


def main(bootstrap: str, count: str, *seeds: str) -> None:
    """Compare; prints what was compared, and exits with 1 after a mismatch."""
    library, tally = fastlane.Library(), Counter[str]()
    for seed in map(int, seeds):
        twins = compare(library, Broker(bootstrap), int(count), seed)
        tally.update(twins.tally)
        if twins.mismatches:
            sys.exit(f"seed {seed}: {len(twins.mismatches)} mismatches, the first: {twins.mismatches[0]}")
        del twins
        gc.collect()
        assert not library.c.fl_memory(), f"seed {seed}: {library.c.fl_memory()} bytes are left"
    print(json.dumps(tally))


if __name__ == "__main__":
    main(*sys.argv[1:])
