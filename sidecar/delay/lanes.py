"""All hours of a store with several partitions: what each has to take next. Knows no log and no clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.delay.disk.blocks import ROW_TYPE, Held, Leave, Table
from sidecar.delay.disk.changes import Changes, LogEntry
from sidecar.delay.disk.gathered import Gathered
from sidecar.delay.disk.hour import SECOND_SEQUENCES, FileDamage, HourFile, Known, ShorterError
from sidecar.delay.disk.hours import BUFFERED_BYTES_MAX, PARKED_HOUR, Hours, NewRow, by_hour, hour_of, start_of
from sidecar.delay.disk.listing import HourView, ListedRow, listed, views_of
from sidecar.delay.disk.rewriting import Rewrite
from sidecar.delay.disk.wheel import Partitions, Positions
from sidecar.delay.readers import DROPPED, Left, Loaded, PartitionReader

_SEQUENCES = (1 << SEQUENCE_BITS) - 1


class Filed:
    """Decides whether a file has a message of a log: it was appended there after the log began.

    Args:
        known: The part of the files that counts, by hour.
    """

    def __init__(self, known: Mapping[int, Known]) -> None:
        self._sequences = {hour: of_file.sequence for hour, of_file in known.items() if of_file.messages}
        self._keys: dict[int, Positions] = {}
        """By hour, the sorted keys of its file's messages; read only where sequence numbers do not decide."""

    def has(
        self, file: HourFile, partitions: Partitions, positions: Positions, *, is_adopted: bool
    ) -> NDArray[np.bool_]:
        """Whether the file has each of these messages.

        An hour gives sequence numbers out in their order, so the file's last one decides. Numbers that count within
        their second prove nothing, nor do those of messages that were adopted: another host gave them out.

        Raises:
            OSError: The file cannot be read.
        """
        sequences, sequence = positions & np.uint64(_SEQUENCES), self._sequences.get(file.hour, 0)
        if not is_adopted and sequence < SECOND_SEQUENCES:
            return np.asarray(sequences < sequence)
        is_told = np.zeros(len(positions), np.bool_) if is_adopted else sequences < SECOND_SEQUENCES
        return np.asarray(is_told | self._has_keys(file, partitions, positions))

    def _has_keys(self, file: HourFile, partitions: Partitions, positions: Positions) -> NDArray[np.bool_]:
        if file.hour not in self._sequences:
            return np.zeros(len(positions), np.bool_)
        keys = self._keys.get(file.hour)
        if keys is None:
            keys = self._keys[file.hour] = np.sort(file.keys())
        return np.isin(file.keys_of(partitions, positions), keys)


_CHUNK = 256
"""Messages that leave a wheel at once."""
_FLUSH_BYTES, _FLUSH_FILES = 2 << 20, 32
"""Approximate limits of what `flush_some` appends at once."""


