"""Messages as Arrow columns, with the types and names of the landing zone, made in Python."""

from __future__ import annotations

import contextlib
import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sidecar.config.tags import Dedup, Tags
from sidecar.core.books import Books
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.ids import OddIds, id_reader
from sidecar.core.messages.tags import UNTAGGED, Memo, TagFilter
from sidecar.core.records import NO_ID, Columns, Header, Message, Run, TopicPartition
from sidecar.core.windows.bitmap import EVER
from sidecar.core.windows.dedup import RotatingSet
from sidecar.runtime.lane import fields_of
from sidecar.sources.kafka.lane import CHUNK_OF_FEW_GROUPS, LaneMessages
from sidecar.spark.ranges.broker import OpenLane
from sidecar.zone.schema import MS_MAX, MS_MIN, SCHEMA, headers_of, text_of, text_of_name

if TYPE_CHECKING:
    from sidecar_fastlane import Rules
    from sidecar_fastlane.columns import Cells, Headers, Table

    from sidecar.config.tags import Dedup, Tags


@dataclass(slots=True)
class SievedMessages:
    """Messages that the query gets."""

    messages: Sequence[Message]
    raws: Sequence[Raw]


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

    def take_wanted(self, tp: TopicPartition, messages: Sequence[Message]) -> SievedMessages:
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
        return SievedMessages(messages, raws)


ROWS_MAX = 10_000
"""Rows of a record batch, as in Spark."""
BATCH_BYTES = 16 << 20
"""A record batch ends with the chunk that reaches this many bytes."""
_NAME, _VALUE = itemgetter(0), itemgetter(1)
_Read = Callable[[TopicPartition, SievedMessages], pa.Array]


class MessageRows:
    """Makes columns of messages."""

    def __init__(self, tags: Tags, columns: Columns, names: Sequence[str]) -> None:
        self._filter: TagFilter = tags.filter()
        self._columns = columns
        self._tags = Memo(self._tag_text)
        self._groups = Memo(self._group_text)
        self._names = _HeaderNames()
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
            yield from self._batches(tp, (sieve.take_wanted(tp, messages) for messages in found))

    def _batches(self, tp: TopicPartition, found: Iterable[SievedMessages]) -> Iterator[pa.RecordBatch]:
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

    def _headers(self, kept: SievedMessages) -> pa.Array:
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


class _HeaderNames(dict[str, str]):
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
        self._texts = _Texts()
        makes: Mapping[str, _Make] = {
            "topic": lambda tp, table: pa.repeat(tp.topic, table.rows),
            "partition": lambda tp, table: pa.repeat(pa.scalar(tp.partition, pa.int32()), table.rows),
            "offset": lambda tp, table: _numbers(pa.int64(), table.rows, table.offsets),
            "timestamp": lambda tp, table: _lane_times(table),
            "key": lambda tp, table: _lane_binary(table.key),
            "value": lambda tp, table: _lane_binary(table.value),
            "tag": lambda tp, table: self._texts.of(table)[0],
            "group": lambda tp, table: self._texts.of(table)[1],
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
    """The columns `tag` and `group`; texts that were seen are kept as arrays."""

    def __init__(self) -> None:
        self._groups: list[str] = []
        self._pairs: list[list[str | None]] = []
        self._arrays: tuple[pa.Array, pa.Array] = (pa.array([], pa.string()), pa.array([], pa.string()))

    def of(self, table: Table) -> tuple[pa.Array, pa.Array]:
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
    return headers_of(ends, names.take(encoded.indices), _lane_binary(headers.contents))
