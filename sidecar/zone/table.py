"""The columns of a table of landed rows, for every writer of tables. It uses no file and no Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.zone.layout import safe
from sidecar.zone.schema import DDL, SCHEMA

LABEL: Final = "group_label"
DATE: Final = "date"
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


def label_of(group: str) -> str:
    """A group as a folder's name: letters, digits, `_` and `-`, and a hash if that is not the whole name.

    The group itself stays a column of the rows. It cannot be the folder: an empty name would be read as null, ``007``
    as the number 7, and 300 bytes are too long for a file system.
    """
    label = safe(group, LABEL_CHARS_MAX)
    return label if label and label == group else f"{label}-{hashlib.sha256(group.encode()).hexdigest()[:LABEL_HASH]}"


def table_rows(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Record batches of the zone's schema as rows of a table."""
    return pa.Table.from_batches([table_batch(batch) for batch in batches], TABLE_SCHEMA)


def table_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A record batch of the zone's schema as one of `TABLE_SCHEMA`."""
    groups = batch.column("group").dictionary_encode()
    labels = pa.array([label_of(group) for group in groups.dictionary.to_pylist()], pa.string())
    columns = [*(batch.column(name) for name in ROW), labels.take(groups.indices)]
    return pa.RecordBatch.from_arrays([*columns, dates_of(batch.column("timestamp"))], schema=TABLE_SCHEMA)


def dates_of(times: pa.Array) -> pa.Array:
    """The days of timestamps, in UTC; null without a timestamp, and outside of the years 1970 to 9999."""
    micros = pc.cast(times, pa.int64())
    inside = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, DATES_END_S * 1_000_000))
    return pc.cast(pc.if_else(inside, times, pa.scalar(None, times.type)), pa.date32())
