"""The columns of a table of landed rows, for every writer of tables. It uses no file and no Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.zone.layout import safe
from sidecar.zone.schema import DDL, SCHEMA

LABEL: Final = "group_label"
DATE: Final = "date"
HOUR: Final = "hour"
LABELS: Final = {LABEL: "group", "tag_label": "tag", "topic_label": "topic"}
"""Columns that hold a name as a folder's name, and the column of the name itself."""
PARTITIONS: Final = {"date": DATE, "hour": HOUR} | {name: label for label, name in LABELS.items()}
"""The column for each word of `partition_by`."""
PARTITIONED_BY: Final = (LABEL, DATE)
ROW: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "tag", "group", "headers", "batch_id")
"""Columns of a landed row that a table keeps: all except writer and sequence, which are its place in the zone."""
TABLE_SCHEMA: Final = pa.schema(
    [*(SCHEMA.field(name) for name in ROW), pa.field(LABEL, pa.string()), pa.field(DATE, pa.date32())]
)
TABLE_DDL: Final = f"{DDL.replace('writer string, sequence bigint, ', '')}, {LABEL} string, {DATE} date"
"""`TABLE_SCHEMA` in Spark's DDL."""
LABEL_CHARS_MAX: Final = 64
LABEL_HASH: Final = 12
DATES_END_S: Final = 253_402_300_800
"""The beginning of the year 10,000 in seconds since the epoch: from then on no form of a date is universal."""


def label_of(name: str) -> str:
    """A group, tag or topic as a folder's name: letters, digits, `_` and `-`, and a hash if that is not the whole name.

    The name itself stays a column of the rows. It cannot be the folder: an empty name would be read as null, ``007``
    as the number 7, and 300 bytes are too long for a file system.
    """
    label = safe(name, LABEL_CHARS_MAX)
    return label if label and label == name else f"{label}-{hashlib.sha256(name.encode()).hexdigest()[:LABEL_HASH]}"


def table_rows(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Record batches of the zone's schema as rows of a table."""
    return pa.Table.from_batches([table_batch(batch) for batch in batches], TABLE_SCHEMA)


def table_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A record batch of the zone's schema as one of `TABLE_SCHEMA`."""
    columns = [*(batch.column(name) for name in ROW), labels_of(batch.column("group"))]
    return pa.RecordBatch.from_arrays([*columns, dates_of(batch.column("timestamp"))], schema=TABLE_SCHEMA)


def arranged(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows of `TABLE_SCHEMA` with other columns: any of those, `hour`, and the labels of tag and topic."""
    columns = {name: rows.column(name) if name in TABLE_SCHEMA.names else _derived(rows, name) for name in names}
    return pa.table(columns, schema=schema_of(names))


def schema_of(names: Iterable[str]) -> pa.Schema:
    """The schema of a table with these columns."""
    types = {HOUR: pa.int32()} | dict.fromkeys(LABELS, pa.string())
    return pa.schema([TABLE_SCHEMA.field(n) if n in TABLE_SCHEMA.names else pa.field(n, types[n]) for n in names])


def _derived(rows: pa.Table, name: str) -> pa.ChunkedArray:
    source, make = ("timestamp", hours_of) if name == HOUR else (LABELS[name], labels_of)
    chunks = [make(chunk) for chunk in rows.column(source).chunks]
    return pa.chunked_array(chunks, pa.int32() if name == HOUR else pa.string())


def labels_of(names: pa.Array) -> pa.Array:
    """The labels of names; null for null."""
    distinct = names.dictionary_encode()
    labels = pa.array([label_of(name) for name in distinct.dictionary.to_pylist()], pa.string())
    return labels.take(distinct.indices)


def dates_of(times: pa.Array) -> pa.Array:
    """The days of timestamps, in UTC; null without a timestamp, and outside of the years 1970 to 9999."""
    return pc.cast(_dated(times), pa.date32())


def hours_of(times: pa.Array) -> pa.Array:
    """The hours of timestamps, 0 to 23 in UTC; null where the day is null."""
    hours = pc.divide(pc.cast(_dated(times), pa.int64()), 3_600_000_000)
    return pc.cast(pc.subtract(hours, pc.multiply(pc.divide(hours, 24), 24)), pa.int32())


def _dated(times: pa.Array) -> pa.Array:
    micros = pc.cast(times, pa.int64())
    inside = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, DATES_END_S * 1_000_000))
    return pc.if_else(inside, times, pa.scalar(None, times.type))
