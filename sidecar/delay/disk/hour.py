"""The file of one hour: blocks in the order in which they were appended. Knows no other hour and no clock.

Its name has the hour and the salt of its checksums, which is drawn for each file: `HOUR-SALT-2.delay`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import (
    HEAD_BYTES,
    NO_POSITION,
    ROW_TYPE,
    Block,
    Found,
    Held,
    Leave,
    Read,
    Table,
    find,
    read_front,
    read_held,
)
from sidecar.delay.disk.filename import path_of
from sidecar.delay.disk.names import Names
from sidecar.delay.disk.wheel import Numbers, Partitions, Positions, Wheel

HOUR_MS = 3_600_000
_PARTITION_BITS = 16
SECOND_SEQUENCES = 1 << (SEQUENCE_BITS - 1)
"""From here on a sequence number counts within its second: a counter for each second is only kept of full hours."""


class FileDamage(NamedTuple):
    """Messages of a file that can no longer be read."""

    path: Path
    reason: str
    messages: int
    """Their number, as far as it is known."""


class ShorterError(Exception):
    """The file is shorter than it was when it was loaded."""


class Known(NamedTuple):
    """A process's knowledge of an hour's file."""

    size: int
    messages: int
    sequence: int
    settled: BitMap
    salt: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Read]:
    """Reads a file, as if it were empty if there is none.

    Raises:
        OSError: It cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield lambda size, at: b""
        return
    try:
        yield partial(os.pread, fd)
    finally:
        os.close(fd)


