"""The shares that tasks read, and their distribution over tasks. It uses no Spark."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64

from sidecar.errors import ZoneError
from sidecar.spark.source.delivered import Drop
from sidecar.storage import Root
from sidecar.zone import Entry, read
from sidecar.zone.index import Wanted

TASK_BYTES_MIN: Final = 1 << 20
"""A task costs as much as 10,000 rows: smaller shares are not distributed."""
TASK_BYTES_MAX: Final = 64 << 20
"""Limit of compressed files in a task: a failed task repeats little, and executors with more cores than this host have
work."""


@dataclass(frozen=True, slots=True)
class Share:
    """A batch to read; it can be pickled."""

    entry: Entry
    drop: tuple[tuple[int, bytes], ...]
    """Index of a cover, and its offsets to leave out, as Roaring."""
    wanted: Wanted
    """The groups and tags whose rows are read."""

    @classmethod
    def of(cls, entry: Entry, drop: Drop, wanted: Wanted) -> Share:
        """The share, without bitmaps and an index that are not needed any more."""
        if wanted.everything:
            entry = replace(entry, index=b"")
        if not drop:
            return cls(replace(entry, parts=(), covers=()), (), wanted)
        places = [cover.place for cover in entry.covers]
        covers = tuple(cover._replace(bitmap=b"") for cover in entry.covers)
        dropped = tuple((places.index(partition), bytes(offsets.serialize())) for partition, offsets in drop.items())
        return cls(replace(entry, covers=covers), dropped, wanted)

    def read(self, root: Root, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The wanted rows of the share.

        Raises:
            ZoneError: They cannot be read; the message includes the hint, as only its text reaches the user.
        """
        drop = {self.entry.covers[index].place: BitMap64.deserialize(offsets) for index, offsets in self.drop}
        try:
            yield from read(root, self.entry, columns, drop, groups=self.wanted.groups, tags=self.wanted.tags)
        except ZoneError as error:
            raise with_hint(error) from error


def with_hint(error: ZoneError) -> ZoneError:
    """The error with its hint in the message."""
    return ZoneError(f"{error}. {error.hint}" if error.hint else str(error))


def pack(shares: Sequence[Share], tasks_max: int | None) -> list[list[Share]]:
    """Distribute shares over tasks of about equal bytes, in their order within a task.

    Args:
        tasks_max: Limit of tasks; None: at most one per core of this host and `TASK_BYTES_MIN`, but more if a task
            would have more than `TASK_BYTES_MAX`.
    """
    total = sum(share.entry.bytes for share in shares)
    wanted = max(min(total // TASK_BYTES_MIN, os.cpu_count() or 1), -(-total // TASK_BYTES_MAX), 1)
    tasks: list[list[int]] = [[] for _ in range(min(tasks_max or wanted, len(shares)))]
    loads = [(0, number) for number in range(len(tasks))]
    for index in sorted(range(len(shares)), key=lambda index: -shares[index].entry.bytes):
        load, number = heapq.heappop(loads)
        tasks[number].append(index)
        heapq.heappush(loads, (load + shares[index].entry.bytes, number))
    return [[shares[index] for index in sorted(task)] for task in tasks]