class PartitionReaders(Hours):
    """Messages by hour and partition. An hour is loaded when one of its messages is looked for.

    Args:
        folder: Has the files; it exists.
        known: The part of the files that counts, by hour.
        mark: No message is put at or below it.
        left: By hour and partition, the number of messages that are not ended; no zeros.
        damages: Gets the damage that is found.

    Raises:
        OSError: The folder cannot be read or changed.
    """

    def __init__(
        self,
        folder: Path,
        known: Mapping[int, Known],
        mark: int,
        left: dict[int, dict[int, int]],
        lanes: list[PartitionReader],
        damages: list[FileDamage],
    ) -> None:
        super().__init__(folder, known, mark)
        self.lanes = lanes
        self.left = Left(lanes, left, known)
        self._loaded = Loaded(lanes, self.left, damages)
        self._filed = Filed(known)
        self._to_flush: deque[int] = deque()
        """Hours that are flushed because too much is in memory."""
        self.nbytes = sum(file.size for file in known.values())
        """Bytes of the files."""
        for number in range(len(lanes)):
            self.rewind(number)

    # Putting

    def make_room(self) -> None:
        """Append some messages to the files if they take too much memory; a call is short.

        Raises:
            OSError: The disk cannot be written; they are still in memory.
        """
        for hour in list(self._full) if self._full else ():
            self._flush(self._hours[hour])
        if self._buffered_bytes > BUFFERED_BYTES_MAX and not self._to_flush:
            self._to_flush.extend(hour for hour, file in self._hours.items() if file.pending)
        if self._to_flush:
            self.flush_some(self._to_flush)
        if self._buffered_bytes > 2 * BUFFERED_BYTES_MAX:
            self.flush()

    def flush_some(self, hours: deque[int]) -> list[HourFile]:
        """Append the unwritten messages of the first of these hours; remove these hours, and return their files.

        Raises:
            OSError: The disk cannot be written; the hour that failed is still among them.
        """
        flushed, end = list[HourFile](), self.nbytes + _FLUSH_BYTES
        while hours and len(flushed) < _FLUSH_FILES and self.nbytes < end:
            file = self._hours.get(hours[0])
            if file is not None:
                self._flush(file)
                flushed.append(file)
            hours.popleft()
        return flushed

    def _flush(self, file: HourFile) -> None:
        size = file.size
        super()._flush(file)
        self.nbytes += file.size - size

    def put(self, number: int, rows: Iterable[NewRow], changes: Changes) -> list[int]:
        """Put messages of one partition; return their positions."""
        positions, lane = self.put_many(rows, changes), self.lanes[number]
        for hour, count in by_hour(np.array(positions, np.uint64)):
            had = self.left.add_count(number, hour, count)
            lane.queue(hour)
            self._loaded.add_put(number, self._hours[hour], count, is_first=not had)
        return positions

    def adopt(self, number: int, entry: LogEntry) -> None:
        """Hold messages of a partition that have positions; those below its cursor come after the next rewind."""
        lane = self.lanes[number]
        first = hour_of(lane.cursor)
        for file, count in self.adopt_many(entry):
            hour = file.hour
            had = self.left.add_count(number, hour, count)
            if hour >= first and hour not in lane.queued:
                lane.queue(hour)
            if hour in self._loaded:
                self._loaded.add_put(number, file, count, is_first=not had)
        positions = np.frombuffer(entry.table, ROW_TYPE)["position"]
        below = positions[: np.searchsorted(positions, np.uint64(lane.cursor))].tolist()
        if below:
            lane.note_taken(below)

    def _note(self, file: HourFile) -> None:
        super()._note(file)
        file.in_use = True

    # Restoring

    def restore(self, gathered: Gathered, *, is_adopted: bool) -> None:
        """Put or adopt messages of a log, but for those that a file has; `settle` must follow."""
        self.make_room()
        for each in gathered.by_hour():
            file, table = self._file(each.hour), each.table
            has = self._filed.has(file, table["partition"], table["position"], is_adopted=is_adopted)
            self._put_gathered(file, each, ~has)
            for number, count in zip(*np.unique(table["partition"], return_counts=True), strict=True):
                self.left.add_count(int(number), each.hour, int(count))

    def settle(self, cancelled: Iterable[tuple[int, int]], moved: Collection[int]) -> None:
        """Count again after messages were restored.

        Args:
            cancelled: Partitions and positions of messages that were cancelled.
            moved: Partitions whose watermark has changed.

        Raises:
            OSError: The file of an hour cannot be read.
        """
        keys: dict[int, list[int]] = {}
        for number, position in cancelled:
            if (file := self._hours.get(hour_of(position))) is not None:
                keys.setdefault(file.hour, []).append(file.key_of(number, position))
        for hour, of_hour in keys.items():
            ended = np.isin(self._hours[hour].keys(), np.array(of_hour, np.uint64))
            self._hours[hour].settled |= BitMap(np.flatnonzero(ended).astype(np.uint32))
        for lane in self.lanes:
            lane.cursor = lane.watermark
        for hour in keys:
            self._loaded.recount(self._hours[hour], self.left.numbers(hour))
        for number in moved:
            self._skip(number, self.lanes[number].cursor)
        for number in range(len(self.lanes)):
            self.rewind(number)
        self._filed = Filed({})

    # Taking

    def next(self, number: int) -> int | None:
        """A position below which the partition has nothing to take: of its next message, or the start of an hour."""
        lane = self.lanes[number]
        while lane.hours and (hour := lane.hours[0]) < PARKED_HOUR:
            if self.left.get(number, hour):
                wheel = self._loaded.get(number, hour)
                position = max(start_of(hour), lane.cursor) if wheel is None else wheel.next()
                if position is not None:
                    return position
            lane.queued.discard(heapq.heappop(lane.hours))
        return None

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> list[Held]:
        """The partition's next messages below a position in their order.

        Args:
            limit: The most that are taken.
            nbytes: The most that their payloads have together, but for the first.
            leave: Says which messages are left unread.

        Raises:
            OSError: The first file cannot be read; its messages come with a later call.
        """
        taken: list[Held] = []
        while len(taken) < limit and nbytes > 0:
            position = self.next(number)
            if position is None or position >= until:
                break
            file = self._hours[self.lanes[number].hours[0]]
            try:
                nbytes = self._take(number, file, until, limit, nbytes, leave, taken)
            except ShorterError:
                self._loaded.unload(file)  # it is loaded again, which counts the losses
            except OSError:
                self._loaded.unload(file)  # the entries that the wheel gave come again
                if taken:
                    break
                raise
        return taken

    def _take(
        self,
        number: int,
        file: HourFile,
        until: int,
        limit: int,
        nbytes: int,
        leave: Leave | None,
        taken: list[Held],
    ) -> int:
        """Take some of an hour; return the bytes that are left, 0 at the end."""
        lane, wheel = self.lanes[number], self._loaded.wheel(number, file)
        entries = [
            (position, place, wheel.number(place))
            for position, place in wheel.take_due(until, min(_CHUNK, limit - len(taken)))
        ]
        alive = [entry for entry in entries if entry[2] not in file.settled]
        for index, held in enumerate(file.read([number for _, _, number in alive], leave)):
            size = len(held.key or b"") + len(held.headers) + len(held.value or b"")
            if size > nbytes and taken:
                wheel.give_back((position, place) for position, place, _ in alive[index:])
                return 0
            nbytes -= size
            taken.append(held)
            lane.taken.append(held.position)
            self._advance(lane, held.position)
        if entries:
            self._advance(lane, entries[-1][0])
        return nbytes

    def _advance(self, lane: PartitionReader, position: int) -> None:
        lane.cursor = position + 1
        self.mark = max(self.mark, position)

    def rewind(self, number: int) -> None:
        """Let all messages that are not ended be taken again."""
        lane = self.lanes[number]
        lane.cursor, lane.reading = lane.watermark, None
        lane.taken.clear()
        self._loaded.forget_wheels(number)
        for hour in self.left.hours(number):
            lane.queue(hour)

    # Ending

    def end_below(self, number: int, watermark: int) -> None:
        """End all messages of a partition below a position.

        Raises:
            OSError: None of them is ended, because the position lies in an hour that cannot be read.
        """
        lane = self.lanes[number]
        if watermark <= lane.watermark:
            return
        if watermark > lane.cursor:
            self._skip(number, watermark)
        for hour, count in lane.end_below(watermark).items():
            self.left.set(number, hour, max(0, self.left.get(number, hour) - count))
        lane.watermark = watermark

    def _skip(self, number: int, cursor: int) -> None:
        """End messages below a cursor that were not taken."""
        lane, hour = self.lanes[number], hour_of(cursor)
        before = lane.cursor, lane.taken
        lane.cursor, lane.taken = cursor, deque()
        try:
            if (file := self._hours.get(hour)) is not None:
                self._loaded.recount(file, [number])
        except OSError:
            lane.cursor, lane.taken = before
            raise
        for past in self.left.hours(number):
            if past < hour:
                self.left.set(number, past, 0)
        self._loaded.forget_wheels(number)

    def cancel(self, number: int, position: int, epoch: int | None = None) -> bool:
        """End a message at or above the cursor, the one with an epoch if that is given; return whether there was one.

        Raises:
            OSError: The file of its hour cannot be read.
        """
        found = self._find(number, position, epoch) if position >= self.lanes[number].cursor else None
        if found is None:
            return False
        hour = hour_of(position)
        self._hours[hour].settled.add(found[0])
        self.left.set(number, hour, max(0, self.left.get(number, hour) - 1))
        return True

    def void(self, number: int, first: int, end: int) -> list[int]:
        """End the messages of a partition whose origins lie in [first, end), and rewind it; return their positions.

        Raises:
            OSError: A file cannot be read.
        """
        self.rewind(number)
        ended: list[int] = []
        for hour in self.left.hours(number):
            file, found = self._hours[hour], BitMap()
            for before, table in file.tables():
                origins, positions = table["origin"], table["position"]
                mine = (table["partition"] == number) & (positions >= np.uint64(self.lanes[number].cursor))
                places = np.flatnonzero(mine & (origins >= np.uint64(first)) & (origins < np.uint64(end)))
                places = np.array([place for place in places.tolist() if before + place not in file.settled], np.int64)
                ended += positions[places].tolist()
                found.update((places + before).tolist())
            if found:
                file.settled |= found
                self._loaded.recount(file, [number])
        self._loaded.forget_wheels(number)
        return ended

    def listed(self, number: int, first: int, end: int, limit: int, origin: int | None) -> list[ListedRow]:
        """The messages in [first, end) that were not taken; see `PartitionStore.listed`.

        Raises:
            OSError: A file cannot be read.
        """
        found, first = list[ListedRow](), max(first, self.lanes[number].cursor)
        for hour in sorted(self.left.hours(number)):
            if len(found) < limit and hour_of(first) <= hour <= hour_of(end - 1):
                with closing(HourView(self._hours[hour], {number: first}, end)) as view:
                    found += listed(view.rows(origin).cut(0, limit))
        return found[:limit]

    def views(self, lowest: Mapping[int, int], end: int) -> list[HourView]:
        lowest = {number: max(first, self.lanes[number].cursor) for number, first in lowest.items()}
        hours = self.left.between(lowest.keys(), hour_of(min(lowest.values(), default=end)), hour_of(end - 1))
        return views_of((self._hours[hour] for hour in hours), lowest, end)

    def find(self, number: int, position: int) -> Held | None:
        """A message that was not cancelled, as long as its hour has a file.

        Raises:
            OSError: It cannot be read.
        """
        found = self._find(number, position)
        return None if found is None else found[1]

    def _find(self, number: int, position: int, epoch: int | None = None) -> tuple[int, Held] | None:
        file = self._hours.get(hour_of(position))
        if file is None:
            return None
        for found in file.find(number, position):
            is_alive = found[0] not in file.settled and not self.lanes[number].is_dropped
            if is_alive and (epoch is None or found[1].epoch == epoch):
                return found
        return None

    def leave(self, number: int) -> None:
        """Forget a partition, and read no file: its rows stay where they are until their hours are over."""
        for hour in self.left.hours(number):
            self.left.set(number, hour, 0)
        self._loaded.forget_wheels(number)
        lane = self.lanes[number] = PartitionReader()
        lane.watermark = lane.cursor = DROPPED

    # Durability

    def unsaved(self) -> list[int]:
        """The hours whose files lack something, or are not durable."""
        return [hour for hour, file in self._hours.items() if file.pending or not file.is_synced]

    def known(self) -> dict[int, Known]:
        """`HourFile.known` of all hours, as copies."""
        return {hour: file.known._replace(settled=file.settled.copy()) for hour, file in self._hours.items()}

    def over(self) -> list[int]:
        """Hours whose messages are all ended, and that get no more."""
        to_come = range(hour_of(self.mark), PARKED_HOUR)
        return [hour for hour in self.left.empty if hour not in to_come]

    def drop(self, hour: int) -> HourFile:
        """Forget an hour; return its file."""
        file = self._hours.pop(hour)
        self._loaded.unload(file)
        self.left.empty.discard(hour)
        self._full.discard(hour)
        self._buffered_bytes -= file.pending.nbytes
        self.nbytes -= file.size
        return file

    def _left_in(self, file: HourFile) -> int:
        return self.left.total(file.hour)

    def _ended(self, file: HourFile, first: int, table: Table) -> NDArray[np.bool_]:
        watermarks = np.array([lane.watermark for lane in self.lanes], np.uint64)
        below: NDArray[np.bool_] = table["position"] < watermarks[table["partition"]]
        return below | super()._ended(file, first, table)

    def waste_bytes(self) -> int:
        """Bytes of ended messages in files that have more of them than of others."""
        self._fewer |= self.left.fewer
        self.left.fewer.clear()
        return super().waste_bytes()

    def rewritten(self, rewrite: Rewrite) -> None:
        """Let an hour have the other file, to which its messages were copied."""
        file, following = rewrite.file, rewrite.following
        self._loaded.unload(file)
        self._hours[file.hour] = following
        self._full.discard(file.hour)
        self._buffered_bytes -= file.pending.nbytes
        self.nbytes += following.size - file.size
        self._fewer.add(file.hour)

    def check(self, file: HourFile) -> None:
        """Find messages of a file that cannot be read: they count as ended.

        Raises:
            OSError: The file cannot be read.
        """
        self._loaded.check(file)
        self._fewer.add(file.hour)
