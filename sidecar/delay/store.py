"""Holds messages on a local disk until they are due: a library class. It has no thread and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.delay.headers import Header, pack_headers, unpack_headers
from sidecar.delay.interface import FileDamage
from sidecar.delay.partition import HeldPartition, Taken, Write
from sidecar.delay.partitions import PartitionStore, checked
from sidecar.delay.rows import (
    DUE_MAX_MS,
    NO_TIMESTAMP,
    ORIGIN_MAX,
    POSITION_MAX,
    PUT_BYTES_MAX,
    Held,
    ListedRow,
    held_of,
    listed,
    row_key,
)
from sidecar.errors import StateError

WAITING_MAX = 500
"""Messages that are put one by one before they are written."""
_NAME = b""
"""The partition that has all messages."""


class DelayedMessage(NamedTuple):
    """A message of a `DelayStore`."""

    position: int
    """Identifies the message: unique, and the same in every process. Messages are due in the order of positions."""
    due_ms: int
    key: bytes | None
    headers: Sequence[Header]
    value: bytes | None
    timestamp_ms: int | None
    origin: int
    """The number that was given to `put`."""


class Listed(NamedTuple):
    """A message as `DelayStore.list` knows it: without its payload."""

    position: int
    due_ms: int
    origin: int


class _OnePartition(PartitionStore):
    """A store whose messages are settled one by one, in any order."""

    learns, parked_from = False, (1 << 64) - 1

    def _open(self, path: Path) -> None:
        super()._open(path)
        self._waiting: list[Held] = []
        """Messages that were put one by one, and are not written yet."""
        self.one: HeldPartition = self._partitions[self.number(_NAME)]

    @property
    def unsynced(self) -> int | None:
        """A message may be taken before it is durable."""
        return None

    def put_one(self, held: Held) -> int:
        """Hold a message, which may be written with others later; return its position.

        Raises:
            ValueError: A number is out of range; it is not held.
            StateError: The disk cannot be written, and too many wait for it; it is not held.
        """
        wanted, origin, _, stamp, *_ = held
        if not (0 <= wanted <= POSITION_MAX and 0 <= (stamp or 0) <= NO_TIMESTAMP and 0 <= origin <= ORIGIN_MAX):
            checked([held])
        if len(self._waiting) >= WAITING_MAX:
            self.write()
        (position,) = self._places(self.one, (wanted,))
        self._waiting.append(held_of((position, *held[1:])))
        return position

    def _rare_place(self, partition: HeldPartition, due_ms: int, given: Sequence[int], last: dict[int, int]) -> int:
        self.write()  # it looks at what is written
        return super()._rare_place(partition, due_ms, given, last)

    def write(self) -> None:
        """Write the messages that wait.

        Raises:
            StateError: The disk cannot be written; they wait on.
        """
        if self._waiting:
            self.adopt(self.one.number, self._waiting)
            self._waiting.clear()

    @property
    def waiting(self) -> int:
        """Number of messages that wait."""
        return len(self._waiting)

    def settle(self, ended: Iterable[Taken], below: int) -> None:
        """End messages that were taken.

        Args:
            below: The lowest position that is not ended then.

        Raises:
            StateError: The disk cannot be written; nothing is ended.
        """
        one, change, watermark = self.one, Write(), self.one.watermark
        for position, nbytes, name in ended:
            change.count(position, -1, -nbytes)
            if position >= below:
                change.batch.delete(row_key(one.number, position, 0))
            if name is not None:
                change.batch.delete(name)
        if below > watermark:
            self._remove_range(change, one.at(watermark), one.at(below))
            one.watermark = below
            one.save(change)
        try:
            self._write(one, change)
        except StateError:
            one.watermark = watermark
            raise

    def in_order(self, first: int, end: int, limit: int) -> list[ListedRow]:
        """Messages in [first, end) that are not ended, in order."""
        one = self.one
        with self._database.errors("read"):
            found = self._database.under(one.rows, one.at(max(first, one.watermark)), one.at(end))
            return [listed(*pair) for pair in islice(found, limit)]


class DelayStore:
    """Holds messages until they are due. For one thread of one process.

    Puts, settlements and cancellations are durable after `sync`. An unsettled message that `due` returned is due again
    in the next process.

    Args:
        path: A folder; created if it is missing.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    def __init__(self, path: str | Path) -> None:
        self._store = _OnePartition(Path(path))
        self._out: dict[int, Taken] = {}
        """The messages that `due` returned and that are not settled, by position."""

    @property
    def damages(self) -> Sequence[FileDamage]:
        """Damage found since the start."""
        return self._store.damages

    # Putting

    def put(
        self,
        due_ms: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        *,
        timestamp_ms: int | None = None,
        origin: int = 0,
    ) -> int:
        """Hold a message until a time; return its position.

        Args:
            due_ms: Milliseconds since the epoch; a time in the past counts as now.
            timestamp_ms: Milliseconds since the epoch.
            origin: A number of your own, such as an offset.

        Raises:
            ValueError: A number is out of its range; nothing is held.
            StateError: The disk is full; the message is not held.
        """
        packed = pack_headers(headers) if headers else b""
        fields = due_ms << SEQUENCE_BITS, origin, 0, timestamp_ms, NO_TAGS, key, packed, value
        return self._store.put_one(held_of(fields))

    def put_many(
        self,
        due_ms: Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Iterable[Header]] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        origins: Sequence[int] | None = None,
    ) -> Sequence[int]:
        """Hold messages, given as columns of one length; return their positions. See `put`."""
        count = len(due_ms)
        keys = [None] * count if keys is None else keys
        packed = [b""] * count if headers is None else [pack_headers(each) for each in headers]
        timestamps_ms = [None] * count if timestamps_ms is None else timestamps_ms
        origins = [0] * count if origins is None else origins
        columns = {
            "values": values,
            "keys": keys,
            "headers": packed,
            "timestamps_ms": timestamps_ms,
            "origins": origins,
        }
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(f"{count} times, {len(column)} {name}")
        if (nbytes := sum(map(len, filter(None, [*values, *keys, *packed])))) > PUT_BYTES_MAX:
            raise ValueError(f"{nbytes} bytes at once, {PUT_BYTES_MAX} can be put")
        zeros, tags = repeat(0, count), repeat(NO_TAGS, count)
        self._store.write()
        positions = [each << SEQUENCE_BITS for each in due_ms]
        rows = zip(positions, origins, zeros, timestamps_ms, tags, keys, packed, values, strict=True)
        return self._store.put(self._store.one.number, map(held_of, rows))

    # Taking

    def due(self, now_ms: int, limit: int = 500) -> list[DelayedMessage]:
        """Messages that are due, in the order of their positions. Each is returned once, and held until it is settled.

        Args:
            now_ms: Milliseconds since the epoch.
            limit: The most that are returned.

        Raises:
            StateError: A file cannot be read.
        """
        self._store.write()
        one, until = self._store.one, min(now_ms, DUE_MAX_MS) + 1 << SEQUENCE_BITS
        messages = self._store.take_due(one.number, until, limit, PUT_BYTES_MAX)
        while one.taken:
            taken = one.taken.popleft()
            self._out[taken.position] = taken
        return [_message(held) for held in messages]

    def next_ms(self) -> int | None:
        """The time before which nothing is due, in milliseconds since the epoch; None if nothing is held but out."""
        self._store.write()
        position = self._store.next(self._store.one.number)
        return None if position is None else position >> SEQUENCE_BITS

    def settle(self, positions: Iterable[int]) -> None:
        """End messages that `due` returned; others are ignored.

        Raises:
            StateError: The disk is full; nothing is ended.
        """
        out = self._out
        ended = {position: out[position] for position in positions if position in out}
        if ended:
            below = next((position for position in out if position not in ended), self._store.one.cursor)
            self._store.settle(ended.values(), below)
        for position in ended:
            del out[position]

    def cancel(self, position: int) -> bool:
        """End a message before it is due; return whether it was held, and `due` had not returned it.

        Raises:
            StateError: The disk cannot be read or written.
        """
        self._store.write()
        return self._store.cancel(self._store.one.number, position)

    # Looking

    def __len__(self) -> int:
        return self._store.held(self._store.one.number) + self._store.waiting

    def list(self, first_ms: int = 0, end_ms: int = DUE_MAX_MS + 1, limit: int = 1_000) -> Sequence[Listed]:
        """Messages that are held and due in [first_ms, end_ms), in the order of their positions, at most `limit`.

        Payloads are not returned.
        """
        first, end = (min(max(0, time_ms), DUE_MAX_MS + 1) << SEQUENCE_BITS for time_ms in (first_ms, end_ms))
        self._store.write()
        found = self._store.in_order(first, end, limit)
        return [Listed(position, position >> SEQUENCE_BITS, origin) for position, origin, _ in found]

    # Durability

    def sync(self) -> None:
        """Make everything durable that was put, settled or cancelled.

        Raises:
            StateError: It failed: after an error while the log was made durable, each call fails: open the store again.
        """
        self._store.write()
        self._store.writes.sync()

    def close(self) -> None:
        """Make everything durable, and free the folder.

        Raises:
            StateError: See `sync`; the folder is free nevertheless.
        """
        try:
            self._store.write()
        finally:
            self._store.note_reported()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _message(held: Held) -> DelayedMessage:
    position, origin, _, timestamp_ms, _, key, headers, value = held
    unpacked = unpack_headers(headers) if headers else ()
    # Not by the class itself, which takes twice as long.
    fields = position, position >> SEQUENCE_BITS, key, unpacked, value, timestamp_ms, origin
    return tuple.__new__(DelayedMessage, fields)
