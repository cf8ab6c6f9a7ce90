"""The columns of a landed row, for Arrow and for Spark, and the text form of names. Accesses no file."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_from_bytes

import pyarrow as pa
import pyarrow.compute as pc

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


def headers_of(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """The column `headers`, for the zone, tables and queries: null for a message without, as in Spark's connector.

    Args:
        ends: 0, then the number of headers up to and including each row.
        names: The texts of the headers' names.
    """
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    has_none = pc.equal(ends.slice(1), ends.slice(0, len(ends) - 1))
    return pa.ListArray.from_arrays(ends, pairs, type=SCHEMA.field("headers").type, mask=has_none)
