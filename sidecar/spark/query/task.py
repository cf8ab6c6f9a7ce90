"""A task of a query: reads one range, and keeps the ids for the next. It is given its place in the query."""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.errors import StateError
from sidecar.spark.query.offsets import ANEW, Span
from sidecar.spark.query.options import Query
from sidecar.spark.query.rows import Rows
from sidecar.spark.query.sieve import Kept, Sieve
from sidecar.spark.ranges.windows import Windows

if TYPE_CHECKING:
    import pyarrow as pa


CHUNK_MESSAGES = 1_000
"""Messages that become rows at a time: each step has a cost of its own."""


class Client(NamedTuple):
    """Reads ranges of one broker's partitions."""

    columns: Columns
    read: Callable[[TopicPartition, int, int], Iterator[Sequence[Message]]]
    """All messages of a range, some at a time."""


def client_of(query: Query) -> Client:
    """The client of these options."""
    source = query.settings.source
    if source.rocketmq is not None:
        from sidecar.runtime.build import pushed_expression
        from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
        from sidecar.spark.query import rocketmq

        read = partial(rocketmq.messages_of, source.rocketmq, pushed_expression(query.settings))
        return Client(RocketMqColumns(), read)
    from sidecar.spark.query.kafka import QueryColumns
    from sidecar.spark.ranges.fetch import chunks

    return Client(QueryColumns(), partial(chunks, source.kafka, most=CHUNK_MESSAGES))


def read_span(query: Query, span: Span, query_id: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a range.

    The window of ids after it is stored once all rows are taken. If Spark stops before, as for `limit`, nothing is
    stored, and the next range of the partition reads this one again for its ids.

    Args:
        query: The options.
        span: The range.
        query_id: Id of the query, under which ids are kept; None for a batch read, which keeps none.

    Raises:
        StateError: The ids of earlier micro-batches are missing or damaged, or cannot be stored.
        UnavailableError: The broker does not return the messages.
    """
    client = client_of(query)
    sieve, rows = Sieve(query.settings, client.columns), Rows(query.settings, client.columns, query.columns)
    windows = None
    if sieve.window is not None and query.state is not None and query_id is not None:
        windows = Windows(query.state / query_id / _name(query, span))
        _recall(client, sieve, windows, span)
    with _collecting_seldom():
        yield from rows.batches(span.tp, _kept(client, sieve, span.tp, span.start, span.end))
    if windows is not None and sieve.window is not None:
        windows.save(sieve.window, span.end)


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Headers are many objects without cycles: Python's usual collections would take a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _recall(client: Client, sieve: Sieve, windows: Windows, span: Span) -> None:
    """Fill the window with the ids before the range."""
    assert sieve.window is not None
    if span.is_first:
        windows.save(sieve.window, span.start)  # else a range that follows one that was not read to its end has nothing
        return
    reached = windows.load(sieve.window, span.start)
    if reached is None:
        raise StateError(
            f"{span.tp}: no message ids of earlier micro-batches are in {windows.folder}: the option state names "
            f"another folder than before, the folder was lost, or dedup was changed. Restore it, or {ANEW}"
        )
    for _ in _kept(client, sieve, span.tp, reached, span.start):
        pass


def _kept(client: Client, sieve: Sieve, tp: TopicPartition, start: int, end: int) -> Iterator[Kept]:
    if start < end:
        for messages in client.read(tp, start, end):
            yield sieve.take(tp, messages)


def _name(query: Query, span: Span) -> Path:
    """The folder of a partition's ids; of its own for a topic created again, and for ids that are read elsewhere."""
    dedup = query.settings.public()["dedup"]
    identity = orjson.dumps([list(span.tp), span.topic_id, dedup["by"], dedup["as"]])
    return Path(f"{span.tp.partition}-{hashlib.blake2b(identity, digest_size=8).hexdigest()}")
