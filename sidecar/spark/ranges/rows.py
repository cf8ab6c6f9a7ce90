"""Messages as Arrow columns, with the types and names of the landing zone, made in Python."""

from __future__ import annotations

import contextlib
import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from sidecar.config.tags import Dedup, Tags
from sidecar.core.books import Books
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.ids import OddIds, id_reader
from sidecar.core.messages.tags import UNTAGGED, Memo, TagFilter
from sidecar.core.records import NO_ID, Columns, Message, Run, TopicPartition
from sidecar.core.windows.bitmap import EVER
from sidecar.core.windows.dedup import RotatingSet
from sidecar.runtime.lane import fields_of
from sidecar.sources.kafka.lane import LaneMessages
from sidecar.spark.ranges.broker import ReadLane
from sidecar.zone.schema import MS_MAX, MS_MIN, SCHEMA, headers_between, headers_of, text_of, text_of_name, times_of

if TYPE_CHECKING:
    from sidecar_fastlane import Rules
    from sidecar_fastlane.columns import Cells, Headers, Table


Sieved: TypeAlias = tuple[Sequence[Message], Sequence[Raw]]
"""The messages that the query gets, with their raw tags."""


class Sieve:
    """Takes the messages of one partition, in order."""

    def __init__(self, tags: Tags, dedup: Dedup, columns: Columns) -> None:
        self.filter = tags.filter()
        self.groups: Mapping[Raw, str | None] = self.filter.groups
        """The group of each message, by its raw tags."""
        self._tags = tags.field.reader(columns) if tags.field else None
        self._ids = id_reader(dedup.field, dedup.as_, columns) if dedup.field else None
        self.odd_ids = OddIds(dedup.field, dedup.as_, columns) if dedup.field else None
        """Counts ids that cannot be compared."""
        self.window = RotatingSet(dedup.capacity) if dedup.field else None
        """The ids of the messages so far; None if positions are the ids: a range has each once."""
        self.books = Books()
        """Outcomes of the messages so far; kept messages count as in flight."""
        self.masked = 0
        """Number of messages that the mask refused."""
        self._wants_all = self.groups[None] == UNTAGGED and tags.subscribe.strip() == "*" and not tags.exclude

    @property
    def tags_refused(self) -> dict[str, int]:
        """Number of messages filtered, by the step that refused their tags."""
        return {"mask": self.masked, "look": self.books.filtered - self.masked}

    def take_wanted(self, tp: TopicPartition, messages: Sequence[Message]) -> Sieved:
        """Keep the wanted and new messages; their ids are known from now on."""
        count = len(messages)
        raws: Sequence[Raw] = self._tags(tp, messages) if self._tags else [None] * count
        if self._tags and not self._wants_all:
            groups, refused = self.groups, self.filter.refused
            others = refused.others
            wanted = [groups[raw] is not None for raw in raws]
            if not all(wanted):
                self.masked += sum(map(refused.__contains__, raws)) + refused.others - others
                messages, raws = list(compress(messages, wanted)), list(compress(raws, wanted))
        filtered = count - len(messages)
        if self._ids is not None and self.window is not None and messages:
            numbers = self._ids(tp, messages)
            if self.odd_ids is not None and None in numbers:
                self.odd_ids.look(tp, [one for one, number in zip(messages, numbers, strict=True) if number is None])
            new = self.window.take(numbers)
            if not all(new):
                messages, raws = list(compress(messages, new)), list(compress(raws, new))
        self.books.read(count, count - filtered - len(messages), filtered)
        return messages, raws


ROWS_MAX = 10_000
"""Rows of a record batch, as in Spark."""
BATCH_BYTES = 16 << 20
"""A record batch ends with the chunk that reaches this many bytes."""
_Read = Callable[[TopicPartition, Sequence[Message], Sequence[Raw]], pa.Array]


class MessageRows:
    """Makes columns of messages."""

    def __init__(self, tags: Tags, columns: Columns, names: Sequence[str]) -> None:
        self._filter: TagFilter = tags.filter()
        self._columns = columns
        self._tags = Memo(self._tag_text)
        self._groups = Memo(self._group_text)
        self._names = Memo(text_of_name)
        readers: Mapping[str, _Read] = {
            "topic": lambda tp, kept, raws: pa.repeat(tp.topic, len(kept)),
            "broker": lambda tp, kept, raws: pa.repeat(tp.broker, len(kept)),
            "partition": lambda tp, kept, raws: pa.repeat(pa.scalar(tp.partition, pa.int32()), len(kept)),
            "offset": lambda tp, kept, raws: pa.array(list(columns.offsets(kept)), pa.int64()),
            "timestamp": lambda tp, kept, raws: times_of(columns.timestamps(kept)),
            "key": lambda tp, kept, raws: pa.array(list(columns.keys(kept)), pa.binary()),
            "value": lambda tp, kept, raws: pa.array(list(columns.values(kept)), pa.binary()),
            "tag": lambda tp, kept, raws: pa.array([self._tags[raw] for raw in raws], pa.string()),
            "group": lambda tp, kept, raws: pa.array([self._groups[raw] for raw in raws], pa.string()),
            "headers": lambda tp, kept, raws: self._headers(kept),
        }
        self._readers = [readers[name] for name in names]
        self._schema = pa.schema([_field_of(name) for name in names])

    def batches(self, sieve: Sieve, tp: TopicPartition, found: Iterable[Sequence[Message]]) -> Iterator[pa.RecordBatch]:
        """The messages that a sieve keeps, as record batches of about `ROWS_MAX` rows."""
        with _collecting_seldom():
            yield from self._batches(tp, (sieve.take_wanted(tp, messages) for messages in found))

    def _batches(self, tp: TopicPartition, found: Iterable[Sieved]) -> Iterator[pa.RecordBatch]:
        some: list[pa.RecordBatch] = []
        count = nbytes = 0
        for kept, raws in found:
            if not kept:
                continue
            arrays = [read(tp, kept, raws) for read in self._readers]
            some.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            count, nbytes = count + len(kept), nbytes + some[-1].nbytes
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

    def _headers(self, kept: Sequence[Message]) -> pa.Array:
        return headers_of([found or () for found in self._columns.headers(kept)], self._names.__getitem__)


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Headers are many objects without cycles: Python's usual collections would take a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _field_of(name: str) -> pa.Field[Any]:
    """A column's name and type."""
    return pa.field("broker", pa.string()) if name == "broker" else SCHEMA.field(name)


