"""The index of a data file: the rows in which a group or a tag may be. Accesses no file.

The blocks of a file can be read alone: record batches of Arrow, row groups of Parquet. The index has a list of *spans*
for each block, stretches of consecutive rows with the smallest and largest name of their groups and tags. A span may
promise too much but never too little, so a reader compares the rows that it reads.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.zone.entry import Entry

SPANS_MAX: Final = 256
"""Limit of spans in a file, to which each block may add one; with more groups and tags, a span covers several."""
INDEX_BYTES_MAX: Final = 16 << 20
"""Limit of an index that is decompressed: one for many thousand blocks is smaller."""
NAME_CHARS_MAX: Final = 64
"""Length to which names are cut: prefixes compare like the names, or as equal."""


class IndexSpan(NamedTuple):
    """Consecutive rows of a block, and bounds of their names, which are cut."""

    rows: int
    group_min: str
    group_max: str
    tag_min: str | None
    """None if no row has a tag."""
    tag_max: str | None
    nulls: bool
    """Whether a row has no tag."""


class Stretch(NamedTuple):
    """The part of a block in which all of its wanted rows lie, by numbers of rows in the block."""

    block: int
    begin: int
    """Number of rows in the file before the block."""
    rows: int
    """Number of rows in the block."""
    start: int
    stop: int
    found: int
    """Number of rows in the spans that have wanted ones; others may lie between them."""


_Run: TypeAlias = tuple[int, str, str | None]
"""Number of rows, their group and tag."""


def index_of(batches: Sequence[pa.RecordBatch]) -> bytes:
    """The compressed index of a file with these blocks, in which rows of a group and tag are adjacent: about 1 kB."""
    blocks = [list(_runs(batch)) for batch in batches]
    step = -(-sum(map(len, blocks)) // SPANS_MAX)
    spans = [[[*_span(runs[i : i + step])] for i in range(0, len(runs), step)] for runs in blocks]
    return zlib.compress(orjson.dumps(spans))


def spans_of(index: bytes) -> list[list[IndexSpan]]:
    """The spans of each block."""
    try:
        unpacked = zlib.decompressobj().decompress(index, INDEX_BYTES_MAX)
        return [[_span_of(span) for span in spans] for spans in orjson.loads(unpacked)]
    except (zlib.error, TypeError) as error:
        raise ValueError("not an index") from error


def _span_of(fields: Any) -> IndexSpan:
    span = IndexSpan(*fields)
    rows, group_min, group_max, tag_min, tag_max, nulls = span
    names = [name for name in (group_min, group_max, tag_min or "", tag_max or "") if isinstance(name, str)]
    if type(rows) is not int or rows < 0 or len(names) < 4 or type(nulls) is not bool:
        raise TypeError("a span has other fields")
    return span


def _runs(batch: pa.RecordBatch) -> Iterator[_Run]:
    names = batch.select(["group", "tag"])
    ends = {end for column in names.columns for end in pc.run_end_encode(column).run_ends.to_pylist()}
    starts = [0, *sorted(ends)]
    firsts = names.take(pa.array(starts[:-1], pa.int32()))
    groups, tags = (column.to_pylist() for column in firsts.columns)
    for start, end, group, tag in zip(starts, starts[1:], groups, tags, strict=False):
        yield end - start, group, tag


def _span(runs: Sequence[_Run]) -> IndexSpan:
    groups = [group[:NAME_CHARS_MAX] for _, group, _ in runs]
    tags = [tag[:NAME_CHARS_MAX] for _, _, tag in runs if tag is not None]
    nulls = len(tags) < len(runs)
    tag_min, tag_max = (min(tags), max(tags)) if tags else (None, None)
    return IndexSpan(sum(rows for rows, _, _ in runs), min(groups), max(groups), tag_min, tag_max, nulls)


@dataclass(frozen=True)
class Wanted:
    """The groups and tags of wanted rows: a row must have one of the groups and one of the tags."""

    groups: frozenset[str] | None = None
    """None for all."""
    tags: frozenset[str | None] | None = None
    """None for all; None among them for rows without a tag."""

    @classmethod
    def of(cls, groups: Collection[str] | None, tags: Collection[str | None] | None) -> Wanted:
        return cls(None if groups is None else frozenset(groups), None if tags is None else frozenset(tags))

    @property
    def everything(self) -> bool:
        return self.groups is None and self.tags is None

    def both(self, other: Wanted) -> Wanted:
        """Rows that both want."""
        return Wanted(_both(self.groups, other.groups), _both(self.tags, other.tags))

    def rows_of(self, entry: Entry) -> int:
        """Upper bound of the number of wanted rows, found without the file."""
        if self.everything:
            return entry.rows
        return sum(stretch.found for stretch in self.stretches(entry.index))

    def stretches(self, index: bytes) -> Iterator[Stretch]:
        """The blocks that may have wanted rows."""
        in_groups, in_tags = _searched(self.groups), _searched(self.tags)
        begin = 0
        for number, spans in enumerate(spans_of(index)):
            row = stop = found = 0
            start = -1
            for span in spans:
                _, group_min, group_max, tag_min, tag_max, nulls = span
                if in_groups(group_min, group_max, False) and in_tags(tag_min, tag_max, nulls):  # noqa: FBT003
                    start, stop = row if start < 0 else start, row + span.rows
                    found += span.rows
                row += span.rows
            if found:
                yield Stretch(number, begin, row, start, stop, found)
            begin += row

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows of a batch, which must have the columns in `by_column`."""
        for column, names in self.by_column():
            batch = batch.filter(pc.is_in(batch.column(column), value_set=pa.array(names, pa.string())))
        return batch

    def by_column(self) -> Iterable[tuple[str, Collection[str | None]]]:
        """Wanted names, by column; columns without a condition are omitted."""
        if self.groups is not None:
            yield "group", self.groups
        if self.tags is not None:
            yield "tag", self.tags


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return other if one is None else one if other is None else one & other


def _searched(names: Collection[str | None] | None) -> Callable[[str | None, str | None, bool], bool]:
    """Returns whether a span with these smallest and largest names, or with rows without one, may have wanted rows.

    Args:
        names: None for all; they are cut like the names in an index.
    """
    cut = sorted({name[:NAME_CHARS_MAX] for name in names or () if name is not None})

    def may_have(low: str | None, high: str | None, nulls: bool) -> bool:
        if names is None or (nulls and None in names):
            return True
        if low is None or high is None:
            return False
        at = bisect_left(cut, low)
        return at < len(cut) and cut[at] <= high

    return may_have