class HourFile:
    """An hour's messages, each with a number in the order in which they were added.

    Added messages are in memory until `flush` appends them to the file as a block.

    Args:
        known: What an earlier process knew of the file; None for a new file.
    """

    def __init__(self, folder: Path, hour: int, known: Known | None = None) -> None:
        self.hour = hour
        self.salt = known.salt if known else secrets.randbits(32)
        """The first bits of each checksum, which no producer of messages knows."""
        self.path = path_of(folder, hour, self.salt)
        self.size = known.size if known else 0
        """Bytes that count; the file may have more after a failed write."""
        self.settled = known.settled if known else BitMap()
        """Numbers of the messages that are settled, or cannot be read."""
        self.out = BitMap()
        """Numbers of the messages that were taken and are not settled."""
        self.measured = 0, 0
        """Number and bytes of ended messages, when these were measured last."""
        self.is_synced = True
        self.sequence = known.sequence if known else 0
        """The next sequence number; from `SECOND_SEQUENCES` on, the lowest that `position` gives out in a second."""
        self.wheel: Wheel | None = None
        """The messages that were not taken; None until the first of the hour is asked for."""
        self.in_use = False
        """Whether the calendar has it among the hours with messages to take."""
        self.pending = Block()
        """Messages that are only in memory."""
        self._written = known.messages if known else 0
        self._seconds: dict[int, int] | None = {} if self.sequence < SECOND_SEQUENCES else None
        """Sequence numbers by second, for those from `SECOND_SEQUENCES` on; None until they are looked for."""
        self.names: Names | None = None
        """The names in the file; None until one is looked for."""
        self._blocks: list[Found] | None = None
        """The sound blocks of the file; None while the hour is not loaded."""

    @property
    def count(self) -> int:
        """Number of messages, settled ones included."""
        return self._written + len(self.pending)

    @property
    def written(self) -> int:
        """Number of messages in the file, settled ones included."""
        return self._written

    @property
    def left(self) -> int:
        """Number of messages that are not settled."""
        return self.count - len(self.settled)

    @property
    def known(self) -> Known:
        """The knowledge of the file that a later process needs."""
        return Known(self.size, self._written, self.sequence, self.settled, self.salt)

    def successor(self) -> HourFile:
        """An empty file for the same hour, which gives out no position that this one gave out.

        A later process knows the positions of the hour's first `SECOND_SEQUENCES` messages, and of held ones; for
        others, `sequence` must record them.

        Raises:
            OSError: The file cannot be read.
        """
        if self._seconds is None:
            self._seconds = _seconds_of(self.positions())
        following = HourFile(self.path.parent, self.hour)
        while following.salt == self.salt:
            following = HourFile(self.path.parent, self.hour)
        following.sequence, following._seconds, following.in_use = self.sequence, self._seconds, self.in_use
        return following

    def find_blocks(self, read: Read, at: int = 0) -> Iterator[Found]:
        """The blocks of the file, from an offset on."""
        return find(read, self.size, self.salt, at)

    # Adding

    def position(self, due_ms: int) -> int | None:
        """A new position for a message that is due in this hour; None if all of its second are used."""
        if self.sequence < SECOND_SEQUENCES:
            self.sequence += 1
            return due_ms << SEQUENCE_BITS | self.sequence - 1
        if self._seconds is None:
            self._seconds = _seconds_of(self.positions())
        second = due_ms // 1000
        sequence = max(self._seconds.get(second, 0), self.sequence)
        if sequence >> SEQUENCE_BITS:
            return None
        self._seconds[second] = sequence + 1
        return due_ms << SEQUENCE_BITS | sequence

    def reserve(self, position: int) -> None:
        """Give out this position, which an earlier process or another host gave out, no more."""
        sequence = position & ((1 << SEQUENCE_BITS) - 1)
        if sequence < SECOND_SEQUENCES:
            self.sequence = max(self.sequence, sequence + 1)
            return
        self.sequence = max(self.sequence, SECOND_SEQUENCES)  # also where the numbers below were not all given out
        if self._seconds is not None:
            second = (position >> SEQUENCE_BITS) // 1000
            self._seconds[second] = max(self._seconds.get(second, 0), sequence + 1)

    def reserve_all(self, positions: Positions) -> None:
        """Give out these positions no more; see `reserve`."""
        sequences = positions & np.uint64((1 << SEQUENCE_BITS) - 1)
        of_hour = sequences[sequences < SECOND_SEQUENCES]
        if len(of_hour):
            self.sequence = max(self.sequence, int(of_hour.max()) + 1)
        for position in positions[sequences >= SECOND_SEQUENCES].tolist():
            self.reserve(position)

    def flush(self) -> None:
        """Append the messages that are only in memory to the file.

        Raises:
            OSError: It failed; they are still in memory.
        """
        if not self.pending:
            return
        block = self.pending.encoded(self._written, self.sequence, self.salt)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, self.size)  # after a crash it may have more than counts
            files.write_at(fd, block, self.size)
        finally:
            os.close(fd)
        if self._blocks is not None:
            payload_bytes = len(block) - HEAD_BYTES - len(self.pending.table)
            found = Found(self._written, self.size, len(self.pending), payload_bytes, self.sequence, self.salt)
            self._blocks.append(found)
        if self.names is not None:
            self.names.add_keys(self.pending.keys(), self._written, self.size)
        self.size, self._written, self.is_synced, self.pending = self.size + len(block), self.count, False, Block()

    def sync(self) -> None:
        """Make the file durable, but not its name.

        Raises:
            OSError: It failed.
        """
        files.sync(self.path)
        self.is_synced = True

    # Reading

    def load(self) -> list[FileDamage]:
        """Check all of the file, and make its messages readable; return the damage, which counts as settled.

        Raises:
            OSError: It cannot be read.
        """
        blocks, damages, end = list[Found](), list[FileDamage](), 0
        with opened(self.path) as read:
            for found in self.find_blocks(read):
                damages += self._lose(end, found.first, "bytes between its blocks are damaged")
                end = found.first + found.messages
                if found.is_sound(read):
                    blocks.append(found)
                else:
                    damages += self._lose(found.first, end, "a block's checksum is wrong")
        damages += self._lose(end, self._written, "it is shorter than it was")
        self._blocks = blocks
        return damages

    def _lose(self, first: int, end: int, reason: str) -> Iterator[FileDamage]:
        lost = BitMap(range(first, end)) - self.settled - self.out
        self.settled |= lost
        if lost:
            yield FileDamage(self.path, reason, len(lost))

    def unload(self) -> None:
        """Forget where messages are."""
        self.wheel = self._blocks = None

    def to_take(self) -> Numbers:
        """The numbers of the messages that are neither settled nor taken, in rising order."""
        gone = self.settled | self.out
        is_held = np.ones(self.count, np.bool_)
        is_held[np.fromiter(gone, np.int64, len(gone))] = False
        return np.flatnonzero(is_held).astype(np.uint32)

    def positions(self) -> Positions:
        """The position of each message by its number; `NO_POSITION` where it cannot be read.

        Raises:
            OSError: It cannot be read.
        """
        positions = np.full(self.count, NO_POSITION, np.uint64)
        for first, table in self.tables():
            positions[first : first + len(table)] = table["position"]
        return positions

    def tables(self) -> Iterator[tuple[int, Table]]:
        """The tables that can be read, each with the number of its first message; payloads are not read.

        Raises:
            OSError: The file cannot be read.
        """
        with opened(self.path) as read:
            for found in self.find_blocks(read):
                table = found.table(read)
                if table is not None:
                    yield found.first, table
        if self.pending:
            yield self._written, np.frombuffer(bytes(self.pending.table), ROW_TYPE)

    def settled_in(self, first: int, count: int) -> NDArray[np.bool_]:
        """Which of `count` messages are settled, given the number of the first."""
        settled, found = self.settled & BitMap(range(first, first + count)), np.zeros(count, np.bool_)
        found[np.fromiter(settled, np.int64, len(settled)) - first] = True
        return found

    def columns(self) -> tuple[Positions, Partitions]:
        """Position and partition of each message by its number; `NO_POSITION` where it cannot be read.

        Raises:
            OSError: It cannot be read.
        """
        positions, partitions = np.full(self.count, NO_POSITION, np.uint64), np.zeros(self.count, np.uint16)
        for first, table in self.tables():
            positions[first : first + len(table)] = table["position"]
            partitions[first : first + len(table)] = table["partition"]
        return positions, partitions

    def keys(self) -> Positions:
        """The `key_of` each message by its number; `NO_POSITION` where it cannot be read.

        Raises:
            OSError: It cannot be read.
        """
        positions, partitions = self.columns()
        return np.where(positions == NO_POSITION, np.uint64(NO_POSITION), self.keys_of(partitions, positions))

    def keys_of(self, partitions: Partitions, positions: Positions) -> Positions:
        """The `key_of` each of these."""
        return positions - np.uint64(self.hour * HOUR_MS << SEQUENCE_BITS) << np.uint64(_PARTITION_BITS) | partitions

    def key_of(self, partition: int, position: int) -> int:
        """A number that stands for one message of this hour: a position alone is only unique in its partition."""
        return position - (self.hour * HOUR_MS << SEQUENCE_BITS) << _PARTITION_BITS | partition

    def find(self, partition: int, position: int) -> Iterator[tuple[int, Held]]:
        """The messages of a partition with this position, and their numbers; not those that are damaged.

        Raises:
            OSError: They cannot be read.
        """
        with opened(self.path) as read:
            for found in self.find_blocks(read):
                table = found.table(read)
                for index in () if table is None else _places(table, partition, position):
                    held = read_held(read, found.table_at, found.payloads_at, index) if found.is_sound(read) else None
                    if held is not None:
                        yield found.first + index, held
        for index in _places(np.frombuffer(bytes(self.pending.table), ROW_TYPE), partition, position):
            yield self._written + index, self.pending.read(index)

    def fronts(self, partition: int) -> Iterator[tuple[int, Held]]:
        """The messages of a partition without their values, and their numbers; not those in a damaged table.

        Raises:
            OSError: The file cannot be read.
        """
        with opened(self.path) as read:
            for found in self.find_blocks(read):
                table = found.table(read)
                for index in () if table is None else np.flatnonzero(table["partition"] == partition).tolist():
                    held = read_front(read, found.table_at, found.payloads_at, index)
                    if held is not None:
                        yield found.first + index, held
        table = np.frombuffer(bytes(self.pending.table), ROW_TYPE)
        for index in np.flatnonzero(table["partition"] == partition).tolist():
            yield self._written + index, self.pending.read(index)

    def read(self, numbers: Sequence[int], leave: Leave | None = None) -> Iterator[Held]:
        """These messages of a loaded hour, one after the other; `Unread` where `leave` says so.

        Raises:
            ShorterError: The file was truncated or removed since then.
            OSError: It cannot be read.
        """
        assert self._blocks is not None
        blocks = self._blocks
        with opened(self.path) as read:
            for number in numbers:
                if number >= self._written:
                    yield self.pending.read(number - self._written, leave)
                    continue
                block = blocks[bisect_right(blocks, (number + 1,)) - 1]
                held = read_held(read, block.table_at, block.payloads_at, number - block.first, leave)
                if held is None:
                    raise ShorterError
                yield held


def _places(table: Table, partition: int, position: int) -> list[int]:
    places: list[int] = np.flatnonzero((table["position"] == position) & (table["partition"] == partition)).tolist()
    return places


def _seconds_of(positions: Positions) -> dict[int, int]:
    """The next sequence number of each second that has some of its own."""
    known = positions[positions != NO_POSITION]
    sequences = known & ((1 << SEQUENCE_BITS) - 1)
    own = sequences >= SECOND_SEQUENCES
    seconds, sequences = (known[own] >> SEQUENCE_BITS) // 1000, sequences[own]
    order = np.argsort(sequences, kind="stable")  # the highest of each second is the last
    return {int(second): int(sequence) + 1 for second, sequence in zip(seconds[order], sequences[order], strict=True)}
