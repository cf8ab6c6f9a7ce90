"""The files of all hours of a store: where a message is put. Knows no reader, no log and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.instants import END_MS
from sidecar.delay.disk.blocks import NO_KEY, NO_VALUE, ROW, ROW_BYTES, ROW_TYPE, Held, Table
from sidecar.delay.disk.changes import Changes, LogEntry
from sidecar.delay.disk.filename import SUFFIX, path_of
from sidecar.delay.disk.gathered import OfHour
from sidecar.delay.disk.hour import HOUR_MS, SECOND_SEQUENCES, HourFile, Known
from sidecar.delay.disk.wheel import Positions

BUFFERED_BYTES_MAX = 32 << 20
"""Messages in memory before they are appended to the files of their hours: the fewer, the smaller the blocks."""
HOUR_BYTES_MAX = 1 << 20
"""The same for a single hour."""
WASTE_BYTES_MAX = 64 << 20
"""Bytes of ended messages from which on files are rewritten that have more of them than of others."""
WASTE_BYTES_MIN = 1 << 20
"""The same for a single file, when a checkpoint is written anyway."""
MEASURED_EVERY = 16
"""Bytes of ended messages are measured again once this fraction of the hour's messages (1/16) has ended since."""
PARKED_FROM = END_MS << SEQUENCE_BITS
"""Positions from here on are of parked parts: the time at which they were parked, and no message is due so late."""
PARKED_HOUR = END_MS // HOUR_MS


def hour_of(position: int) -> int:
    """The hour of a position, counted since the epoch."""
    return (position >> SEQUENCE_BITS) // HOUR_MS


def start_of(hour: int) -> int:
    """The lowest position of an hour."""
    return hour * HOUR_MS << SEQUENCE_BITS


