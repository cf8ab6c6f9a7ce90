"""An hour's content at one moment, for any thread. Columns are read first, and payloads only where they are wanted."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidecar.delay.disk.blocks import NO_POSITION, ROW_TYPE, Block, Found, Held, Read, Table, find, read_held
from sidecar.delay.disk.hour import HourFile

VIEWS_MAX = 64
VIEWED_BYTES = 4 << 20
"""Bytes of views from which on no further hour is opened at once."""
_PARTITIONS = 1 << 16
MayMatch = Callable[[NDArray[np.uint32], NDArray[np.uint64]], NDArray[np.bool_]]
"""Which messages may be sought, by the columns of their rows: the hashes of the rules, and the masks."""


class ListedRow(NamedTuple):
    """A message that is held, without its content."""

    position: int
    origin: int
    nbytes: int
    """Bytes of key, headers and value."""


class ListedRows(NamedTuple):
    """Columns of messages, in the order of their positions."""

    positions: NDArray[np.uint64]
    partitions: NDArray[np.uint64]
    origins: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    """Bytes of key, headers and value."""
    numbers: NDArray[np.uint64]
    """Their numbers in the hour."""

    def cut(self, first: int, end: int) -> ListedRows:
        """The rows with places in [first, end)."""
        return ListedRows(*(column[first:end] for column in self))

    def pick(self, places: Sequence[int]) -> ListedRows:
        """The rows at these places."""
        return ListedRows(*(column[np.array(places, np.intp)] for column in self))


class HourView:
    """An hour as it is now: messages that its owner appends, ends or removes later have no effect.

    Args:
        lowest: The lowest position of each partition that is wanted, by its number.
        end: The position behind the last.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, file: HourFile, lowest: Mapping[int, int], end: int) -> None:
        self.hour = file.hour
        self._lowest = lowest
        self._end = end
        self._settled = file.settled.copy()
        self._pending = Block()
        self._pending.table[:] = file.pending.table
        self._pending.payloads[:] = file.pending.payloads
        self._written = file.count - len(file.pending)
        self._size, self._salt = file.size, file.salt
        self._blocks: list[Found] = []
        self._unsound: dict[int, bool] = {}
        """Whether a block is damaged, by the number of its first message."""
        try:
            self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # there is none yet
            self._fd = -1

    @property
    def nbytes(self) -> int:
        """Copied bytes of messages that are only in memory."""
        return self._pending.nbytes

    @property
    def _read(self) -> Read:
        return partial(os.pread, self._fd) if self._fd >= 0 else lambda size, at: b""

    def rows(self, origin: int | None = None, may_match: MayMatch | None = None) -> ListedRows:
        """The messages that are not ended.

        Args:
            origin: The only origin, if one is given.
            may_match: Leaves out rows by their entries of tags, if it is given.

        Raises:
            OSError: The file cannot be read.
        """
        lowest = np.full(_PARTITIONS, NO_POSITION, np.uint64)
        for number, position in self._lowest.items():
            lowest[number] = position
        is_held = np.ones(self._written + len(self._pending), np.bool_)
        is_held[np.frombuffer(self._settled.to_array(), np.uint32)] = False
        pieces = [np.empty((5, 0), np.uint64)]
        for first, table in self._tables():
            positions, partitions = table["position"], table["partition"]
            mine = (positions >= lowest[partitions]) & (positions < np.uint64(self._end))
            if origin is not None:
                mine &= table["origin"] == np.uint64(origin)
            places = np.flatnonzero(mine & is_held[first : first + len(table)])
            if may_match is not None:
                places = places[may_match(table["rules"][places], table["mask"][places])]
            sizes = np.diff(table["end"], prepend=np.uint32(0))[places]
            columns = positions[places], partitions[places], table["origin"][places], sizes, places + first
            pieces.append(np.array(columns, np.uint64))
        found = np.concatenate(pieces, axis=1)
        return ListedRows(*found[:, np.lexsort((found[1], found[2], found[0]))])

    def _tables(self) -> Iterator[tuple[int, Table]]:
        """The tables that can be read, each with the number of its first message."""
        read, self._blocks = self._read, []
        for found in find(read, self._size, self._salt):
            table = found.table(read)
            if table is not None:
                self._blocks.append(found)
                yield found.first, table
        if self._pending:
            yield self._written, np.frombuffer(bytes(self._pending.table), ROW_TYPE)

    def read(self, rows: ListedRows) -> list[Held | None]:
        """These messages as a whole; None where the file is damaged.

        Raises:
            OSError: The file cannot be read.
        """
        numbers = rows.numbers.tolist()
        held = {number: self._held(number) for number in sorted(numbers)}  # in the order of the file
        return [held[number] for number in numbers]

    def _held(self, number: int) -> Held | None:
        if number >= self._written:
            return self._pending.read(number - self._written)
        block = self._blocks[bisect_right(self._blocks, (number + 1,)) - 1]
        if block.first not in self._unsound:
            self._unsound[block.first] = not block.is_sound(self._read)
        if self._unsound[block.first]:
            return None
        return read_held(self._read, block.table_at, block.payloads_at, number - block.first)

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def listed(rows: ListedRows) -> list[ListedRow]:
    """Messages without their partitions."""
    return list(map(ListedRow, *(column.tolist() for column in (rows.positions, rows.origins, rows.sizes))))


def views_of(files: Iterable[HourFile], lowest: Mapping[int, int], end: int) -> list[HourView]:
    """Views of the first hours: as many as take a few milliseconds at most.

    Raises:
        OSError: A file cannot be opened.
    """
    views: list[HourView] = []
    for file in files:
        views.append(HourView(file, lowest, end))
        if len(views) == VIEWS_MAX or sum(view.nbytes for view in views) > VIEWED_BYTES:
            break
    return views
