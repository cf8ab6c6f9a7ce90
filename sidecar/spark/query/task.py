"""A task of a query: reads one range, and keeps the ids for the next. It is given its place in the query."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import orjson
from pyspark.accumulators import AccumulatorParam

from sidecar.core.books import Books
from sidecar.core.records import Message, TopicPartition
from sidecar.core.windows.dedup import RotatingSet
from sidecar.errors import PositionError, StateError
from sidecar.spark.query.offsets import START_OVER
from sidecar.spark.query.options import Query
from sidecar.spark.ranges.broker import ExpiredError, gap, patiently
from sidecar.spark.ranges.rows import LaneRows, MessageRows, Sieve
from sidecar.spark.ranges.walk import Span
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

RANGES_MAX: Final = 20_000
"""Limit of ranges that wait for the report of their micro-batch; the oldest are dropped."""


class CountedRange(NamedTuple):
    """A range of a micro-batch."""

    query_id: str
    batch: int
    tp: TopicPartition
    start: int
    expired: int = 0
    """Offsets before it that expired before they were read."""


Counted: TypeAlias = dict[CountedRange, Books]
_counting: Final[dict[str, Accumulator[Counted]]] = {}
"""By Spark's application: its sessions share an accumulator."""


class ByRange(AccumulatorParam[Counted]):
    """Keeps the last books of each range."""

    def zero(self, value: Counted) -> Counted:  # noqa: ARG002
        """Spark's initial value: empty."""
        return {}

    def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802  # Spark's name
        """Merge the second into the first."""
        value1.update(value2)
        while len(value1) > RANGES_MAX:
            del value1[next(iter(value1))]
        return value1


def take_counts(
    waiting: Counted, query_id: str, batch: int
) -> tuple[Mapping[TopicPartition, Books], Mapping[TopicPartition, int]]:
    """Remove and return a micro-batch's books and expired offsets by partition; drop those of earlier ones."""
    found, expired = dict[TopicPartition, Books](), Counter[TopicPartition]()
    for one in list(waiting):
        if one.query_id == query_id and one.batch <= batch:
            books = waiting.pop(one)
            if one.batch == batch:
                total = found.setdefault(one.tp, Books())
                total += books
                expired[one.tp] += one.expired
    return found, expired


def count(spark: SparkSession) -> Accumulator[Counted] | None:
    """Count in this application until `count_no_more`; None with Spark Connect: no task can report to this process."""
    if not hasattr(spark, "_jvm"):
        return None
    name = str(spark.sparkContext.applicationId)
    if name not in _counting:
        _counting[name] = spark.sparkContext.accumulator({}, ByRange())
    return _counting[name]


def count_no_more(accumulator: Accumulator[Counted] | None) -> None:
    """Give no new source this accumulator; a second call does nothing."""
    for name in [name for name, one in _counting.items() if one is accumulator]:
        del _counting[name]


def counting(spark: SparkSession) -> Accumulator[Counted] | None:
    """The accumulator for tasks; None if nothing counts."""
    if not _counting or not hasattr(spark, "_jvm"):
        return None
    return _counting.get(str(spark.sparkContext.applicationId))


def begin_ids(query: Query, found: Iterable[Span]) -> None:
    """Store the empty windows before first ranges, on the driver: an action of the user's may read any part of them."""
    for span in found:
        if query.keeps_ids and span.query and span.is_first:
            _windows(query, span).save(RotatingSet(query.dedup.capacity), span.start)


def read_span(query: Query, span: Span, tell: Callable[[Books], None] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a range.

    The window of ids after it is stored once all rows are taken. If Spark stops before, as for `limit`, or does not
    begin, nothing is stored, and the next range of the partition reads this one again for its ids.

    Args:
        tell: Called with the books of the range, once all rows are taken.

    Raises:
        StateError: The ids of earlier micro-batches are missing or damaged, or cannot be stored.
        PositionError: The topic was created again, or messages expired whose ids are needed.
        UnavailableError: The broker does not return the messages.
    """
    broker, columns = query.broker, query.broker.columns()
    sieve, windows = Sieve(query.tags, query.dedup, columns), None
    if query.keeps_ids:
        windows = _recall(query, sieve, span)
        sieve.books = Books()
    lane = broker.lane()
    if callable(lane):
        rows = LaneRows(query.tags, query.dedup, sieve, query.columns)
        yield from rows.batches(lane, span.tp, span.start, span.end)
    else:
        found = broker.messages(span.tp, span.start, span.end) if span.start < span.end else ()
        yield from MessageRows(query.tags, columns, query.columns).batches(sieve, span.tp, found)
    _refuse_replaced(query, span)
    if windows is not None and sieve.window is not None:
        windows.save(sieve.window, span.end)
    if tell is not None:
        sieve.books.settle("delivered", sieve.books.in_flight)
        tell(sieve.books)
    freeze_modules()


def _refuse_replaced(query: Query, span: Span) -> None:
    """Raise an error if the topic was created again: Kafka's client continues in the new one at the old offset."""
    if span.topic_id and patiently(partial(query.broker.topic_id, span.tp.topic)) != span.topic_id:
        raise PositionError(f"{span.tp.topic} was deleted and created again: {START_OVER}")


def _recall(query: Query, sieve: Sieve, span: Span) -> Windows:
    """Fill the window with the ids before the range; return its versions.

    Ids that are read again are stored before any row leaves: so a query that reads no range to its end reads each range
    twice, not all of them in each micro-batch, and needs no range that expired long ago.
    """
    assert sieve.window is not None
    windows = _windows(query, span)
    reached = windows.load(sieve.window, span.start) if span.query else None
    if reached is None:
        raise _missing(windows, span)
    if reached >= span.start - span.expired:
        return windows
    for messages in _again(query, span, reached):
        sieve.take_wanted(span.tp, messages)
    windows.save(sieve.window, span.start)
    sieve.window, windows = RotatingSet(query.dedup.capacity), Windows(windows.folder)
    windows.load(sieve.window, span.start)
    return windows


def _again(query: Query, span: Span, reached: int) -> Iterator[Sequence[Message]]:
    """The messages before a range that an earlier one did not read to its end, unless they have expired."""
    if span.expired:
        return
    try:
        yield from query.broker.messages(span.tp, reached, span.start)
    except ExpiredError as error:
        if query.on_gap == "stop":
            raise PositionError(f"{gap(span.tp, reached, error.low, 'the option on_gap')}; or {START_OVER}") from error
        if error.low < span.start:
            yield from query.broker.messages(span.tp, error.low, span.start)


def _missing(windows: Windows, span: Span) -> StateError:
    """The error of a range without the ids before it."""
    if windows.versions():
        return StateError(
            f"{span.tp}: {windows.folder} has only message ids of later micro-batches: the checkpoint is an older "
            f"copy. Restore it as it was last, or {START_OVER}"
        )
    return StateError(
        f"{span.tp}: no message ids of earlier micro-batches are in {windows.folder}: the option state names another "
        "folder than before or one that driver and executors do not share, the folder was lost, or dedup was changed. "
        f"Restore it, or {START_OVER}"
    )


def _windows(query: Query, span: Span) -> Windows:
    """A partition's ids, in folders of their own for a recreated topic, and for ids from another field."""
    assert query.state is not None
    identity = orjson.dumps([list(span.tp), span.topic_id, query.ids])
    name = f"{span.tp.partition}-{hashlib.blake2b(identity, digest_size=8).hexdigest()}"
    return Windows(query.state / span.query / name)