def by_hour(positions: Positions) -> Iterable[tuple[int, int]]:
    """The hours of positions, and the number of positions in each."""
    hours, counts = np.unique((positions >> np.uint64(SEQUENCE_BITS)) // HOUR_MS, return_counts=True)
    return zip(hours.tolist(), counts.tolist(), strict=True)


Has = Callable[[HourFile, int, int], bool]
"""Whether a file has a message of a partition at a position."""
NewRow = tuple[int, int, int, int, int, bytes, bytes | None, bytes, bytes | None]
"""Due time in milliseconds, origin, epoch, partition, timestamp or `NO_TIMESTAMP`, entry of the tags, key, headers,
value."""


class Hours:
    """Messages by hour.

    Args:
        folder: Has the files; it exists.
        known: The part of the files that counts, by hour; other files are removed.
        mark: The highest position that an earlier process took; no message is put at or below it.

    Raises:
        OSError: The folder cannot be read or changed.
    """

    def __init__(self, folder: Path, known: Mapping[int, Known], mark: int) -> None:
        self._folder = folder
        counting = {path_of(folder, hour, of_file.salt) for hour, of_file in known.items()}
        self._remove([path for path in folder.glob(f"*{SUFFIX}") if path not in counting])
        self._hours = {hour: HourFile(folder, hour, of_file) for hour, of_file in known.items()}
        self.mark = mark
        """The highest position that was taken."""
        self._buffered_bytes = 0
        self._full: set[int] = set()
        """Hours with so much in memory that it makes a block."""
        self._fewer = set(known)
        """Hours where messages were ended since the space that they take up was measured."""
        self._wasteful: dict[int, int] = {}
        """Bytes of ended messages by hour, of files that have more of them than of others."""

    def _remove(self, strange: Iterable[Path]) -> None:
        """Remove files that do not count."""
        for path in strange:
            files.remove(path)

    # Putting

    def make_room(self) -> None:
        """Append messages to the files if they take too much memory.

        Raises:
            OSError: The disk cannot be written; they are still in memory.
        """
        for hour in list(self._full) if self._full else ():
            self._flush(self._hours[hour])
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            self.flush()

    def put_many(self, rows: Iterable[NewRow], changes: Changes) -> list[int]:
        """Put messages; return their positions.

        Args:
            changes: Gets them too, for the log.
        """
        hours, floor, positions, total = self._hours, (self.mark >> SEQUENCE_BITS) + 1, [], 0
        # This loop is most of the cost of a message: it calls nothing that is ours.
        for due_ms, origin, epoch, partition, stamp, tags, key, headers, value in rows:
            due_ms = floor if due_ms < floor else due_ms
            file = hours.get(due_ms // HOUR_MS)
            if file is None or file.sequence >= SECOND_SEQUENCES:
                file, position = self._place(due_ms)
            else:
                position = due_ms << SEQUENCE_BITS | file.sequence
                file.sequence += 1
            payload = (headers if key is None else key + headers) + (value or b"")
            table, payloads = file.pending.table, file.pending.payloads
            payloads += payload
            row = ROW.pack(
                position, origin, epoch, tags, stamp & 0xFFFFFFFF, stamp >> 32, partition,
                NO_KEY if key is None else len(key), len(headers) if value is not None else len(headers) | NO_VALUE,
                len(payloads),
            )  # fmt: skip
            table += row
            if file.wheel is not None:
                file.wheel.add_position(position, file.count - 1)
            if not file.in_use or len(payloads) > HOUR_BYTES_MAX:
                self._note(file)
            changes.add_row(row, payload)
            positions.append(position)
            total += len(payload)
        self._buffered_bytes += total + ROW_BYTES * len(positions)
        return positions

    def new_position(self, due_ms: int) -> int:
        """A position for a message that is due at this time, above all that were taken."""
        return self._place(max(due_ms, (self.mark >> SEQUENCE_BITS) + 1))[1]

    def _place(self, due_ms: int) -> tuple[HourFile, int]:
        """A file, perhaps a new one, and a position there."""
        while True:
            file = self._file(due_ms // HOUR_MS)
            position = file.position(due_ms)
            if position is not None:
                return file, position
            due_ms = (due_ms // 1000 + 1) * 1000  # half a million messages have this second already

    def file(self, hour: int) -> HourFile | None:
        """The file of an hour, if there is one."""
        return self._hours.get(hour)

    def _file(self, hour: int) -> HourFile:
        file = self._hours.get(hour)
        if file is None:
            file = self._hours[hour] = HourFile(self._folder, hour)
        return file

    def _note(self, file: HourFile) -> None:
        """Called when a message was put into an hour that is not `in_use`, or that has much in memory."""
        if len(file.pending.payloads) > HOUR_BYTES_MAX:
            self._full.add(file.hour)

    def adopt_many(self, entry: LogEntry) -> list[tuple[HourFile, int]]:
        """Hold messages that have positions; return the hours that have them now, each with their number.

        Args:
            entry: The messages in the order of their positions; not empty.
        """
        rows = bytearray(entry.table)
        moved = np.frombuffer(rows, ROW_TYPE)  # not a copy, which would lack the columns that have no name
        positions, ends = moved["position"], moved["end"].astype(np.int64)
        hours = (positions >> np.uint64(SEQUENCE_BITS)) // np.uint64(HOUR_MS)
        firsts = np.flatnonzero(np.diff(hours, prepend=hours[0] ^ np.uint64(1)))
        lasts = np.append(firsts[1:], len(hours))
        begins, files = np.where(firsts > 0, ends[firsts - 1], 0), [self._file(hour) for hour in hours[firsts].tolist()]
        before = np.array([len(file.pending.payloads) for file in files])
        moved["end"] = ends + np.repeat(before - begins, lasts - firsts)
        highest = np.maximum.reduceat(positions & np.uint64((1 << SEQUENCE_BITS) - 1), firsts)
        payloads = entry.payloads
        columns = [column.tolist() for column in (firsts, lasts, begins, ends[lasts - 1], highest)]
        for file, first, last, begin, end, sequence in zip(files, *columns, strict=True):
            block = file.pending
            table, held = block.table, block.payloads
            table += rows[first * ROW_BYTES : last * ROW_BYTES]
            held += payloads[begin:end]
            if file.sequence <= sequence < SECOND_SEQUENCES:
                file.sequence = sequence + 1
            elif sequence >= SECOND_SEQUENCES:
                for position in positions[first:last].tolist():
                    file.reserve(position)
            if not file.in_use or len(held) > HOUR_BYTES_MAX:
                self._note(file)
        self._buffered_bytes += len(rows) + len(payloads)
        return list(zip(files, (lasts - firsts).tolist(), strict=True))

    def _restore(self, table: bytes, payloads: memoryview, has: Has) -> int:
        """Put messages that have positions already, but for those that a file has; return the number that were put.

        Args:
            table: Their rows, with ends that count from the beginning of `payloads`.
            has: Returns which messages a file has.

        Raises:
            OSError: See `make_room`; or a file cannot be read.
        """
        self.make_room()
        rows = np.frombuffer(table, ROW_TYPE)
        columns, begin, added = (rows[name].tolist() for name in ("partition", "position", "end")), 0, 0
        for number, (partition, position, end) in enumerate(zip(*columns, strict=True)):
            file = self._file(hour_of(position))
            if not has(file, partition, position):
                file.reserve(position)
                file.pending.add_row(table[number * ROW_BYTES : (number + 1) * ROW_BYTES], payloads[begin:end])
                self._buffered_bytes += ROW_BYTES + end - begin
                self._note(file)
                added += 1
            begin = end
        return added

    def _put_gathered(self, file: HourFile, of_hour: OfHour, which: NDArray[np.bool_]) -> None:
        """Put these messages of an hour, which have positions already."""
        table, payloads = of_hour.block(np.flatnonzero(which), len(file.pending.payloads))
        if table:
            file.reserve_all(of_hour.table["position"][which])
            file.pending.table += table
            file.pending.payloads += payloads
            self._buffered_bytes += len(table) + len(payloads)
            self._note(file)

    def origins(self, number: int, positions: Sequence[int]) -> dict[int, int]:
        """The origins of a partition's messages, by position, as far as their rows are in files.

        Raises:
            OSError: A file cannot be read.
        """
        wanted, found = np.array(positions, np.uint64), dict[int, int]()
        for hour in self._hours.keys() & set(map(hour_of, positions)):
            for _, table in self._hours[hour].tables():
                mine = table[(table["partition"] == number) & np.isin(table["position"], wanted)]
                found |= zip(mine["position"].tolist(), mine["origin"].tolist(), strict=True)
        return found

    def parked(self, number: int) -> list[Held]:
        """The parked parts of a partition, in no order, without their values.

        Raises:
            OSError: A file cannot be read.
        """
        files = [file for hour, file in self._hours.items() if hour >= PARKED_HOUR]
        return [held for file in files for place, held in file.fronts(number) if place not in file.settled]

    def _flush(self, file: HourFile) -> None:
        nbytes = file.pending.nbytes
        file.flush()
        self._buffered_bytes -= nbytes
        self._full.discard(file.hour)
        if nbytes:  # which may have ended
            self._fewer.add(file.hour)

    def flush(self) -> None:
        """Append all messages that are only in memory to the files.

        Raises:
            OSError: It failed; messages that were not appended are still in memory.
        """
        for file in self._hours.values():
            if file.pending:
                self._flush(file)

    # Space

    def _left_in(self, file: HourFile) -> int:
        """Number of messages of an hour that are not ended."""
        return file.left

    def _ended(self, file: HourFile, first: int, table: Table) -> NDArray[np.bool_]:
        """Which messages of a table are ended, given the number of its first message."""
        return file.settled_in(first, len(table))

    def waste_bytes(self) -> int:
        """Bytes of ended messages in files that have more of them than of others."""
        while self._fewer:
            hour = self._fewer.pop()
            file = self._hours.get(hour)
            waste = self._waste_in(file) if file is not None and file.size else 0
            if file is not None and waste and 2 * waste >= file.size:
                self._wasteful[hour] = waste
            else:
                self._wasteful.pop(hour, None)
        return sum(self._wasteful.values())

    def _waste_in(self, file: HourFile) -> int:
        """Bytes of ended messages, as if all were of one size; where that hides large ones, they are measured."""
        ended = file.count - self._left_in(file)
        waste = file.size * ended // file.count
        if not ended or 2 * waste >= file.size or file.size < WASTE_BYTES_MIN:
            return waste
        if (ended - file.measured[0]) * MEASURED_EVERY >= file.count:
            file.measured = ended, self._measure(file)
        return max(waste, file.measured[1])

    def _measure(self, file: HourFile) -> int:
        total = 0
        with suppress(OSError):  # rewriting reports it
            for first, table in file.tables():
                sizes = np.diff(table["end"].astype(np.int64), prepend=0) + ROW_BYTES
                total += int(sizes[self._ended(file, first, table)].sum())
        return total

    @property
    def is_wasteful(self) -> bool:
        """Whether ended messages take up so much that a checkpoint is worth it."""
        return self.waste_bytes() > WASTE_BYTES_MAX

    def spare(self, hour: int) -> None:
        """Count nothing of an hour that could not be rewritten, until more of it ends."""
        self._wasteful.pop(hour, None)

    def wasteful(self) -> list[int]:
        """Hours whose files must be rewritten at a checkpoint."""
        self._fewer.update(self._wasteful)
        least = 1 if self.is_wasteful else WASTE_BYTES_MIN
        return [hour for hour, nbytes in self._wasteful.items() if nbytes >= least]
