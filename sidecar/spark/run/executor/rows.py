"""A task that fills a table: reads one range, sorts its messages, and returns the rows of those wanted. No sink."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tags import Memo
from sidecar.core.ranges.sorting import RangeSorter
from sidecar.core.records import Columns, Header, Message, TopicPartition
from sidecar.core.windows.dedup import RotatingSet
from sidecar.runtime.build import build_table_reading
from sidecar.sinks.formats import TagsOf
from sidecar.spark.ranges.windows import Windows
from sidecar.spark.run.executor.task import Job, Place, opened
from sidecar.spark.run.outcome import Outcome
from sidecar.spark.table.targets import TABLE
from sidecar.zone.columns import ROWS_MAX, Rows, batch_of
from sidecar.zone.rows import SEPARATOR, bytes_of_name
from sidecar.zone.table import table_batch

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES: Final = 16 << 20
"""Size of values above which a record batch ends; it has at most a run more."""


class TableFramer:
    """Keeps messages as rows of a table, by column; the fragments of the core have no data then.

    Args:
        columns: Reads the source's messages.
        tags_of: The tags of each message.
        groups: The tag group by tags.
    """

    separator = SEPARATOR

    def __init__(self, columns: Columns, tags_of: TagsOf, groups: Mapping[Raw, str | None]) -> None:
        self._columns = columns
        self._tags_of = tags_of
        self._groups: Memo[bytes] = Memo(lambda tags: bytes_of_name(groups[tags] or ""))
        self._begin()

    def _begin(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int | None] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._tags: list[bytes | None] = []
        self._headers: list[Sequence[Header]] = []
        self._row_groups: list[bytes] = []
        self._bytes = 0

    def frame(self, tp: TopicPartition, messages: Sequence[Message]) -> tuple[bytes, Sequence[int]]:
        """Keep the rows of these messages; no message is left out."""
        columns, values = self._columns, list(self._columns.values(messages))
        tags = list(self._tags_of(tp, messages))
        self._offsets += columns.offsets(messages)
        self._times += columns.timestamps(messages)
        self._keys += columns.keys(messages)
        self._values += values
        self._tags += [some[0] if some else None for some in tags]
        self._headers += [headers or () for headers in columns.headers(messages)]
        self._row_groups += map(self._groups.__getitem__, tags)
        self._bytes += sum(len(value) for value in values if value is not None)
        return b"", ()

    @property
    def full(self) -> bool:
        """Whether the rows are enough for a record batch."""
        return len(self._offsets) >= ROWS_MAX or self._bytes >= BATCH_BYTES

    def take(self, tp: TopicPartition, batch_id: str) -> Iterator[pa.RecordBatch]:
        """The rows since the last call as a record batch of `TABLE_SCHEMA`; none if there are no rows."""
        if self._offsets:
            rows = Rows(
                self._offsets, self._times, self._keys, self._values, self._tags, self._headers, self._row_groups
            )
            self._begin()
            yield table_batch(batch_of(tp, rows, writer="", sequence=0, batch_id=batch_id))


def rows_of_range(job: Job, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the range that Spark passes to this task.

    When the last one is taken, the ids of the range are durable, and so are its books in the query of the table; those
    of the rejects would be the same. Another attempt, and a replay, return the same rows.

    Args:
        job: The parameters, with a query.
        ranges: One range in one row, or nothing.

    Raises:
        StateError: The folder beside the checkpoint cannot be used, or the topic was created again.
        UnavailableError: The broker does not return the messages.
    """
    place = opened(job, iter(ranges))
    if place is not None:
        yield from _sorted(job, place)


def _sorted(job: Job, place: Place) -> Iterator[pa.RecordBatch]:
    reading = build_table_reading(job.settings, place.columns, TableFramer)
    framer, tp = reading.framer, place.tp
    assert isinstance(framer, TableFramer)
    sorter = RangeSorter(replace(reading, bitmap_ids=False), tp, place.scope)
    windows = Windows(place.folder.path / "ids" / f"{place.ids_scope}-{tp.queue}")
    window = None if reading.ids is None else sorter.intake.ids.window(tp)
    assert window is None or isinstance(window, RotatingSet), "as told to the sorter"
    if window is not None:
        windows.load(window, place.batch - 1)
    name = f"{tp.topic}@{place.scope}:{tp.queue}:{place.start}-{place.end - 1}"
    for run in place.runs:
        sorter.read(run, time.monotonic() * 1000)
        if framer.full:
            yield from framer.take(tp, name)
    yield from framer.take(tp, name)
    if window is not None:
        windows.save(window, place.batch)
    if job.query == TABLE:
        place.folder.books.put_range(place.batch, Outcome(tp, books=sorter.books, lane=place.lane))
