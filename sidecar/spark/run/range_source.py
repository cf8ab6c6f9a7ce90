"""A streaming source whose rows are ranges of offsets: each task reads one with the daemon's own client.

Spark plans the range of each task, stores it in its checkpoint and retries it; no message goes through its JVM. Offsets
have the form of Spark's Kafka connector, as JSON: topic, partition, next offset.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.spark.ranges.planning import ends_of, lost
from sidecar.spark.ranges.shared import read, write

if TYPE_CHECKING:
    from sidecar.config.source.kafka import KafkaSource
    from sidecar.sources.kafka.start.offsets import Bounds
    from sidecar.spark.ranges.broker import Places

NAME = "sidecar_ranges"
SCHEMA = "topic string, partition int, start bigint, end bigint"


@dataclass(frozen=True, slots=True)
class Reading:
    """Parameters of the source.

    Args:
        kafka: The source.
        folder: The run's folder, which keeps the start offsets of a new checkpoint and of partitions added to it.
        offsets_max: Limit of offsets in a micro-batch.
        stood: The offsets of the daemon's consumer group, if it ever existed.
        until: The bounds of the logs to which a query that ends by itself reads; None: those at its start.
    """

    kafka: KafkaSource
    folder: Path
    offsets_max: int
    stood: Places | None
    until: Mapping[TopicPartition, Bounds] | None = None


@dataclass
class Range(InputPartition):
    """Offsets of one partition, without `end`."""

    topic: str
    partition: int
    start: int
    end: int


class RangePlanner(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges.

    Args:
        reading: The parameters.
    """

    def __init__(self, reading: Reading) -> None:
        self._packed = pickle.dumps(reading)  # code that passes ranges on need not import settings and client
        self._target: Mapping[TopicPartition, Bounds] | None = None

    @cached_property
    def _r(self) -> Reading:
        return pickle.loads(self._packed)  # type: ignore[no-any-return]

    # On the driver

    def initialOffset(self) -> Places:  # noqa: N802  # Spark's names, here and below
        """The start offsets of a new checkpoint, the same at every start."""
        path = self._r.folder / "first"
        if not path.exists():
            write(path, orjson.dumps(self._first()), exclusive=True)
        return orjson.loads(read(path))  # type: ignore[no-any-return]

    def _first(self) -> Places:
        from sidecar.spark.ranges.broker import EARLIEST, asking, by_topic, known_bounds

        start, stood = self._r.kafka.start, self._r.stood
        firsts: dict[TopicPartition, int] = {}
        with asking(self._r.kafka) as offsets:
            for tp, (low, high) in known_bounds(offsets, self._r.kafka).items():
                if stood is not None:
                    offset = stood.get(tp.topic, {}).get(str(tp.partition), EARLIEST)
                    firsts[tp] = offset if offset >= 0 else low
                elif isinstance(start, int):
                    later = offsets.at_time(tp, start)
                    firsts[tp] = high if later is None else later
                else:
                    firsts[tp] = low if start == "earliest" else high
        return by_topic(firsts)

    def _bounds(self) -> dict[TopicPartition, Bounds]:
        from sidecar.spark.ranges.broker import asking, known_bounds

        with asking(self._r.kafka) as offsets:
            return known_bounds(offsets, self._r.kafka)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of each micro-batch."""
        return ReadMaxRows(self._r.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave messages that arrive from now on to the next run."""
        self._target = self._r.until or self._bounds()

    def reportLatestOffset(self) -> Places:  # noqa: N802
        """The latest offsets, for the lag."""
        return _ends(self._bounds())

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:  # noqa: N802
        """The end of the next micro-batch; partitions with more lag get more of it.

        Raises:
            StateError: A topic or partition is gone, or ends below the offset up to which it was read.
        """
        bounds = self._target or self._bounds()
        ends = _ends(bounds)
        self._refuse_lost(start, ends)
        self._keep_added(start, bounds)
        most = None if isinstance(limit, ReadAllAvailable) else self._r.offsets_max
        planned = ends_of(self._begun(start), {(topic, p): end for topic, p, end in _each(ends)}, most)
        return {topic: {p: planned[topic, p] for p in places} for topic, places in ends.items()}

    def _refuse_lost(self, start: Places, ends: Places) -> None:
        from sidecar.sources.kafka.start.offsets import is_meant

        anew = "begin anew with another spark.checkpoint"  # in the text: Spark passes on nothing else of an error
        for topic, partition, offset in _each(start):
            if not any(is_meant(pattern, topic) for pattern in self._r.kafka.topics):
                raise StateError(f"{topic} was removed from source.kafka.topics: add it again, or {anew}")
            if why := lost(f"{topic}[{partition}]", offset, ends.get(topic, {}).get(partition)):
                raise StateError(f"{why}; restore it or access to it, or {anew}")

    def _keep_added(self, start: Places, bounds: Mapping[TopicPartition, Bounds]) -> None:
        """Store the start offsets of partitions new to the checkpoint: durable before Spark's log has their ends."""
        from sidecar.spark.ranges.broker import by_topic

        new = {tp: low for tp, (low, _) in bounds.items() if str(tp.partition) not in start.get(tp.topic, {})}
        if new:
            write(self._r.folder / "added", orjson.dumps(by_topic(new)))

    def _begun(self, start: Places) -> dict[tuple[str, str], int]:
        path = self._r.folder / "added"
        added: Places = orjson.loads(read(path)) if path.exists() else {}
        return {(topic, partition): offset for places in (added, start) for topic, partition, offset in _each(places)}

    def partitions(self, start: Places, end: Places) -> Sequence[Range]:
        """A range for each partition with new offsets; a new partition begins at the planned start of its log."""
        begun = self._begun(start)
        ranges = [Range(topic, int(p), begun.get((topic, p), 0), last) for topic, p, last in _each(end)]
        return [span for span in ranges if span.end > span.start]

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int]]:
        """The range itself, as a row."""
        assert isinstance(partition, Range)
        yield partition.topic, partition.partition, partition.start, partition.end


def _ends(bounds: Mapping[TopicPartition, Bounds]) -> Places:
    from sidecar.spark.ranges.broker import by_topic

    return by_topic({tp: high for tp, (_, high) in bounds.items()})


def _each(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    for topic, by_partition in sorted(offsets.items()):
        for partition, offset in sorted(by_partition.items()):
            yield topic, partition, offset


def range_source(reading: Reading, format_name: str = NAME) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with the parameters."""
    planner = RangePlanner(reading)

    class SidecarRanges(DataSource):
        """Kafka, by ranges."""

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return format_name

        def schema(self) -> str:
            """The columns of a range."""
            return SCHEMA

        def streamReader(self, schema: StructType) -> RangePlanner:  # noqa: ARG002, N802
            """The planner."""
            return planner

    return SidecarRanges
