"""Messages as Arrow columns, with the types and names of the landing zone, made in Python."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tags import Memo, TagFilter
from sidecar.core.records import Columns, Header, Message, TopicPartition
from sidecar.spark.rows.sieve import Kept, Sieve
from sidecar.zone.schema import MS_MAX, MS_MIN, SCHEMA, headers_of, text_of, text_of_name

if TYPE_CHECKING:
    from sidecar.config.tags import Tags

ROWS_MAX = 10_000
"""Rows of a record batch, as in Spark."""
BATCH_BYTES = 16 << 20
"""A record batch ends with the chunk that reaches this many bytes."""
_NAME, _VALUE = itemgetter(0), itemgetter(1)
_Read = Callable[[TopicPartition, Kept], pa.Array]


class Rows:
    """Makes columns of messages."""

    def __init__(self, tags: Tags, columns: Columns, names: Sequence[str]) -> None:
        self._filter: TagFilter = tags.filter()
        self._columns = columns
        self._tags = Memo(self._tag_text)
        self._groups = Memo(self._group_text)
        self._names = _Names()
        readers: Mapping[str, _Read] = {
            "topic": lambda tp, kept: pa.repeat(tp.topic, len(kept.messages)),
            "broker": lambda tp, kept: pa.repeat(tp.broker, len(kept.messages)),
            "partition": lambda tp, kept: pa.repeat(pa.scalar(tp.partition, pa.int32()), len(kept.messages)),
            "offset": lambda tp, kept: pa.array(list(columns.offsets(kept.messages)), pa.int64()),
            "timestamp": lambda tp, kept: _times(columns.timestamps(kept.messages)),
            "key": lambda tp, kept: pa.array(list(columns.keys(kept.messages)), pa.binary()),
            "value": lambda tp, kept: pa.array(list(columns.values(kept.messages)), pa.binary()),
            "tag": lambda tp, kept: pa.array([self._tags[raw] for raw in kept.raws], pa.string()),
            "group": lambda tp, kept: pa.array([self._groups[raw] for raw in kept.raws], pa.string()),
            "headers": lambda tp, kept: self._headers(kept),
        }
        self._readers = [readers[name] for name in names]
        self._schema = pa.schema([_field_of(name) for name in names])

    def batches(self, sieve: Sieve, tp: TopicPartition, found: Iterable[Sequence[Message]]) -> Iterator[pa.RecordBatch]:
        """The messages that a sieve keeps, as record batches of about `ROWS_MAX` rows."""
        with _collecting_seldom():
            yield from self._batches(tp, (sieve.take(tp, messages) for messages in found))

    def _batches(self, tp: TopicPartition, found: Iterable[Kept]) -> Iterator[pa.RecordBatch]:
        some: list[pa.RecordBatch] = []
        count = nbytes = 0
        for kept in found:
            if not kept.messages:
                continue
            arrays = [read(tp, kept) for read in self._readers]
            some.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            count, nbytes = count + len(kept.messages), nbytes + some[-1].nbytes
            if count >= ROWS_MAX or nbytes >= BATCH_BYTES:
                yield pa.concat_batches(some)
                some, count, nbytes = [], 0, 0
        if some:
            yield pa.concat_batches(some)

    def _tag_text(self, raw: Raw) -> str | None:
        tags = self._filter.tags(raw)
        return text_of(tags[0]) if tags else None

    def _group_text(self, raw: Raw) -> str:
        return text_of_name(self._filter.groups[raw] or "")

    def _headers(self, kept: Kept) -> pa.Array:
        headers = [found or () for found in self._columns.headers(kept.messages)]
        flat: list[Header] = list(chain.from_iterable(headers))
        names = list(map(self._names.__getitem__, map(_NAME, flat)))
        ends = pa.array(list(accumulate(map(len, headers), initial=0)), pa.int32())
        return headers_of(ends, pa.array(names, pa.string()), pa.array(list(map(_VALUE, flat)), pa.binary()))


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Headers are many objects without cycles: Python's usual collections would take a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Names(dict[str, str]):
    """The text of each header name; a few thousand are remembered."""

    def __missing__(self, name: str) -> str:
        if len(self) >= 4_096:
            self.clear()
        text = self[name] = text_of_name(name)
        return text


def _times(times_ms: Iterable[int | None]) -> pa.Array:
    """Timestamps in microseconds; null without one, and outside of the years 1 to 9999."""
    found = pa.array(list(times_ms), pa.int64())
    limits = pc.min_max(found).as_py()
    if found.null_count < len(found) and not MS_MIN <= limits["min"] <= limits["max"] <= MS_MAX:
        fits = pc.and_(pc.greater_equal(found, MS_MIN), pc.less_equal(found, MS_MAX))
        found = pc.if_else(fits, found, pa.scalar(None, pa.int64()))
    return found.cast(pa.timestamp("ms", "UTC")).cast(SCHEMA.field("timestamp").type)


def _field_of(name: str) -> pa.Field[Any]:
    """A column's name and type."""
    return pa.field("broker", pa.string()) if name == "broker" else SCHEMA.field(name)
