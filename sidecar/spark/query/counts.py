"""What became of the messages of each range, told by tasks to the driver through an accumulator. Knows no broker.

Each range has its own entry, so tasks that run twice count once. A task that does not reach the end of its range, as
with `limit`, tells nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyspark.accumulators import AccumulatorParam

from sidecar.core.books import Books
from sidecar.core.records import TopicPartition

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

RANGES_MAX: Final = 20_000
"""Limit of ranges that wait for the report of their micro-batch; the oldest are given up."""


class Range(NamedTuple):
    """A range of a micro-batch."""

    query_id: str
    batch: int
    tp: TopicPartition
    start: int
    expired: int = 0
    """Offsets before it that expired before they were read."""


Counted: TypeAlias = dict[Range, Books]
_counting: Final[dict[str, Counts]] = {}
"""By Spark's application: its sessions share an accumulator."""


class ByRange(AccumulatorParam[Counted]):
    """Keeps the last books of each range."""

    def zero(self, value: Counted) -> Counted:  # noqa: ARG002
        """Nothing."""
        return {}

    def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802  # Spark's name
        """Put the second into the first."""
        value1.update(value2)
        while len(value1) > RANGES_MAX:
            del value1[next(iter(value1))]
        return value1


class Counts:
    """The counts of an application's tasks, on the driver, between `count` and `close`."""

    def __init__(self, application: str, accumulator: Accumulator[Counted]) -> None:
        self._application = application
        self.accumulator = accumulator

    def close(self) -> None:
        """Count no further queries."""
        _counting.pop(self._application, None)

    def take(self, query_id: str, batch: int) -> tuple[Mapping[TopicPartition, Books], Mapping[TopicPartition, int]]:
        """The books of a micro-batch by partition, and the offsets that expired; once, and none of earlier ones."""
        waiting, found, expired = self.accumulator.value, dict[TopicPartition, Books](), Counter[TopicPartition]()
        for one in list(waiting):
            if one.query_id == query_id and one.batch <= batch:
                books = waiting.pop(one)
                if one.batch == batch:
                    total = found.setdefault(one.tp, Books())
                    total += books
                    expired[one.tp] += one.expired
        return found, expired


def count(spark: SparkSession) -> Counts | None:
    """Begin to count in this application; None with Spark Connect, where tasks cannot tell this process anything."""
    if not hasattr(spark, "_jvm"):
        return None
    context = spark.sparkContext
    name = str(context.applicationId)
    if name not in _counting:
        _counting[name] = Counts(name, context.accumulator({}, ByRange()))
    return _counting[name]


def counting(spark: SparkSession) -> Accumulator[Counted] | None:
    """The accumulator for tasks; None if nothing counts."""
    if not _counting or not hasattr(spark, "_jvm"):
        return None
    counts = _counting.get(str(spark.sparkContext.applicationId))
    return counts.accumulator if counts else None
