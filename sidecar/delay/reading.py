"""What a store of held messages tells, without changing anything. It has no thread and no clock."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64
from rocksdict import RdictIter

from sidecar.core.messages.tag_index import ENTRY_BYTES
from sidecar.delay.database import DAMAGED, ROWS, ForeignFileError, keys, pairs
from sidecar.delay.interface import LISTED_MAX, FileDamage, StorePlace
from sidecar.delay.partition import HeldPartition
from sidecar.delay.rows import (
    COUNT_KEY,
    PARKED_FROM,
    PARKED_HOUR,
    POSITION_MAX,
    STORE_BYTES,
    Held,
    Kind,
    ListedRow,
    Pair,
    hour_of,
    listed,
    number_in,
    origin_in,
    position_in,
    start_of,
    tags_in,
    unpacked,
)  # fmt: skip
from sidecar.errors import StateError

VERSION = 1
_TAGS = np.dtype([("mask", "<u8"), ("rules", "<u4")])
assert _TAGS.itemsize == ENTRY_BYTES


class Pairs(Protocol):
    """A sorted map."""

    def cursor(self) -> RdictIter:
        """An iterator of RocksDB over all pairs as they are now, for any thread."""
        ...

    def errors(self, verb: str) -> AbstractContextManager[None]:
        """Raise errors as those of the program."""
        ...


def tag_columns(rows: Sequence[Pair]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """The entries of tags of rows: the hashes of the rules, and the masks."""
    entries = np.frombuffer(b"".join(tags_in(value) for _, value in rows), _TAGS)
    return entries["rules"], entries["mask"]


class HeldView:
    """Messages as they were at one moment, in the order of positions; for any thread.

    Args:
        lowest: The partitions that are wanted, each with its lowest position.
        end: The position behind the last.
    """

    def __init__(self, database: Pairs, lowest: Iterable[tuple[HeldPartition, int]], end: int) -> None:
        self._database, self._end = database, min(end, PARKED_FROM)
        # Not a snapshot of the library, which does not keep what is removed later.
        self._cursors = [(partition, at, database.cursor()) for partition, at in lowest]
        self._whole = Counter[int]()
        """Numbers of messages in hours that are wanted as a whole."""
        for partition, at, _ in self._cursors:
            hours = range(hour_of(at - 1) + 1, hour_of(self._end))
            self._whole.update({hour: each.messages for hour, each in partition.hours.items() if hour in hours})

    def pieces(self, size: int) -> Iterator[Sequence[Pair]]:
        """Rows, about so many at once; all at one position are in one piece."""
        piece: list[Pair] = []
        with self._database.errors("read"):
            rows = (pairs(cursor, each.rows, each.at(at), each.at(self._end)) for each, at, cursor in self._cursors)
            for key, value in heapq.merge(*rows, key=_place):
                if len(piece) >= size and position_in(piece[-1][0]) != position_in(key):
                    yield piece
                    piece = []
                piece.append((key, value))
        if piece:
            yield piece

    def hours(self) -> Mapping[int, int]:
        """Number of messages by the hour in which they are due: the keys of parts of hours are read, and no content."""
        found, end, last = Counter(self._whole), self._end, start_of(hour_of(self._end))
        with self._database.errors("read"):
            for each, at, cursor in self._cursors:
                first = start_of(hour_of(at - 1) + 1)
                for begin, behind in ((at, first), (last, end)) if first <= last else ((at, end),):
                    some = keys(cursor, each.rows, each.at(begin), each.at(behind))
                    found.update(hour_of(position_in(key)) for key in some)
        return found


def _place(pair: Pair) -> bytes:
    return pair[0][5:13] + pair[0][1:5]


class HeldRows:
    """Held messages of several partitions in a sorted map.

    Args:
        path: The folder of the store.
        identity: 48 random bits.

    Raises:
        StateError: It cannot be read.
    """

    damages: list[FileDamage]
    """Damage found since the start."""
    parked_from = PARKED_FROM
    """The lowest position that is no due time."""

    def __init__(self, database: Pairs, path: Path, identity: int) -> None:
        self._rows, self.id, self._mark = database, identity, identity.to_bytes(STORE_BYTES, "big")
        self._partitions: dict[int, HeldPartition] = {}
        self._numbers: dict[bytes, int] = {}
        self._waiting_bytes = 0
        with database.errors("read"):
            try:
                self._load(path / ROWS)
            except (ValueError, ForeignFileError) as error:
                raise unusable(path, error) from error

    def _under(self, start: bytes, first: bytes = b"", end: bytes | None = None) -> Iterator[Pair]:
        return pairs(self._rows.cursor(), start, first, end)

    def _load(self, path: Path) -> None:
        for key, raw in self._under(Kind.PARTITION):
            number = number_in(key)
            partition = self._partitions[number] = HeldPartition.decoded(number, raw)
            self._numbers[partition.name] = number
        self._add_counts(Kind.COUNT, path)
        self._waiting_bytes = sum(partition.nbytes for partition in self._partitions.values())

    def _add_counts(self, start: bytes, path: Path) -> None:
        for key, raw in self._under(start):
            _, number, count = COUNT_KEY.unpack(key)
            if raw[:STORE_BYTES] != self._mark:
                raise ForeignFileError(path)
            if number in self._partitions:
                self._partitions[number].add_count(count, raw[STORE_BYTES:])

    def note_reported(self) -> None:
        """Note that all damage so far was reported: no later start reports it again."""

    @property
    def rows(self) -> Self:
        """What it has: itself."""
        return self

    def names(self) -> Mapping[bytes, int]:
        """The numbers of all partitions."""
        return self._numbers

    def place(self, number: int) -> StorePlace:
        """Where the messages of a partition are."""
        return StorePlace(self.id, f"{self.id:x}.{number}")

    def state(self, number: int) -> bytes | None:
        """The last state given to `keep`."""
        return self._partitions[number].state

    def known(self, number: int) -> BitMap64:
        """Origins of all messages that were put, at or above the floor, as a copy."""
        return self._partitions[number].known.copy()

    def held(self, number: int) -> int:
        """Number of messages that are not ended, without parked parts."""
        return self._partitions[number].messages_before(hour_of(self.parked_from))

    def hours(self) -> dict[int, int]:
        """Number of messages that are not ended, by the hour in which they are due, without parked parts."""
        totals: dict[int, int] = {}
        for partition in self._counted():
            for hour, found in partition.hours.items():
                if found.messages and hour < PARKED_HOUR:
                    totals[hour] = totals.get(hour, 0) + found.messages
        return totals

    def _counted(self) -> Iterable[HeldPartition]:
        return self._partitions.values()

    def disk_bytes(self) -> int:
        """Bytes of what is not ended."""
        return self._waiting_bytes

    def next(self, number: int) -> int | None:
        """The position below which the partition has nothing to take; None if there is nothing at all."""
        partition = self._partitions[number]
        if partition.following == 0:
            with self._rows.errors("read"):
                first, end = partition.at(partition.cursor), partition.at(self.parked_from)
                found = next(self._under(partition.rows, first, end), None)
            partition.following = None if found is None else position_in(found[0])
        return partition.following

    def _found(self, partition: HeldPartition, position: int) -> list[tuple[bytes, bytes]]:
        """The rows at a position: several until all but one are removed."""
        if position < partition.watermark or position > POSITION_MAX:
            return []
        return list(self._under(partition.at(position)))

    def find(self, number: int, position: int) -> Held | None:
        """A message that is not ended, taken or not."""
        partition = self._partitions.get(number)
        if partition is None:
            return None
        with self._rows.errors("read"):
            return next((unpacked(*pair) for pair in self._found(partition, position)), None)

    def parked(self, number: int) -> list[Held]:
        """The parked parts that are kept, in no order, without their values."""
        partition = self._partitions[number]
        first = partition.at(max(PARKED_FROM, partition.watermark))
        with self._rows.errors("read"):
            return [unpacked(*pair)._replace(value=None) for pair in self._under(partition.rows, first)]

    def listed(
        self, number: int, first: int = 0, end: int = POSITION_MAX, limit: int = LISTED_MAX, origin: int | None = None
    ) -> list[ListedRow]:
        """Messages in [first, end) that were not taken, in order; those of an origin, if one is given."""
        partition, found = self._partitions[number], list[ListedRow]()
        begin, behind = partition.at(max(first, partition.cursor)), partition.at(min(end, PARKED_FROM))
        with self._rows.errors("read"):
            for key, value in self._under(partition.rows, begin, behind):
                if origin is None or origin_in(value) == origin:
                    found.append(listed(key, value))
                    if len(found) == limit:
                        break
        return found

    def view(self, lowest: Mapping[int, int], end: int) -> HeldView:
        """What some partitions have now that was not taken, for any thread: see `ReadRows`."""
        known = ((self._partitions[number], at) for number, at in lowest.items() if number in self._partitions)
        return HeldView(self._rows, [(each, max(at, each.cursor)) for each, at in known], end)


def unusable(path: Path, why: object, *, else_kept: bool = False) -> StateError:
    """The error of a store that cannot be used.

    Args:
        else_kept: Whether a start without the damaged files keeps what the others have.
    """
    rest = f"create the file {path / DAMAGED}, and the next start keeps what can be read" if else_kept else ""
    rest = rest or "move it away, and the messages that it holds are lost"
    return StateError(f"delayed messages: {path} cannot be used: {why}", hint=f"restore the folder; or {rest}")
