"""A task of a query: reads one range, and keeps the ids for the next. It is given its place in the query."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import orjson

from sidecar.core.books import Books
from sidecar.core.records import Message
from sidecar.core.windows.dedup import RotatingSet
from sidecar.errors import PositionError, StateError
from sidecar.spark.query.offsets import ANEW, Span
from sidecar.spark.query.options import Query
from sidecar.spark.ranges.broker import ExpiredError, gap, patiently
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.rows.by_lane import LaneRows
from sidecar.spark.rows.columns import Rows
from sidecar.spark.rows.sieve import Sieve
from sidecar.spark.workers import freeze_modules

if TYPE_CHECKING:
    import pyarrow as pa


def begin_ids(query: Query, found: Iterable[Span]) -> None:
    """Store the empty windows before first ranges, on the driver: an action of the user's may read any part of them.

    Raises:
        StateError: The folder cannot be written.
    """
    for span in found:
        if query.keeps_ids and span.is_first:
            _windows(query, span, span.query).save(RotatingSet(query.dedup.capacity), span.start)


def read_span(
    query: Query, span: Span, query_id: str | None, tell: Callable[[Books], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range.

    The window of ids after it is stored once all rows are taken. If Spark stops before, as for `limit`, or does not
    begin, nothing is stored, and the next range of the partition reads this one again for its ids.

    Args:
        query_id: Id of the query, under which ids are kept if it has no name; None for a batch read, which keeps none.
        tell: Called with the books of the range, once all rows are taken.

    Raises:
        StateError: The ids of earlier micro-batches are missing or damaged, or cannot be stored.
        PositionError: The topic was created again, or messages expired whose ids are needed.
        UnavailableError: The broker does not return the messages.
    """
    broker, columns = query.broker, query.broker.columns()
    sieve, windows = Sieve(query.tags, query.dedup, columns), None
    if query.keeps_ids and query_id is not None:
        windows = _recall(query, sieve, _windows(query, span, query_id), span)
        sieve.books = Books()
    lane = broker.lane()
    if callable(lane):
        rows = LaneRows(query.tags, query.dedup, sieve, query.columns)
        yield from rows.batches(lane, span.tp, span.start, span.end)
    else:
        found = broker.messages(span.tp, span.start, span.end) if span.start < span.end else ()
        yield from Rows(query.tags, columns, query.columns).batches(sieve, span.tp, found)
    _refuse_replaced(query, span)
    if windows is not None and sieve.window is not None:
        windows.save(sieve.window, span.end)
    if tell is not None:
        sieve.books.settle("delivered", sieve.books.in_flight)
        tell(sieve.books)
    freeze_modules()


def _refuse_replaced(query: Query, span: Span) -> None:
    """Raise an error if the topic was created again: Kafka's client reads on in the new one at the old offset."""
    if span.topic_id and patiently(partial(query.broker.topic_id, span.tp.topic)) != span.topic_id:
        raise PositionError(f"{span.tp.topic} was deleted and created again: {ANEW}")


def _recall(query: Query, sieve: Sieve, windows: Windows, span: Span) -> Windows:
    """Fill the window with the ids before the range; return its versions.

    What is read again is stored before any row leaves: a query that reads no range to its end reads each twice, not
    all of them in each micro-batch, and none that expired long ago.
    """
    assert sieve.window is not None
    reached = windows.load(sieve.window, span.start)
    if reached is None and not span.query and span.is_first:
        windows.save(sieve.window, span.start)  # of a query of an earlier build, whose driver does not
        return windows
    if reached is None:
        raise _missing(windows, span)
    if reached >= span.start - span.expired:
        return windows
    for messages in _again(query, span, reached):
        sieve.take(span.tp, messages)
    windows.save(sieve.window, span.start)
    sieve.window, windows = RotatingSet(query.dedup.capacity), Windows(windows.folder)
    windows.load(sieve.window, span.start)
    return windows


def _again(query: Query, span: Span, reached: int) -> Iterator[Sequence[Message]]:
    """The messages before a range that an earlier one did not read to its end, as far as they have not expired."""
    if span.expired:
        return
    try:
        yield from query.broker.messages(span.tp, reached, span.start)
    except ExpiredError as error:
        if query.on_gap == "stop":
            raise PositionError(f"{gap(span.tp, reached, error.low, 'the option on_gap')}; or {ANEW}") from error
        if error.low < span.start:
            yield from query.broker.messages(span.tp, error.low, span.start)


def _missing(windows: Windows, span: Span) -> StateError:
    """The error of a range without the ids before it."""
    if windows.versions():
        return StateError(
            f"{span.tp}: {windows.folder} has only message ids of later micro-batches: the checkpoint is an older "
            f"copy. Restore it as it was last, or {ANEW}"
        )
    return StateError(
        f"{span.tp}: no message ids of earlier micro-batches are in {windows.folder}: the option state names another "
        "folder than before or one that driver and executors do not share, the folder was lost, or dedup was changed. "
        f"Restore it, or {ANEW}"
    )


def _windows(query: Query, span: Span, query_id: str) -> Windows:
    """A partition's ids, in a folder of its own for a topic created again, and for ids that are read elsewhere."""
    assert query.state is not None
    identity = orjson.dumps([list(span.tp), span.topic_id, query.ids])
    name = f"{span.tp.partition}-{hashlib.blake2b(identity, digest_size=8).hexdigest()}"
    return Windows(query.state / (span.query or query_id) / name)
