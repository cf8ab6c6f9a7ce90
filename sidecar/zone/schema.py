"""The columns of a landed row, for Arrow and for Spark, and the text form of names. Accesses no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Final
from urllib.parse import quote_from_bytes

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.core.records import Header
from sidecar.zone.rows import bytes_of_name

HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark compares a source's schema with its own translation of the DDL: no dictionaries, microseconds in UTC, and
# `element` as the name inside a list.
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("tag", pa.string()),
        pa.field("group", pa.string()),
        pa.field("headers", pa.list_(pa.field("element", HEADER))),
        pa.field("writer", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("batch_id", pa.string()),
    ]
)
"""All columns are nullable except `topic`, `partition`, `offset`, `group`, `writer`, `sequence` and `batch_id`."""
DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, tag string, "
    "`group` string, headers array<struct<key:string,value:binary>>, writer string, sequence bigint, batch_id string"
)
"""`SCHEMA` in Spark's DDL."""
DDL_OF: Final = dict(zip(SCHEMA.names, DDL.split(", "), strict=True))
"""A column's part of `DDL`, by name."""
MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999
"""Limits of a timestamp in milliseconds: the years 1 to 9999, which every reader can hold. Others are null."""
_ESCAPED = "percent:"


def text_of(raw: bytes) -> str:
    """Text for the name of a tag, group or header in a column; two names never have the same text.

    UTF-8 is unchanged. Other bytes are percent-encoded after ``percent:``, and so is UTF-8 that begins with that word.
    A tag's original bytes are in `headers` if it comes from a header.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _ESCAPED + quote_from_bytes(raw)
    return _ESCAPED + quote_from_bytes(raw) if text.startswith(_ESCAPED) else text


def text_of_name(name: str) -> str:
    """`text_of` for a name in which surrogate escapes stand for bytes that are not UTF-8."""
    return text_of(bytes_of_name(name))


def headers_of(rows: Sequence[Sequence[Header]], text: Callable[[str], str] = text_of_name) -> pa.Array:
    """The column `headers`, built from its columns: from dictionaries Arrow would take three times as long.

    Args:
        rows: The headers of each message.
        text: The texts of the headers' names.
    """
    flat = list(chain.from_iterable(rows))
    ends = pa.array(list(accumulate(map(len, rows), initial=0)), pa.int32())
    names = pa.array([text(name) for name, _ in flat], pa.string())
    return headers_between(ends, names, pa.array([value for _, value in flat], pa.binary()))


def headers_between(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """The column `headers`, for the zone, tables and queries: null for a message without, as in Spark's connector.

    Args:
        ends: 0, then the number of headers up to and including each row.
        names: The texts of the headers' names.
    """
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    has_none = pc.equal(ends.slice(1), ends.slice(0, len(ends) - 1))
    return pa.ListArray.from_arrays(ends, pairs, type=SCHEMA.field("headers").type, mask=has_none)


def times_of(times_ms: Iterable[int | None]) -> pa.Array:
    """The column `timestamp`: null without a timestamp, and outside of the years 1 to 9999."""
    found = pa.array(list(times_ms), pa.int64())
    limits = pc.min_max(found).as_py()
    if found.null_count < len(found) and not MS_MIN <= limits["min"] <= limits["max"] <= MS_MAX:
        fits = pc.and_(pc.greater_equal(found, MS_MIN), pc.less_equal(found, MS_MAX))
        found = pc.if_else(fits, found, pa.scalar(None, pa.int64()))
    return found.cast(pa.timestamp("ms", "UTC")).cast(SCHEMA.field("timestamp").type)
