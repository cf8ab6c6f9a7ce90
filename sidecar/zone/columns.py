"""Rows of the daemon's parts as Arrow record batches. It uses no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from sidecar.core.parts import Part
from sidecar.zone.rows import SEPARATOR, bytes_of_name, order_of, unpack
from sidecar.zone.schema import SCHEMA, headers_of, text_of, times_of

ROWS_MAX = 10_000
"""Limit of rows in a record batch, the same as Spark's."""
ROWS_MIN = 2_048
"""A record batch ends with the tag of this row, so that few rows are read for one tag. Smaller batches would cost more
than that saves."""
BATCH_BYTES = 256 << 20
"""Limit of rows' bytes in a record batch: a binary column ends at 2 GiB. A larger row is its own record batch."""
_Found: TypeAlias = tuple[tuple[bytes, bool, bytes], int, bytes]
"""Group and tag in the form of `order_of`, an offset, and its row."""


def record_batches(parts: Iterable[Part], *, writer: str, sequence: int, batch_id: str) -> list[pa.RecordBatch]:
    """The rows of parts, part after part, as record batches of `SCHEMA`; within a part by group, tag and offset.

    A timestamp outside of the years 1 to 9999 becomes null.

    Raises:
        ValueError: A row is invalid, or the number of rows is not that of the offsets.
    """
    constants = writer, sequence, batch_id
    batches: list[pa.RecordBatch] = []
    for part in parts:
        found = _ordered(part)
        batches += (_batch(part, found[start:end], constants) for start, end in _chunks(found))
    blocks = 1 + sum(batch.num_rows for batch in batches) // ROWS_MIN
    if len(batches) > blocks and sum(batch.nbytes for batch in batches) <= BATCH_BYTES:
        # Many small parts: a record batch each would cost more than its rows.
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches(ROWS_MAX)
    return batches


def _ordered(part: Part) -> list[_Found]:
    """All rows by group and tag, so that the rows of a tag are together in the file."""
    found: list[_Found] = []
    for fragment in part.fragments:
        if len(fragment.offsets):
            rows = bytes(fragment.data).split(SEPARATOR)
            found += zip(map(order_of, rows), fragment.offsets, rows, strict=True)
    found.sort(key=itemgetter(0))  # stable: rows of a tag stay in order
    return found


def _chunks(found: Sequence[_Found]) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(found):
        end = min(start + ROWS_MIN, len(found))
        last = found[end - 1][0]
        while end < min(start + ROWS_MAX, len(found)) and found[end][0] == last:
            end += 1
        while end - start > 1 and sum(len(row) for _, _, row in found[start:end]) > BATCH_BYTES:
            end = (start + end) // 2
        yield start, end
        start = end


def _batch(part: Part, found: Sequence[_Found], constants: tuple[str, int, str]) -> pa.RecordBatch:
    _, offsets, packed = zip(*found, strict=True)
    times, keys, values, tags, headers, groups = zip(*map(unpack, packed), strict=True)
    own, count = bytes_of_name(part.group), len(offsets)
    writer, sequence, batch_id = constants
    arrays = [
        pa.repeat(part.tp.topic, count),
        pa.repeat(pa.scalar(part.tp.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        times_of(times),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(_texts(tags), pa.string()),
        pa.array(_texts([group or own for group in groups]), pa.string()),
        headers_of(headers),
        pa.repeat(writer, count),
        pa.repeat(pa.scalar(sequence, pa.int64()), count),
        pa.repeat(batch_id, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _texts(tags: Sequence[bytes | None]) -> list[str | None]:
    known = {tag: None if tag is None else text_of(tag) for tag in set(tags)}
    return [known[tag] for tag in tags]
