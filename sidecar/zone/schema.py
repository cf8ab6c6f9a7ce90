"""The columns of a landed row, for Arrow and for Spark, and how names become text. No file is touched here."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_from_bytes

import pyarrow as pa

HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark compares what a source hands over with its own translation of the DDL: no dictionaries, microseconds in UTC, and
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
"""All columns may be null but `topic`, `partition`, `offset`, `group`, `writer`, `sequence` and `batch_id`."""
DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, tag string, "
    "`group` string, headers array<struct<key:string,value:binary>>, writer string, sequence bigint, batch_id string"
)
"""`SCHEMA` in Spark's words."""
_ESCAPED = "percent:"


def text_of(raw: bytes) -> str:
    """A tag's, group's or header's name as a text column holds it; two names are never the same text.

    UTF-8 stays as it is. Other bytes are percent-encoded behind ``percent:``, and so is UTF-8 that begins with that
    word. A tag's true bytes are in `headers` where it comes from a header.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _ESCAPED + quote_from_bytes(raw)
    return _ESCAPED + quote_from_bytes(raw) if text.startswith(_ESCAPED) else text


def text_of_name(name: str) -> str:
    """The same for a name that has its bytes outside UTF-8 as surrogate escapes."""
    try:
        return text_of(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:  # a surrogate that escapes no byte: keep it in the bytes that it would have had
        return text_of(name.encode("utf-8", "surrogatepass"))
