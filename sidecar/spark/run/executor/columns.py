"""Rows of an Arrow batch as the core reads messages: tuples by column, in runs. Knows no Spark session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sidecar.core.records import Header, Run, TopicPartition
from sidecar.spark.ranges.gathering import RUN_BYTES, gather

if TYPE_CHECKING:
    import pyarrow as pa

SLICE_ROWS = 2_000
"""Number of rows that become Python objects at a time."""


MessageRow = tuple[int, int | None, bytes | None, Sequence[Header] | None, bytes | None]
"""One message: offset, timestamp in milliseconds, key, headers, value; fields that no setting needs are None."""
_NAMES = ("offset", "timestamp_ms", "key", "headers", "value")


class ArrowColumns:
    """`records.Columns` over `MessageRow`s: one C loop per column."""

    def offsets(self, messages: Sequence[MessageRow]) -> Iterable[int]:
        """The offset of each message."""
        return map(itemgetter(0), messages)

    def timestamps(self, messages: Sequence[MessageRow]) -> Iterable[int | None]:
        """The timestamp of each message in milliseconds since the epoch, None if it has none."""
        return map(itemgetter(1), messages)

    def keys(self, messages: Sequence[MessageRow]) -> Iterable[bytes | None]:
        """The key of each message, None stays None."""
        return map(itemgetter(2), messages)

    def headers(self, messages: Sequence[MessageRow]) -> Iterable[Sequence[Header] | None]:
        """The headers of each message in their order, None if there are none."""
        return map(itemgetter(3), messages)

    def values(self, messages: Sequence[MessageRow]) -> Iterable[bytes | None]:
        """The value of each message, None stays None."""
        return map(itemgetter(4), messages)

    def details(self, messages: Sequence[MessageRow]) -> Iterable[None]:
        """None."""
        return repeat(None, len(messages))


def place_of(batch: pa.RecordBatch) -> TopicPartition:
    """Topic and partition of a batch with rows.

    Raises:
        ValueError: It has rows of several partitions, so there is an operation between source and sink.
    """
    names = [name for name in TopicPartition._fields if name in batch.schema.names]  # Kafka's connector has no broker
    found = [batch.column(name).unique() for name in names]
    if any(len(values) != 1 for values in found):
        raise ValueError("a task has rows of several partitions: no shuffle is allowed between source and sink")
    return TopicPartition(*(values[0].as_py() for values in found))


def runs(batches: Iterable[pa.RecordBatch], tp: TopicPartition) -> Iterator[Run]:
    """All rows of one offset range as runs.

    Raises:
        ValueError: There are rows of another partition.
    """
    return gather(tp, _rows(batches, tp), lambda rows: (len(row[-1] or b"") for row in rows), itemgetter(0))


def _rows(batches: Iterable[pa.RecordBatch], tp: TopicPartition) -> Iterator[list[MessageRow]]:
    for batch in batches:
        if not batch.num_rows:
            continue
        if place_of(batch) != tp:
            raise ValueError(
                f"rows of {place_of(batch)} are among those of {tp}: no shuffle is allowed before the sink"
            )
        # 2,000 rows of 1 MB would be 2 GB
        step = max(1, min(SLICE_ROWS, RUN_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            yield list(zip(*_columns(batch.slice(start, step)), strict=True))


def _columns(batch: pa.RecordBatch) -> Iterator[Iterable[Any]]:
    none = [None] * batch.num_rows
    names = set(batch.schema.names)
    for name in _NAMES:
        if name not in names:
            yield none
        elif name == "headers":
            yield _headers(batch.column(name))
        else:
            yield batch.column(name).to_pylist()


def _headers(column: pa.ListArray) -> Iterable[Sequence[Header] | None]:
    """Headers, converted all at once: a dictionary per header, as in `to_pylist`, takes five times as long."""
    pairs, lengths = column.flatten(), column.value_lengths().to_pylist()
    headers = zip(*(pairs.field(i).to_pylist() for i in (0, 1)), strict=True)
    if lengths.count(1) == len(lengths):  # the usual case
        return zip(headers)
    return [None if length is None else list(islice(headers, length)) for length in lengths]
