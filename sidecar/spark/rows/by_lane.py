"""Rows of a range that the fast lane reads: columns are made in C. The same rows as those of `Rows`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from sidecar.core.messages.fields import Raw
from sidecar.core.records import NO_ID, Run, TopicPartition
from sidecar.core.windows.dedup import EVER
from sidecar.runtime.lane import fields_of
from sidecar.sources.kafka.lane import CHUNK_OF_FEW_GROUPS, LaneMessages
from sidecar.spark.ranges.broker import OpenLane
from sidecar.spark.rows.sieve import Sieve
from sidecar.zone.schema import MS_MAX, MS_MIN, SCHEMA, headers_of, text_of, text_of_name

if TYPE_CHECKING:
    from sidecar_fastlane import Rules
    from sidecar_fastlane.columns import Cells, Headers, Table

    from sidecar.config.tags import Dedup, Tags

_Make = Callable[[TopicPartition, "Table"], pa.Array]


class LaneRows:
    """Reads ranges.

    Args:
        tags: Where the lane finds tags.
        dedup: Where the lane finds ids.
        sieve: Has the window of ids, and the books, which take what became of messages. It does not take the messages.
    """

    def __init__(self, tags: Tags, dedup: Dedup, sieve: Sieve, names: Sequence[str]) -> None:
        self._sieve = sieve
        self._filter = sieve.filter
        self._rules = self._rules_of(tags, dedup, names)
        self._texts = _Texts()
        makes: Mapping[str, _Make] = {
            "topic": lambda tp, table: pa.repeat(tp.topic, table.rows),
            "partition": lambda tp, table: pa.repeat(pa.scalar(tp.partition, pa.int32()), table.rows),
            "offset": lambda tp, table: _numbers(pa.int64(), table.rows, table.offsets),
            "timestamp": lambda tp, table: _times(table),
            "key": lambda tp, table: _binary(table.key),
            "value": lambda tp, table: _binary(table.value),
            "tag": lambda tp, table: self._texts.of(table)[0],
            "group": lambda tp, table: self._texts.of(table)[1],
            "headers": lambda tp, table: _headers(table.headers),
        }
        self._makes = [makes[name] for name in names]
        self._schema = pa.schema([SCHEMA.field(name) for name in names])

    def _rules_of(self, tags: Tags, dedup: Dedup, names: Sequence[str]) -> Rules:
        from sidecar_fastlane import Rules
        from sidecar_fastlane.columns import WANTS

        return Rules(
            group_of=self._texts_of,
            row_head=lambda topic, partition: b"",
            **fields_of(tags, dedup, self._filter),
            whole=True,
            format="columns",
            wants=frozenset(want for want in WANTS if want in names),
        )

    def _texts_of(self, raw: Raw) -> str | None:
        """The texts of `tag` and `group` as JSON; None if the message is not wanted."""
        group = self._filter.groups[raw]
        if group is None:
            return None
        tags = self._filter.tags(raw)
        return orjson.dumps([text_of(tags[0]) if tags else None, text_of_name(group)]).decode()

    def batches(self, lane: OpenLane, tp: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """All rows of a range from `start`, without `end`, a record batch for each run.

        Raises:
            UnavailableError: The broker does not return the messages.
        """
        if start >= end:
            return
        with lane(tp, start) as reader:
            while reader.offset < end:
                for run in reader.read(min(CHUNK_OF_FEW_GROUPS, end - reader.offset)):
                    if isinstance(run, Run) and run.first < end:
                        batch = self._batch(tp, run, end)
                        if batch.num_rows:
                            yield batch
                            reader.heard()

    def _batch(self, tp: TopicPartition, run: Run, end: int) -> pa.RecordBatch:
        messages = cast(LaneMessages, run.messages)
        if run.last >= end:
            messages.keep(bisect_left(messages.offsets(), end))
        count = len(messages)
        table = messages.columns(self._rules)  # frees the messages
        self._sieve.masked += table.masked
        batch = self._rows(tp, table)
        self._sieve.books.read(count, table.rows - batch.num_rows, count - table.rows)
        return batch

    def _rows(self, tp: TopicPartition, table: Table) -> pa.RecordBatch:
        if not table.rows:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        batch = pa.RecordBatch.from_arrays([make(tp, table) for make in self._makes], schema=self._schema)
        window = self._sieve.window
        if self._sieve.odd_ids is not None:
            self._sieve.odd_ids.note(tp, table.odd_ids)
        if window is None or table.ids is None:
            return batch
        ids = np.array(table.ids, np.int64)
        new, has_id = np.ones(table.rows, np.bool_), ids != NO_ID
        new[has_id] = window.take_all(ids[has_id], EVER)
        return batch if new.all() else batch.filter(pa.array(new))


class _Texts:
    """The columns `tag` and `group`; the texts of what was seen are kept as arrays."""

    def __init__(self) -> None:
        self._groups: list[str] = []
        self._pairs: list[list[str | None]] = []
        self._arrays: tuple[pa.Array, pa.Array] = (pa.array([], pa.string()), pa.array([], pa.string()))

    def of(self, table: Table) -> tuple[pa.Array, pa.Array]:
        """The columns."""
        if table.groups is not self._groups:
            self._groups, self._pairs = table.groups, []
        if len(table.groups) > len(self._pairs):
            self._pairs += map(orjson.loads, table.groups[len(self._pairs) :])
            tags, groups = zip(*self._pairs, strict=True)
            self._arrays = pa.array(tags, pa.string()), pa.array(groups, pa.string())
        codes = _numbers(pa.int32(), table.rows, table.codes)
        return self._arrays[0].take(codes), self._arrays[1].take(codes)


def _numbers(type_: pa.DataType, count: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(data)])


def _bits(is_there: NDArray[Any]) -> pa.Buffer | None:
    return None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little").tobytes())


def _binary(cells: Cells | None) -> pa.Array:
    assert cells is not None
    is_there = np.frombuffer(cells.is_there, np.uint8)
    buffers = [_bits(is_there), pa.py_buffer(cells.ends or bytes(4)), pa.py_buffer(cells.data)]
    return pa.Array.from_buffers(pa.binary(), len(is_there), buffers)


def _times(table: Table) -> pa.Array:
    """Timestamps in microseconds; null without one, and outside of the years 1 to 9999."""
    ms = np.frombuffer(table.times_ms, np.int64)
    fits = (np.frombuffer(table.has_time, np.bool_)) & (ms >= MS_MIN) & (ms <= MS_MAX)
    us = pa.py_buffer((np.where(fits, ms, 0) * 1_000).tobytes())
    return pa.Array.from_buffers(SCHEMA.field("timestamp").type, table.rows, [_bits(fits), us])


def _headers(headers: Headers | None) -> pa.Array:
    from sidecar_fastlane import header_name

    assert headers is not None
    encoded = _binary(headers.names).dictionary_encode()
    names = pa.array([text_of_name(header_name(name)) for name in encoded.dictionary.to_pylist()], pa.string())
    ends = pa.Array.from_buffers(pa.int32(), len(headers.ends) // 4, [None, pa.py_buffer(headers.ends)])
    return headers_of(ends, names.take(encoded.indices), _binary(headers.contents))
