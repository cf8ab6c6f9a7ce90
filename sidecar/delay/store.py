"""Holds messages on a local disk until they are due: a library class. It has no thread and no clock."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from sidecar import files
from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.delay.calendar import Calendar, Spot
from sidecar.delay.disk.blocks import DUE_MAX_MS, NO_TIMESTAMP, ORIGIN_MAX, PUT_BYTES_MAX, Held
from sidecar.delay.disk.changes import Changes, LogEntry
from sidecar.delay.disk.filename import LOG_SUFFIX, is_unused, logs_of, refuse_unknown
from sidecar.delay.disk.hour import FileDamage, Known
from sidecar.delay.disk.snapshot import pack_hours, unpack_hours
from sidecar.delay.disk.wal import CHECKPOINT, WAL_BYTES_MAX, Wal, records
from sidecar.delay.headers import Header, pack_headers, unpack_headers
from sidecar.delay.replay import unreadable
from sidecar.errors import StateError
from sidecar.state.folder import StateFolder, state_error

CHANGES_BYTES_MAX = 8 << 20
"""Memory of puts without `sync` at which they are written to the log."""
_KIND, _VERSION = "DelayStore", 2
_TOTALS = struct.Struct("<QQI")
"""Number of the log, mark, hours."""


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
        self._folder = StateFolder(Path(path))
        try:
            with self._folder.errors("read"):
                self._open(self._folder.path)
        except StateError:
            self._folder.close()
            raise

    def _open(self, path: Path) -> None:
        self.damages: list[FileDamage] = []
        """Damage found since the start."""
        number, mark, known = self._checkpoint(path)
        self._calendar = Calendar(path, known, mark, self.damages)
        self._out: dict[int, Spot] = {}
        """The messages that `due` returned and that are not settled, by position."""
        self._changes = Changes()
        """Changes that are not in the log yet."""
        self._may_save = True
        log = logs_of(path).get(number)
        is_changed = (log is not None and self._replay(log)) or known is None or not number
        self._number = number + is_changed  # a log that was repeated stays until a checkpoint names another one
        self._wal = Wal(path, self._number)
        if is_changed:
            self._save()

    def _checkpoint(self, path: Path) -> tuple[int, int, dict[int, Known] | None]:
        refuse_unknown(path)
        raw = files.read_from(path / CHECKPOINT)
        if raw is None and is_unused(path):
            return 0, 0, {}  # a new store, also where its first checkpoint could not be written
        try:
            return _decoded(unseal(_KIND, _VERSION, raw or b""))
        except ValueError as error:
            self.damages.append(FileDamage(path / CHECKPOINT, f"{error}; settled messages may be due again", 0))
            return min(logs_of(path), default=0), 0, None

    def _replay(self, path: Path) -> bool:
        """Repeat the log; return whether it has any record."""
        ended, any_records = [np.empty(0, np.uint64)], False
        for record in records(path):
            if isinstance(record, int):
                self.damages.append(FileDamage(path, f"{record} bytes of it are damaged", 0))
                continue
            any_records = True
            try:
                entry = LogEntry.decoded(record)
            except ValueError as error:
                raise unreadable(path, error) from error
            self._calendar.restore(entry.table, entry.payloads)
            ended.append(entry.ended)
        self._calendar.settle_positions(np.concatenate(ended))
        return any_records

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
            StateError: The disk is full, and so is the memory that stands in for it; the message is not held.
        """
        packed = pack_headers(headers) if headers else b""
        stamp = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
        if not (0 <= due_ms <= DUE_MAX_MS and 0 <= stamp <= NO_TIMESTAMP and 0 <= origin <= ORIGIN_MAX):
            _check("due_ms", [due_ms], DUE_MAX_MS)
            _check("timestamps_ms", [stamp], NO_TIMESTAMP)
            _check("origins", [origin], ORIGIN_MAX)
        self._make_room()
        return self._calendar.put_many([(due_ms, origin, 0, 0, stamp, NO_TAGS, key, packed, value)], self._changes)[0]

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
        stamps = [NO_TIMESTAMP if stamp is None else stamp for stamp in timestamps_ms]
        origins = [0] * count if origins is None else origins
        columns = {"values": values, "keys": keys, "headers": packed, "timestamps_ms": stamps, "origins": origins}
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(f"{count} times, {len(column)} {name}")
        _check("due_ms", due_ms, DUE_MAX_MS)
        _check("timestamps_ms", stamps, NO_TIMESTAMP)
        _check("origins", origins, ORIGIN_MAX)
        if (nbytes := sum(map(len, filter(None, [*values, *keys, *packed])))) > PUT_BYTES_MAX:
            raise ValueError(f"{nbytes} bytes at once, {PUT_BYTES_MAX} can be put")
        self._make_room()
        zeros, tags = repeat(0, count), repeat(NO_TAGS, count)
        rows = zip(due_ms, origins, zeros, repeat(0, count), stamps, tags, keys, packed, values, strict=True)
        return self._calendar.put_many(rows, self._changes)

    def _make_room(self) -> None:
        try:  # not `_errors`, with which each `put` takes a quarter longer
            if self._changes.nbytes > CHANGES_BYTES_MAX:
                self._write()
            self._calendar.make_room()
        except OSError as error:
            raise state_error("write", self._folder.path, error) from error

    # Taking

    def due(self, now_ms: int, limit: int = 500) -> list[DelayedMessage]:
        """Messages that are due, in the order of their positions. Each is returned once, and held until it is settled.

        Args:
            now_ms: Milliseconds since the epoch.
            limit: The most that are returned.

        Raises:
            StateError: A file cannot be read.
        """
        with self._folder.errors("read"):
            taken = self._calendar.take_due(min(now_ms, DUE_MAX_MS) + 1 << SEQUENCE_BITS, limit)
        self._out |= {held.position: spot for spot, held in taken}
        return [_message(held) for _, held in taken]

    def next_ms(self) -> int | None:
        """A time before which nothing is due, in milliseconds since the epoch; None if nothing is held that is not out.

        It is the start of an hour until the hour's first message is asked for.
        """
        position = self._calendar.next()
        return None if position is None else position >> SEQUENCE_BITS

    def settle(self, positions: Iterable[int]) -> None:
        """End messages that `due` returned; others are ignored."""
        ended = [position for position in positions if position in self._out]
        self._calendar.settle([self._out.pop(position) for position in ended])
        self._changes.ended.extend(ended)

    def cancel(self, position: int) -> bool:
        """End a message before it is due; return whether it was held, and `due` had not returned it.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._folder.errors("read"):
            spot = None if position in self._out else self._calendar.find(position)
        if spot is None:
            return False
        self._calendar.settle([spot])
        self._changes.ended.append(position)
        return True

    # Looking

    def __len__(self) -> int:
        return self._calendar.held

    def list(self, first_ms: int = 0, end_ms: int = DUE_MAX_MS + 1, limit: int = 1_000) -> Sequence[Listed]:
        """Messages that are held and due in [first_ms, end_ms), in the order of their positions, at most `limit`.

        Payloads are not read.
        """
        listed: list[Listed] = []
        first, end = (min(max(0, time_ms), DUE_MAX_MS + 1) << SEQUENCE_BITS for time_ms in (first_ms, end_ms))
        for positions, origins in self._calendar.listed(first, end):
            rest = limit - len(listed)
            rows = zip(positions[:rest].tolist(), origins[:rest].tolist(), strict=True)
            listed += [Listed(position, position >> SEQUENCE_BITS, origin) for position, origin in rows]
            if len(listed) == limit:
                break
        return listed

    # Durability

    def sync(self) -> None:
        """Make everything durable that was put, settled or cancelled.

        Raises:
            StateError: The disk is full or broken; changes in memory are kept. After a full disk, the next call tries
                again. After an error while the log was made durable, each call fails: open the store again.
        """
        with self._folder.errors("write"):
            self._write()
            self._wal.sync()
            if self._may_save and self._is_due():
                self._save()

    def _is_due(self) -> bool:
        """Whether a checkpoint shortens the log, or frees space."""
        calendar = self._calendar
        return self._wal.end > WAL_BYTES_MAX or calendar.has_settled_hours or calendar.is_wasteful

    def _write(self) -> None:
        if self._changes:
            self._wal.write(self._changes.encoded())
            self._changes = Changes()

    def _save(self) -> None:
        """Make the files of the hours durable, and begin a new log."""
        path, calendar = self._folder.path, self._calendar
        try:
            known = calendar.sync(self._out)
            self._number += 1
            log = Wal(path, self._number)
        except OSError:
            # A second attempt may succeed although pages were dropped: the log stays, and the next process repeats it.
            self._may_save = False
            raise
        try:
            files.put(path / CHECKPOINT, seal(_KIND, _VERSION, _encoded(self._number, calendar.mark, known)))
        except OSError as error:
            self._wal.broken = error  # the checkpoint may be there, and it names the other log
            raise
        self._wal.close()
        self._wal = log
        for other in path.glob(f"*{LOG_SUFFIX}"):
            if other != log.path:
                files.remove(other)
        calendar.drop()

    def close(self) -> None:
        """Make everything durable, and free the folder; the next start has nothing to repeat.

        Raises:
            StateError: See `sync`; the folder is free nevertheless.
        """
        try:
            self.sync()
            with self._folder.errors("write"):
                if self._may_save and self._wal.end:
                    self._save()
        finally:
            self._wal.close()
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(name: str, numbers: Sequence[int], most: int) -> None:
    if numbers and not 0 <= min(numbers) <= max(numbers) <= most:
        number = next(number for number in numbers if not 0 <= number <= most)
        raise ValueError(f"{name} lie between 0 and {most}, unlike {number}")


def _message(held: Held) -> DelayedMessage:
    position, origin, _, _, timestamp_ms, _, key, headers, value = held
    unpacked = unpack_headers(headers) if headers else ()
    # Not by the class itself, which takes twice as long.
    fields = position, position >> SEQUENCE_BITS, key, unpacked, value, timestamp_ms, origin
    return tuple.__new__(DelayedMessage, fields)


def _encoded(number: int, mark: int, known: Mapping[int, Known]) -> bytes:
    return _TOTALS.pack(number, mark, len(known)) + pack_hours(known)


def _decoded(raw: bytes) -> tuple[int, int, dict[int, Known]]:
    stored = Stored(raw)
    number, mark, hours = stored.unpack(_TOTALS)
    return number, mark, unpack_hours(stored, hours)