_Make = Callable[[TopicPartition, "Table"], pa.Array]


class LaneRows:
    """Reads ranges.

    Args:
        sieve: Has the window of ids, and the books, which count the outcomes. It does not take the messages.
    """

    def __init__(self, tags: Tags, dedup: Dedup, sieve: Sieve, names: Sequence[str]) -> None:
        self._sieve = sieve
        self._filter = sieve.filter
        self._rules = self._rules_of(tags, dedup, names)
        self._texts: list[str] = []
        """The texts of the lane so far; those of `tag` and `group` are kept as arrays."""
        self._pairs: list[list[str | None]] = []
        self._arrays: tuple[pa.Array, pa.Array] = (pa.array([], pa.string()), pa.array([], pa.string()))
        makes: Mapping[str, _Make] = {
            "topic": lambda tp, table: pa.repeat(tp.topic, table.rows),
            "partition": lambda tp, table: pa.repeat(pa.scalar(tp.partition, pa.int32()), table.rows),
            "offset": lambda tp, table: _numbers(pa.int64(), table.rows, table.offsets),
            "timestamp": lambda tp, table: _lane_times(table),
            "key": lambda tp, table: _lane_binary(table.key),
            "value": lambda tp, table: _lane_binary(table.value),
            "tag": lambda tp, table: self._text(table, 0),
            "group": lambda tp, table: self._text(table, 1),
            "headers": lambda tp, table: _lane_headers(table.headers),
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

    def _text(self, table: Table, column: int) -> pa.Array:
        """The column `tag` or `group`."""
        if table.groups is not self._texts:
            self._texts, self._pairs = table.groups, []
        if len(table.groups) > len(self._pairs):
            self._pairs += map(orjson.loads, table.groups[len(self._pairs) :])
            tags, groups = zip(*self._pairs, strict=True)
            self._arrays = pa.array(tags, pa.string()), pa.array(groups, pa.string())
        return self._arrays[column].take(_numbers(pa.int32(), table.rows, table.codes))

    def batches(self, lane: ReadLane, tp: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """All rows of a range from `start`, without `end`, a record batch for each run."""
        for run in lane(tp, start, end) if start < end else ():
            batch = self._batch(tp, run, end)
            if batch.num_rows:
                yield batch

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


def _numbers(type_: pa.DataType, count: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(data)])


def _bits(is_there: NDArray[Any]) -> pa.Buffer | None:
    return None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little").tobytes())


def _lane_binary(cells: Cells | None) -> pa.Array:
    assert cells is not None
    is_there = np.frombuffer(cells.is_there, np.uint8)
    buffers = [_bits(is_there), pa.py_buffer(cells.ends or bytes(4)), pa.py_buffer(cells.data)]
    return pa.Array.from_buffers(pa.binary(), len(is_there), buffers)


def _lane_times(table: Table) -> pa.Array:
    """Timestamps in microseconds; null without one, and outside of the years 1 to 9999."""
    ms = np.frombuffer(table.times_ms, np.int64)
    fits = (np.frombuffer(table.has_time, np.bool_)) & (ms >= MS_MIN) & (ms <= MS_MAX)
    us = pa.py_buffer((np.where(fits, ms, 0) * 1_000).tobytes())
    return pa.Array.from_buffers(SCHEMA.field("timestamp").type, table.rows, [_bits(fits), us])


def _lane_headers(headers: Headers | None) -> pa.Array:
    from sidecar_fastlane import header_name

    assert headers is not None
    encoded = _lane_binary(headers.names).dictionary_encode()
    names = pa.array([text_of_name(header_name(name)) for name in encoded.dictionary.to_pylist()], pa.string())
    ends = pa.Array.from_buffers(pa.int32(), len(headers.ends) // 4, [None, pa.py_buffer(headers.ends)])
    return headers_between(ends, names.take(encoded.indices), _lane_binary(headers.contents))
