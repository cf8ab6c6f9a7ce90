"""What a task reads, with all it needs to know, and how batches are spread over tasks. Nothing of Spark may come in."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64

from sidecar.errors import ZoneError
from sidecar.spark.source.delivered import Drop
from sidecar.zone import Entry, read

TASK_BYTES_MIN: Final = 1 << 20
"""A task costs what 10,000 rows do: less than this is not shared out."""
TASK_BYTES_MAX: Final = 64 << 20
"""Of compressed files: so a task that fails repeats little, and more executors than this host has cores find work."""


@dataclass(frozen=True, slots=True)
class Share:
    """A batch to read; it can be pickled."""

    entry: Entry
    drop: tuple[tuple[int, bytes], ...]
    """Index of a cover, and which of its offsets to leave out, as Roaring."""

    @classmethod
    def of(cls, entry: Entry, drop: Drop) -> Share:
        """The share without the bitmaps that nobody needs any more."""
        if not drop:
            return cls(replace(entry, parts=(), covers=()), ())
        places = [cover.place for cover in entry.covers]
        covers = tuple(cover._replace(bitmap=b"") for cover in entry.covers)
        dropped = tuple((places.index(partition), bytes(offsets.serialize())) for partition, offsets in drop.items())
        return cls(replace(entry, covers=covers), dropped)

    def read(self, root: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Its rows.

        Raises:
            ZoneError: They cannot be had; the message has the hint too, as only its text gets to the user.
        """
        drop = {self.entry.covers[index].place: BitMap64.deserialize(offsets) for index, offsets in self.drop}
        try:
            yield from read(root, self.entry, columns, drop)
        except ZoneError as error:
            raise with_hint(error) from error


def with_hint(error: ZoneError) -> ZoneError:
    """The error with its hint in the message."""
    return ZoneError(f"{error}. {error.hint}" if error.hint else str(error))


def pack(shares: Sequence[Share], tasks_max: int | None) -> list[list[Share]]:
    """Spread shares over tasks so that each has about as many bytes, in their order within a task.

    Args:
        shares: What is to be read.
        tasks_max: How many tasks at most; None: at most one a core of this host and `TASK_BYTES_MIN`, but more where
            each would have more than `TASK_BYTES_MAX`.
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
