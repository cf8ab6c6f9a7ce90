"""What memory has of a partition of held messages, and its byte form. Opens no file."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from pyroaring import BitMap64
from rocksdict import WriteBatch

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.snapshots import Stored, bitmap_of
from sidecar.delay.rows import (
    COUNT_KEY,
    HEAD,
    HOUR_MS,
    KEY,
    NO_KEY,
    NO_TIMESTAMP,
    NO_VALUE,
    Kind,
    headers_in,
    hour_of,
    name_key,
    position_in,
    prefix,
)

SEQUENCES = 1 << SEQUENCE_BITS
NOTHING = 1 << 64
"""Above all positions."""
COUNTS_MAX = 256
"""Writes of a partition after which what they counted becomes one count."""
_HEAD = struct.Struct("<QQQ?I")
"""Watermark, floor, mark, whether there is a state, bytes of the name; name and state follow."""
_HOUR_BYTES = 32
_HOURS = struct.Struct("<I")
"""Number of hours; four numbers of each follow, and the known origins."""
_HOUR_POSITIONS = HOUR_MS << SEQUENCE_BITS


@dataclass(slots=True)
class OfHour:
    """What a partition has in an hour that is not ended."""

    messages: int = 0
    nbytes: int = 0
    sequence: int = 0
    """The next sequence number: larger than those of all its positions."""


class Taken(NamedTuple):
    """A message below the cursor that is not ended."""

    position: int
    nbytes: int
    name: bytes | None
    """The key of its name."""


@dataclass(slots=True)
class Write:
    """A write of a partition that is gathered."""

    batch: WriteBatch = field(default_factory=lambda: WriteBatch(raw_mode=True))
    hours: dict[int, list[int]] = field(default_factory=dict)
    """Messages and bytes that hours gain."""
    origins: Sequence[int] = ()
    ended: list[bytes] = field(default_factory=list)
    """Keys of rows that it removes one by one."""
    ended_bytes: int = 0
    """Bytes of the messages that it ends."""
    parked: int | None = None
    """The position of a parked part that it adds."""
    saved: bytes | None = None
    """The partition's byte form, if it writes that."""
    lowest: int = NOTHING
    """The lowest position that it adds and that is to be taken."""

    def add_rows(self, number: int, positions: Iterable[int], columns: Iterable[Iterable[Any]]) -> list[int]:
        """Add messages of a partition at these positions; return the bytes of each.

        Args:
            columns: The other fields of `Held`: Python unpacks a named tuple slowly.

        Raises:
            struct.error: A number is out of range.
        """
        put, hours, sizes = self.batch.put, self.hours, list[int]()
        key_of, head_of = KEY.pack, HEAD.pack
        rows = zip(positions, *columns, strict=True)
        for position, origin, epoch, stamp, tags, key, headers, value in rows:
            at = key_of(b"r", number, position, epoch)
            key_bytes = NO_KEY if key is None else len(key)
            header_bytes = len(headers) | NO_VALUE if value is None else len(headers)
            head = head_of(origin, NO_TIMESTAMP if stamp is None else stamp, tags, key_bytes, header_bytes)
            raw = head + (key or b"") + headers + (value or b"")
            put(at, raw)
            nbytes = KEY.size + len(raw)
            sizes.append(nbytes)
            found = hours.get(hour := position // _HOUR_POSITIONS)
            if found is None:
                hours[hour] = [1, nbytes]
            else:
                found[0] += 1
                found[1] += nbytes
            if headers and (name := name_key(at, headers)) is not None:
                put(name, b"")
        return sizes

    def end_row(self, key: bytes, value: bytes) -> None:
        """Count a message as ended, and remove the key of its name; its row is removed apart from that."""
        self.count(position_in(key), -1, -KEY.size - len(value))
        if (name := name_key(key, headers_in(value))) is not None:
            self.batch.delete(name)

    def count(self, position: int, messages: int, nbytes: int) -> None:
        """Count what the hour of a position gains."""
        found = self.hours.setdefault(hour_of(position), [0, 0])
        found[0] += messages
        found[1] += nbytes


@dataclass(slots=True)
class HeldPartition:
    """What memory has of a partition."""

    number: int
    name: bytes
    state: bytes | None = None
    watermark: int = 0
    """All messages below this position are ended."""
    cursor: int = 0
    """All messages below this position were taken, or ended."""
    floor: int = 0
    """Smaller origins are forgotten."""
    mark: int = 0
    """No message is put at or below this position."""
    known: BitMap64 = field(default_factory=BitMap64)
    """Origins of the messages that were put."""
    hours: dict[int, OfHour] = field(default_factory=dict)
    messages: int = 0
    """Those of all hours."""
    last_change: int = 0
    """The number of the last change of this process, see `RowDatabase.last`."""
    taken: deque[Taken] = field(default_factory=deque)
    """In the order of positions."""
    following: int | None = 0
    """A position below which nothing is to be taken, 0 if it is not known; None if there is nothing at all."""
    first_count: int = 0
    """The number of the first count; those before are part of it."""
    counts: int = 0
    """The number of the next one."""
    saved: bytes | None = None
    """Its byte form as it was written last."""
    rows: bytes = field(init=False)
    """The first bytes of the keys of its rows."""

    def __post_init__(self) -> None:
        self.rows = prefix(Kind.ROW, self.number)

    def at(self, position: int) -> bytes:
        """The lowest key of rows at or above a position."""
        return self.rows + position.to_bytes(8, "big")

    @property
    def key(self) -> bytes:
        """Its own key."""
        return prefix(Kind.PARTITION, self.number)

    def encoded(self) -> bytes:
        """Its byte form, without what counts have."""
        head = _HEAD.pack(self.watermark, self.floor, self.mark, self.state is not None, len(self.name))
        return head + self.name + (self.state or b"")

    @classmethod
    def decoded(cls, number: int, raw: bytes) -> Self:
        """The partition that was encoded.

        Raises:
            ValueError: It is something else.
        """
        watermark, floor, mark, has_state, name_bytes = Stored(raw).unpack(_HEAD)
        at = _HEAD.size + name_bytes
        state = raw[at:] if has_state else None
        return cls(number, raw[_HEAD.size : at], state, watermark, watermark, floor, mark, saved=raw)

    def save(self, change: Write) -> None:
        """Have a change write what the partition is now."""
        raw = self.encoded()
        if raw != self.saved:
            change.batch.put(self.key, raw)
            change.batch.put(prefix(Kind.SPARE, self.number), raw)  # a copy reads it, and nothing else does
            change.saved = raw

    # Counts

    def messages_before(self, end: int) -> int:
        """Number of messages that are not ended, in hours before this one."""
        return sum(each.messages for hour, each in self.hours.items() if hour < end)

    @property
    def nbytes(self) -> int:
        """Bytes of what is not ended."""
        return sum(each.nbytes for each in self.hours.values())

    def of(self, hour: int) -> OfHour:
        """What it has in an hour."""
        found = self.hours.get(hour)
        if found is None:
            found = self.hours[hour] = OfHour()
        return found

    def add_count(self, number: int, raw: bytes) -> None:
        """Add a count that was written.

        Raises:
            ValueError: It is something else.
        """
        stored = Stored(raw)
        (hours,) = stored.unpack(_HOURS)
        numbers = iter(np.frombuffer(stored.take(hours * _HOUR_BYTES), "<i8").tolist())
        for hour, messages, nbytes, sequence in zip(numbers, numbers, numbers, numbers, strict=True):
            found = self.of(hour)
            found.messages += messages
            found.nbytes += nbytes
            found.sequence = max(found.sequence, sequence)
            self.messages += messages
        if stored.left:
            self.known |= bitmap_of(stored.take(stored.left))
            self.known.remove_range(0, self.floor)
        if not self.counts:
            self.first_count = number
        self.counts = number + 1

    @property
    def put_below(self) -> int:
        """All messages with lower origins were put."""
        return max(self.floor, self.known.max() + 1) if self.known else self.floor

    def counted(self, change: Write) -> bytes:
        """The count of a change."""
        hours, nothing, numbers = self.hours, OfHour(), list[int]()
        for hour, (messages, nbytes) in change.hours.items():
            numbers += (hour, messages, nbytes, hours.get(hour, nothing).sequence)
        return _encoded(numbers, BitMap64(change.origins))

    def folded(self, change: Write) -> bytes:
        """One count in the place of all, with that of a change; hours before the mark that have nothing left go."""
        past, numbers = hour_of(self.mark), list[int]()
        for hour in self.hours.keys() | change.hours.keys():
            found, (messages, nbytes) = self.of(hour), change.hours.get(hour, (0, 0))
            if found.messages + messages or hour >= past:
                numbers += (hour, found.messages + messages, found.nbytes + nbytes, found.sequence)
        return _encoded(numbers, self.known | BitMap64(change.origins))

    def count_key(self, number: int) -> bytes:
        """The key of a count."""
        return COUNT_KEY.pack(Kind.COUNT, self.number, number)

    def apply(self, change: Write) -> int:
        """Have what a change counts, once it is written; return the bytes that were gained."""
        total, hours, self.saved = 0, self.hours, change.saved or self.saved
        for hour, (messages, nbytes) in change.hours.items():
            found = hours.get(hour) or self.of(hour)
            found.messages += messages
            found.nbytes += nbytes
            self.messages += messages
            total += nbytes
        if change.origins:
            self.known.update(change.origins)
            self.known.remove_range(0, self.floor)
        if change.lowest < NOTHING and (self.following is None or change.lowest < self.following):
            self.following = change.lowest
        return total

    # Taking

    def rewind(self) -> None:
        """Let all above the watermark be taken again."""
        self.cursor, self.following = self.watermark, 0
        self.taken.clear()

    def note_late(self, late: Iterable[Taken]) -> None:
        """Count messages that came in below the cursor as taken: they come after the next rewind."""
        self.taken = deque(sorted([*self.taken, *late]))


def _encoded(numbers: Sequence[int], known: BitMap64) -> bytes:
    """A count: of each hour its number, messages and bytes that it gained, and its next sequence number."""
    hours = np.array(numbers, "<i8").tobytes()
    return _HOURS.pack(len(hours) // _HOUR_BYTES) + hours + (known.serialize() if known else b"")
