"""Holds the messages of several partitions on a local disk until they are due. It has no thread and no clock.

    put, adopted ──▶ waits ──taken──▶ taken ──keep with a watermark above it──▶ ended: the row is removed
         │             │  ◀──rewind──   │
         │             └──cancelled, void, released to an earlier position──▶ ended
         └─ a power cut before its write was durable ──▶ never there

| state | the row is there | counted as held | taken again |
|---|---|---|---|
| waits | yes | yes | at or above the cursor: once |
| taken | yes | yes | after `rewind`, or by the next process |
| ended | no | no | never |

Each change is one write: its rows, what its hours gain, and the origins that become known. So all of these fit each
other after any crash, and nothing is read at a start but partitions and counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import name_in
from sidecar.delay.database import keys
from sidecar.delay.headers import unpack_headers
from sidecar.delay.partition import SEQUENCES, HeldPartition, Taken, Write
from sidecar.delay.rows import (
    HEAD,
    HOUR_MS,
    NO_TIMESTAMP,
    ORIGIN_MAX,
    POSITION_MAX,
    PUT_BYTES_MAX,
    ROW_BYTES,
    Held,
    Kind,
    Leave,
    end_of,
    headers_in,
    hour_of,
    name_key,
    name_prefix,
    origin_in,
    position_in,
    prefix,
    row_key,
    row_of_name,
    unpacked,
)  # fmt: skip
from sidecar.delay.stored import StoredRows
from sidecar.errors import StateError

FOUND_AT_ONCE = 50
"""Rows of names that are looked at in one step: a millisecond at most."""
ENDED_AT_ONCE = 1_000


class PartitionStore(StoredRows):
    """A `HeldStore`. For one thread of one process, but for its jobs, and the views that it gives.

    Args:
        path: A folder; created if it is missing.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    learns = True
    """Whether origins are known."""

    def committed(self, number: int, watermark: int) -> None:
        """Do nothing: a kept state counts at once."""

    def leave(self, number: int) -> None:
        """Do nothing: held messages stay here."""

    def forget_cancelled(self, number: int, positions: Iterable[int]) -> None:
        """Do nothing: cancelled messages are ended already."""

    def is_moving(self, number: int) -> bool:  # noqa: ARG002  # see `HeldStore`
        """No message is: a change is in the store at once."""
        return False

    # Holding

    def put(self, number: int, rows: Iterable[Held]) -> list[int]:
        """Hold messages at their due times; return their positions, which are above all that were taken, or `seen`.

        Raises:
            ValueError: A number is out of range, or there are too many bytes; nothing is held.
            StateError: The disk cannot be written; nothing is held.
        """
        rows = list(rows)
        if not rows:
            return []
        partition, change = self._partitions[number], Write()
        wanted, *columns = checked(rows)
        positions = self._places(partition, wanted)
        _check_bytes(change.add_rows(number, positions, columns))
        if self.learns:
            change.origins = columns[0]
        lowest = change.lowest = min(positions)
        self._write(partition, change)
        self._note_put(lowest)
        return positions

    def _places(self, partition: HeldPartition, wanted: Iterable[int]) -> list[int]:
        """New positions at the times of these, which are above all that were taken, or `seen`."""
        positions, hours, last = list[int](), partition.hours, dict[int, int]()
        floor = (partition.mark >> SEQUENCE_BITS) + 1 if partition.mark else 0
        for position in wanted:
            due_ms = position >> SEQUENCE_BITS
            if due_ms < floor:
                due_ms = floor
            found = hours.get(due_ms // HOUR_MS) or partition.of(due_ms // HOUR_MS)
            if (sequence := found.sequence) < SEQUENCES:
                found.sequence = sequence + 1
                positions.append(due_ms << SEQUENCE_BITS | sequence)
            else:
                positions.append(self._rare_place(partition, due_ms, positions, last))
        return positions

    def _note_put(self, lowest: int) -> None:
        self._unsynced.append((self._database.changes, lowest))

    def _rare_place(self, partition: HeldPartition, due_ms: int, given: Sequence[int], last: dict[int, int]) -> int:
        """A position of a millisecond in an hour that has used all its sequence numbers, or of a later one.

        Args:
            given: Positions that are not written yet.
            last: The last position of milliseconds, where it is known.
        """
        while True:
            first, end = due_ms << SEQUENCE_BITS, due_ms + 1 << SEQUENCE_BITS
            if due_ms not in last:
                last[due_ms] = max((each for each in given if first <= each < end), default=first - 1)
                with self._database.errors("read"):
                    cursor = self._database.cursor()
                    cursor.seek_for_prev(partition.at(end))
                    if cursor.valid() and cursor.key().startswith(partition.rows):
                        last[due_ms] = max(last[due_ms], position_in(cursor.key()))
            if last[due_ms] + 1 < end:
                last[due_ms] += 1
                return last[due_ms]
            due_ms += 1

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        """Hold messages that have positions, in any order; their origins are not learned.

        Messages below the partition's watermark are ignored. Those below its cursor come after the next `rewind`.

        Args:
            rows: The messages; none at a position where the partition had one before, ended or not.

        Raises:
            ValueError: A number is out of range, or there are too many bytes; nothing is held.
            StateError: The disk cannot be written; nothing is held.
        """
        change = Write()
        lowest, late = self._adopted(number, rows, change)
        if lowest is None:
            return
        partition = self._partitions[number]
        self._write(partition, change)
        if late:
            partition.note_late(late)
        self._note_put(lowest)

    def _adopted(self, number: int, rows: Iterable[Held], change: Write) -> tuple[int | None, list[Taken]]:
        """Add rows to a change; return their lowest position, and those below the cursor."""
        partition, cursor = self._partitions[number], self._partitions[number].cursor
        rows = [row for row in rows if row.position >= partition.watermark]
        positions = [row.position for row in rows]
        for position, _, _, stamp, *_ in rows:
            if not 0 <= position <= POSITION_MAX or not 0 <= (stamp or 0) <= NO_TIMESTAMP:
                raise ValueError(f"positions lie between 0 and {POSITION_MAX}; {position} or {stamp} is out of range")
            found, sequence = partition.of(hour_of(position)), (position & SEQUENCES - 1) + 1
            if sequence > found.sequence:
                found.sequence = sequence
        try:
            sizes = change.add_rows(number, positions, list(zip(*rows, strict=True))[1:]) if rows else []
        except struct.error as error:
            raise ValueError(f"a number of a message is out of range: {error}") from error
        _check_bytes(sizes)
        change.lowest = min((position for position in positions if position >= cursor), default=change.lowest)
        late = [
            Taken(row.position, nbytes, name_key(row_key(number, row.position, row.epoch), row.headers))
            for row, nbytes in zip(rows, sizes, strict=True)
            if row.position < cursor
        ]
        return min(positions, default=None), late

    def learn(self, number: int, origins: Iterable[int]) -> None:
        """Note origins as those of messages that were put; those below the floor are ignored."""
        partition, change = self._partitions[number], Write()
        change.origins = [each for each in origins if each >= partition.floor]
        self._write(partition, change)

    def park(self, number: int, part: Held) -> None:
        """Keep a parked part, at a position from `PARKED_FROM` on: see `adopt`."""
        self.adopt(number, [part])

    # Taking

    @property
    def unsynced(self) -> int | None:
        """The lowest position of a message that is not durable; `take_due` does not reach it."""
        synced, waiting = self._database.synced, self._unsynced
        if waiting and waiting[0][0] <= synced:
            waiting = self._unsynced = [each for each in waiting if each[0] > synced]
        return min(map(itemgetter(1), waiting)) if waiting else None

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> list[Held]:
        """The partition's next messages in the order of positions. Each is returned once, unless `rewind` is called.

        Args:
            until: The position below which messages are taken; below `unsynced` in any case.
            limit: The most that are taken.
            nbytes: The most that their payloads have together; one is taken nevertheless.
            leave: Says which messages are left unread.

        Raises:
            StateError: A file cannot be read.
        """
        partition, taken, unsynced = self._partitions[number], list[Held](), self.unsynced
        until = min(until, self.parked_from if unsynced is None else unsynced)
        if partition.following is None or partition.following >= until:
            return []
        start, following, ended = partition.rows, None, list[Taken]()
        with self._database.errors("read"):
            cursor = self._database.cursor()
            cursor.seek(partition.at(max(partition.cursor, partition.following)))
            while cursor.valid():
                key = cursor.key()
                position = position_in(key)
                if not key.startswith(start) or position >= self.parked_from:
                    break
                if position >= until or len(taken) >= limit or (nbytes <= 0 and taken):
                    following = position
                    break
                value = cursor.value()
                size = len(value) - HEAD.size
                if size > nbytes and taken:
                    following = position
                    break
                nbytes -= size
                held = unpacked(key, value, leave)
                taken.append(held)
                headers = held.headers or (headers_in(value) if leave is not None else b"")
                ended.append(Taken(position, size + ROW_BYTES, name_key(key, headers) if headers else None))
                cursor.next()
            cursor.status()
        partition.following = following
        if taken:
            last = taken[-1].position
            partition.taken += ended
            partition.cursor, partition.mark = last + 1, max(partition.mark, last)
        return taken

    def rewind(self, number: int) -> None:
        """Let `take_due` begin again at the watermark."""
        self._partitions[number].rewind()

    # Ending

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        """Keep the state of a partition: see `HeldStore`. A lower watermark than before changes nothing."""
        partition, change = self._partitions[number], Write()
        before = partition.state, partition.mark, partition.watermark
        ended = self._end_below(partition, watermark, change) if watermark > partition.watermark else 0
        partition.state, partition.mark = state, max(partition.mark, seen, watermark - 1)
        partition.watermark = max(partition.watermark, watermark)
        partition.save(change)
        try:
            self._write(partition, change)
        except StateError:
            partition.state, partition.mark, partition.watermark = before
            raise
        for _ in range(ended):
            partition.taken.popleft()
        if watermark > partition.cursor:
            partition.cursor, partition.following = watermark, 0

    def _end_below(self, partition: HeldPartition, watermark: int, change: Write) -> int:
        """Let a change end the messages below a watermark; return how many of these were taken."""
        ended = 0
        for position, nbytes, name in partition.taken:
            if position >= watermark:
                break
            ended += 1
            change.count(position, -1, -nbytes)
            if name is not None:
                change.batch.delete(name)
        first, end = partition.at(partition.watermark), partition.at(watermark)
        if watermark > partition.cursor:
            with self._database.errors("read"):
                for key, value in self._database.under(partition.rows, partition.at(partition.cursor), end):
                    change.end_row(key, value)
        self._remove_range(change, first, end)
        return ended

    def _end(self, partition: HeldPartition, rows: Sequence[tuple[bytes, bytes]], change: Write | None = None) -> bool:
        """End messages at or above the cursor; return whether there are any."""
        change = change or Write()
        for key, value in rows:
            change.batch.delete(key)
            change.ended.append(key)
            change.end_row(key, value)
        if rows:
            self._write(partition, change)
        return bool(rows)

    def cancel(self, number: int, position: int) -> bool:
        """End a message at or above the cursor; return whether there was one."""
        partition = self._partitions[number]
        if position < partition.cursor:
            return False
        with self._database.errors("read"):
            found = self._found(partition, position)
        return self._end(partition, found)

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        """End messages that were not taken by their names; see `HeldStore`."""
        partition, looked = self._partitions[number], 0
        for name, below in names.items():
            start = name_prefix(number, name)
            first: bytes | None = start
            while first is not None:
                first = max(first, start + max(lowest, partition.cursor).to_bytes(8, "big"))
                with self._database.errors("read"):
                    some, first = self._some(start, first)
                    found = [row for key in some if (row := self._named(key, name, below)) is not None]
                self._end(partition, found)
                looked += 1 + len(some)
                if found or looked >= FOUND_AT_ONCE:
                    looked = 0
                    yield [unpacked(*row)._replace(value=None) for row in found]
        yield []

    def _some(self, start: bytes, first: bytes) -> tuple[list[bytes], bytes | None]:
        """Some keys of names, and where the next ones begin; None if there are no more."""
        found = list(islice(keys(self._database.cursor(), start, first), FOUND_AT_ONCE + 1))
        return found[:FOUND_AT_ONCE], found[FOUND_AT_ONCE] if len(found) > FOUND_AT_ONCE else None

    def _named(self, key: bytes, name: bytes, below: int) -> tuple[bytes, bytes] | None:
        """The row of a key of names, if it has the name, and an origin below this one."""
        row = row_of_name(key)
        value = self._database.get(row)
        if value is None or origin_in(value) >= below or name_in(unpack_headers(headers_in(value))) != name:
            return None
        return row, value

    def release(self, number: int, position: int, due_ms: int) -> int | None:
        """Bring a message at or above the cursor forward, in one write; see `HeldStore`."""
        partition = self._partitions[number]
        with self._database.errors("read"):
            found = self._found(partition, position)[:1]
        if not found or position < partition.cursor:
            return None
        (earlier,) = self._places(partition, [due_ms << SEQUENCE_BITS])
        if earlier < position:
            change = Write()
            self._adopted(number, [unpacked(*found[0])._replace(position=earlier)], change)
            self._end(partition, found, change)
            self._note_put(earlier)
        return min(earlier, position)

    def floor(self, number: int, origin: int) -> None:
        """Forget the origins below this one, durably with the next `keep`: they are not put again."""
        partition = self._partitions[number]
        is_lower = origin < partition.floor
        partition.floor = origin
        partition.known.remove_range(0, origin)
        if is_lower:  # or a start would find origins again that were forgotten
            self._write(partition, Write(), folds=True)

    def void(self, number: int, first: int, end: int, *, restarts: bool = False) -> None:
        """Forget the origins in [first, end), and end their messages; the cursor goes back as with `rewind`."""
        partition = self._partitions[number]
        partition.rewind()
        at = partition.at(partition.cursor) if first < end else None
        while at is not None:
            at = self._end_some(partition, at, lambda value: first <= origin_in(value) < end)
        if restarts:
            partition.floor = first = 0
        partition.known.remove_range(first, ORIGIN_MAX if restarts else end)
        self._write(partition, Write(), folds=True)

    def _end_some(self, partition: HeldPartition, first: bytes, is_ended: Callable[[bytes], bool]) -> bytes | None:
        """End messages; return where the next ones begin, None if there are no more."""
        found, following = list[tuple[bytes, bytes]](), None
        with self._database.errors("read"):
            for key, value in self._database.under(partition.rows, first):
                if len(found) == ENDED_AT_ONCE:
                    following = key
                    break
                if is_ended(value):
                    found.append((key, value))
        self._end(partition, found)
        return following

    def drop(self, number: int) -> None:
        """Forget a partition's messages, origins and state, and read no row; the number must not be used again."""
        partition, change = self._partitions[number], Write()
        change.batch.delete(partition.key)
        for kind in Kind.ROW, Kind.NAME, Kind.COUNT, Kind.SPARE, Kind.NOTE:
            change.batch.delete_range(prefix(kind, number), end_of(kind, number))
        change.ended_bytes = partition.nbytes
        self._send(partition, change)
        self._waiting_bytes -= change.ended_bytes
        del self._partitions[number], self._numbers[partition.name]


def checked(rows: Iterable[Held]) -> Sequence[Sequence[Any]]:
    """The fields of messages, as columns.

    Raises:
        ValueError: A number is out of range.
    """
    columns = positions, origins, epochs, stamps, *_ = list(zip(*rows, strict=True))
    for name, numbers, most, bits in (
        ("due_ms", positions, POSITION_MAX, SEQUENCE_BITS),
        ("origins", origins, ORIGIN_MAX, 0),
        ("epochs", epochs, ORIGIN_MAX, 0),
        ("timestamps_ms", [stamp or 0 for stamp in stamps], NO_TIMESTAMP, 0),
    ):
        if not 0 <= min(numbers) <= max(numbers) <= most:
            number = next(number for number in numbers if not 0 <= number <= most)
            raise ValueError(f"{name} lie between 0 and {most >> bits}, unlike {number >> bits}")
    return columns


def _check_bytes(sizes: Iterable[int]) -> None:
    if (nbytes := sum(sizes)) > PUT_BYTES_MAX:
        raise ValueError(f"{nbytes} bytes at once, {PUT_BYTES_MAX} can be put")
