"""A streaming source whose rows are ranges of offsets: a task gets one, and reads it with the daemon's own client.

Spark plans, stores in its checkpoint and tries again what each task delivers; no message goes through its JVM. Offsets
are those of Spark's Kafka connector, as JSON: topic, partition, next offset.
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
from sidecar.spark.run.folder import read, write

if TYPE_CHECKING:
    from sidecar.config.source import KafkaSource
    from sidecar.spark.run.broker import Places

NAME = "sidecar_ranges"
SCHEMA = "topic string, partition int, start bigint, end bigint"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read.

    Args:
        kafka: The source.
        folder: The run's folder, which keeps where a new checkpoint began.
        offsets_max: Of a micro-batch.
        stood: Where the daemon's consumer group stands, if it ever was.
    """

    kafka: KafkaSource
    folder: Path
    offsets_max: int
    stood: Places | None


@dataclass
class Range(InputPartition):
    """Offsets of one partition, `end` not included."""

    topic: str
    partition: int
    start: int
    end: int


class RangePlanner(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges.

    Args:
        reading: What is read.
    """

    def __init__(self, reading: Reading) -> None:
        self._packed = pickle.dumps(reading)  # what hands ranges over need not import settings and client
        self._target: Places | None = None

    @cached_property
    def _r(self) -> Reading:
        return pickle.loads(self._packed)  # type: ignore[no-any-return]

    # On the driver

    def initialOffset(self) -> Places:  # noqa: N802  # Spark's names, here and below
        """Where a new checkpoint begins, the same at every start."""
        path = self._r.folder / "first"
        if not path.exists():
            write(path, orjson.dumps(self._first()), exclusive=True)
        return orjson.loads(read(path))  # type: ignore[no-any-return]

    def _first(self) -> Places:
        from sidecar.spark.run.broker import EARLIEST, asking, bounds, by_topic

        start, stood = self._r.kafka.start, self._r.stood
        found: dict[TopicPartition, int] = {}
        with asking(self._r.kafka) as offsets:
            for tp, (low, high) in bounds(offsets, self._r.kafka).items():
                if stood is not None:
                    at = stood.get(tp.topic, {}).get(str(tp.partition), EARLIEST)
                    found[tp] = at if at >= 0 else low
                elif isinstance(start, int):
                    later = offsets.at_time(tp, start)
                    found[tp] = high if later is None else later
                else:
                    found[tp] = low if start == "earliest" else high
        return by_topic(found)

    def _ends(self) -> Places:
        from sidecar.spark.run.broker import asking, bounds, by_topic

        with asking(self._r.kafka) as offsets:
            return by_topic({tp: high for tp, (_, high) in bounds(offsets, self._r.kafka).items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A bound for each micro-batch."""
        return ReadMaxRows(self._r.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is for the next time."""
        self._target = self._ends()

    def reportLatestOffset(self) -> Places:  # noqa: N802
        """For the lag."""
        return self._ends()

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:  # noqa: N802
        """Where the next micro-batch ends; what lags most gets most.

        Raises:
            StateError: A topic or partition is gone, or ends before where it was read: it was made again.
        """
        ends = self._target or self._ends()
        lag: dict[tuple[str, str], int] = {}
        for topic, partition, at in _each(start):
            end = ends.get(topic, {}).get(partition, -1)
            if end < at:
                raise StateError(
                    f"{topic}[{partition}] ends at {end} and was read to {at}: it was deleted, or made again",
                    hint="begin anew with another spark.checkpoint",
                )
        for topic, partition, end in _each(ends):
            lag[topic, partition] = end - start.get(topic, {}).get(partition, 0)
        total = sum(lag.values())
        if isinstance(limit, ReadAllAvailable) or total <= self._r.offsets_max:
            return ends
        share = {place: min(one, -(-self._r.offsets_max * one // total)) for place, one in lag.items()}
        return {t: {p: end - lag[t, p] + share[t, p] for p, end in found.items()} for t, found in ends.items()}

    def partitions(self, start: Places, end: Places) -> Sequence[Range]:
        """A range for each partition that has more; a partition that is new begins at its start."""
        begun = {(topic, partition): at for topic, partition, at in _each(start)}
        ranges = [Range(topic, int(p), begun.get((topic, p), 0), last) for topic, p, last in _each(end)]
        return [one for one in ranges if one.end > one.start]

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int]]:
        """The range itself, as a row."""
        assert isinstance(partition, Range)
        yield partition.topic, partition.partition, partition.start, partition.end


def _each(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    for topic, found in sorted(offsets.items()):
        for partition, offset in sorted(found.items()):
            yield topic, partition, offset


def range_source(reading: Reading) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with what is to be read."""
    planner = RangePlanner(reading)

    class SidecarRanges(DataSource):
        """Kafka, by ranges."""

        @classmethod
        def name(cls) -> str:
            """As it is asked for."""
            return NAME

        def schema(self) -> str:
            """A range."""
            return SCHEMA

        def streamReader(self, schema: StructType) -> RangePlanner:  # noqa: ARG002, N802
            """The planner."""
            return planner

    return SidecarRanges
