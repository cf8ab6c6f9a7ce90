"""What was seen already: windows of numbers that forget the oldest half, one window a key. Knows no broker."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import compress, islice, takewhile
from typing import Generic, NamedTuple, Protocol, TypeGuard, TypeVar

import numpy as np
from pyroaring import BitMap64

from sidecar.core.snapshots import seal, unseal
from sidecar.core.windows.idruns import SortedRun, mixed
from sidecar.core.windows.idset import IdSet, Room

K = TypeVar("K", bound=Hashable)
CAPACITY = 100_000_000
FOR_EVER = 1 << 63
CHUNK = 10_000
VERSION = 1


class Moment(NamedTuple):
    """Around the numbers that a window is asked about: for windows that outlive a process by a journal."""

    last: int = -1
    """The highest offset of their messages."""
    keep_from: int = FOR_EVER
    """What decided a message from this offset on is not forgotten, even beyond the capacity."""
    now_ms: float = 0.0
    """Monotonic time."""


EVER = Moment()


class Window(Protocol):
    """What both kinds of windows can do."""

    generation: int
    """Grows with each rotation; numbers the young generation."""

    def __contains__(self, item: int) -> bool: ...

    def __len__(self) -> int: ...

    def add(self, item: int) -> bool:
        """Remember `item`; False when it was known."""
        ...

    def take(self, numbers: Sequence[int | None], moment: Moment = EVER, /) -> list[bool]:
        """Remember many at once; for each whether it was new, as None always is."""
        ...

    def dump(self) -> tuple[bytes, bytes]:
        """Young and old generation."""
        ...

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Take over what `dump` gave; ValueError when it cannot be that."""
        ...


class RotatingSet:
    """Two generations of 64-bit numbers of any kind: 10 bytes each.

    A generation knows the highest offset of the messages that it decided, and is not forgotten before that is durably
    settled: read again after a crash, such a message must meet the same answer.

    Args:
        capacity: Numbers kept at most; at least half as many are remembered.
        room: Shared with other windows: how many numbers each may keep unsorted.
        keep_ms: Rotate after so long, too: a number is forgotten after one to two times as long.
    """

    def __init__(self, capacity: int = CAPACITY, room: Room | None = None, keep_ms: float | None = None) -> None:
        self.half = max(1, capacity // 2)
        self.generation = 0
        self._room = room or Room()
        self._keep_ms = keep_ms
        self.young, self.old = IdSet(self._room), IdSet(self._room)

    def __contains__(self, item: int) -> bool:
        return item in self.young or item in self.old

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def add(self, item: int) -> bool:
        """Remember `item`; False when it was known. May rotate first, never after: `item` is in `young` then."""
        return self.take([item])[0]

    def take(self, numbers: Sequence[int | None], moment: Moment = EVER, /) -> list[bool]:
        """Remember many at once, in 0.2 microseconds each; for each whether it was new, as None always is."""
        self._rotate_by_age(moment)
        new: list[bool] = []
        while rest := numbers[len(new) :]:
            if self.full and self._may_rotate(moment):
                ids = [number for number in rest if number is not None]
                new += _leading_known(rest, self._known(ids, moment.last))
                if len(new) == len(numbers):
                    break
                self.rotate()
                rest = numbers[len(new) :]
            room = self.half - self.young.added
            new += self._take(rest[:room] if room > 0 else rest, moment)
        return new

    def _known(self, numbers: Sequence[int], last: int) -> set[int]:
        keys = mixed(numbers)
        return self.old.known(numbers, keys, last) | self.young.known(numbers, keys, last)

    def _take(self, numbers: Sequence[int | None], moment: Moment) -> list[bool]:
        unique = set(numbers)
        ids = numbers if _are_ids(numbers, unique) else [number for number in numbers if number is not None]
        known = self._known(ids, moment.last)
        if not known and _are_unique_ids(unique) and len(unique) == len(numbers):
            self.young.update(unique, moment.last, moment.now_ms)
            return [True] * len(numbers)
        new, fresh = [], set()
        for number in numbers:
            new.append(number is None or (number not in known and number not in fresh))
            if number is not None and new[-1]:
                fresh.add(number)
        self.young.update(fresh, moment.last, moment.now_ms)
        return new

    @property
    def full(self) -> bool:
        """Whether the young generation has got its half of the capacity."""
        return self.young.added >= self.half

    def _may_rotate(self, moment: Moment) -> bool:
        return self.old.decided < moment.keep_from

    def _rotate_by_age(self, moment: Moment) -> None:
        if self._keep_ms is None:
            return
        if len(self.young) and moment.now_ms - self.young.begun_ms >= self._keep_ms and self._may_rotate(moment):
            self.rotate()
        if len(self.old) and moment.now_ms - self.old.ended_ms >= self._keep_ms and self._may_rotate(moment):
            self.rotate()

    def rotate(self) -> None:
        """Forget the old generation; the young one becomes the old one."""
        self.young.sort()
        self.old, self.young = self.young, IdSet(self._room)
        self.generation += 1
        self._room.rotated()

    def install(self, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        """Take over what the shell keeps of each generation, all of it, and let go of what that has."""
        young = runs.get(self.generation, ())
        self.young.install(young)
        self.old.install(runs.get(self.generation - 1, ()), young)

    def restore(
        self, runs: Mapping[int, Sequence[SortedRun]], begun_ms: Mapping[int, float], now_ms: float, decided: int
    ) -> None:
        """Go on from what an earlier life kept.

        Args:
            runs: Of each generation.
            begun_ms: When it began, in monotonic time; now, where that is not known.
            now_ms: Monotonic time.
            decided: The highest offset of messages that these ids may have decided.
        """
        self.generation = max(runs, default=0)
        self.install(runs)
        for generation, number in ((self.young, self.generation), (self.old, self.generation - 1)):
            generation.decided, generation.added = decided, len(generation)
            generation.begun_ms, generation.ended_ms = begun_ms.get(number, now_ms), now_ms

    def dump(self) -> tuple[bytes, bytes]:
        """Young and old generation: arrays of native 64-bit integers, rising."""
        return self.young.numbers().tobytes(), self.old.numbers().tobytes()

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Take over what `dump` gave.

        Raises:
            ValueError: The bytes are no arrays of 64-bit integers.
        """
        self.young, self.old = (IdSet(self._room) for _ in dumped)
        for ids, blob in zip((self.young, self.old), dumped, strict=True):
            ids.load(np.frombuffer(blob, np.int64))
            ids.added = len(ids)


def _are_unique_ids(unique: set[int | None]) -> TypeGuard[set[int]]:
    return None not in unique


def _are_ids(numbers: Sequence[int | None], unique: set[int | None]) -> TypeGuard[Sequence[int]]:  # noqa: ARG001
    return None not in unique


def _leading_known(numbers: Sequence[int | None], known: Container[int]) -> list[bool]:
    """Answers for all before the first new number: it is what rotates, wherever a batch of them begins."""
    return [number is None for number in takewhile(lambda n: n is None or n in known, numbers)]


class RotatingBitmap:
    """Two generations of offsets, or of ids that are dense, in 64-bit Roaring bitmaps.

    Args:
        capacity: Numbers kept at most; at least half as many are remembered.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.half = max(1, capacity // 2)
        self.generation = 0
        self.young, self.old = BitMap64(), BitMap64()

    def __contains__(self, item: int) -> bool:
        return item in self.young or item in self.old

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def add(self, item: int) -> bool:
        """Remember `item`; False when it was known. May rotate first, never after: `item` is in `young` then."""
        if item in self:
            return False
        self.make_room(FOR_EVER)
        self.young.add(item)
        return True

    def take(self, numbers: Sequence[int | None], _: Moment = EVER, /) -> list[bool]:
        """Remember many; for each whether it was new, as None always is."""
        return [number is None or self.add(number) for number in numbers]

    def add_range(self, first: int, last: int, keep_from: int = 0) -> bool:
        """Remember `first` to `last`, both included, when none of them is known: 0.3 microseconds whatever the length.

        Args:
            first: Lowest number.
            last: Highest number.
            keep_from: A rotation that would forget a number from here on is put off.

        Returns:
            False when one of them was known; then nothing was changed.
        """
        if self.young.range_cardinality(first, last + 1) or self.old.range_cardinality(first, last + 1):
            return False
        self.make_room(keep_from)
        self.young.add_range(first, last + 1)
        return True

    def make_room(self, keep_from: int) -> None:
        """Rotate when the young generation is full and the old one holds nothing from `keep_from` on."""
        if len(self.young) >= self.half and (not self.old or self.old.max() < keep_from):
            self.old, self.young = self.young, BitMap64()
            self.generation += 1

    def update(self, offsets: Sequence[int], keep_from: int = 0) -> None:
        """Remember many; `keep_from` as in `add_range`."""
        self.make_room(keep_from)
        self.young.update(array("Q", offsets))  # numpy arrays take 4 times as long

    def dump(self, also: BitMap64 | None = None, without: Iterable[Sequence[int]] = ()) -> tuple[bytes, bytes]:
        """Young and old generation in the portable Roaring format.

        Args:
            also: Further numbers, put to the young ones.
            without: Numbers that are left out, in sequences or ranges.
        """
        young, old = self.young | (also or BitMap64()), self.old.copy()
        for numbers in without:
            for bitmap in (young, old):
                if isinstance(numbers, range):
                    bitmap.remove_range(numbers.start, numbers.stop)
                elif numbers:
                    bitmap.difference_update(BitMap64(array("Q", numbers)))
        return young.serialize(), old.serialize()

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Take over what `dump` gave.

        Raises:
            ValueError: The bytes are no bitmap.
        """
        self.young, self.old = (BitMap64.deserialize(blob) for blob in dumped)

    def pop_from(self, border: int) -> BitMap64:
        """Remove and return the numbers from `border` on."""
        offsets = self.young | self.old
        offsets.remove_range(0, border)
        for bitmap in (self.young, self.old):
            bitmap.remove_range(border, FOR_EVER)
        return offsets


class Deduplicator(Generic[K]):
    """Tells repeated numbers from new ones, for each key apart (say, a topic and partition).

    A number is remembered from when it is asked about, before its message is settled. So forget a key whose messages
    were handed back unsettled (its partition was revoked or lost): read again, they are no duplicates. Not safe for
    threads.

    Args:
        capacity: Numbers kept a key: at most so many, at least the newest half. An odd one is as the even one below.
        bitmap: True for offsets and dense numbers (Roaring bitmaps: down to a bit each), False for numbers of any
            kind (sorted runs: 10 bytes each, where random ones take 121 in a bitmap).
        keep_ms: Forget by age, too; not with bitmaps. See `RotatingSet`.

    Raises:
        ValueError: The capacity is below 2.

    >>> seen = Deduplicator()
    >>> seen.deduplicate(("orders", 0), [5, 6, 7])
    [5, 6, 7]
    >>> seen.deduplicate(("orders", 0), [7, 8])
    [8]
    """

    def __init__(self, capacity: int = CAPACITY, *, bitmap: bool = True, keep_ms: float | None = None) -> None:
        if capacity < 2:
            raise ValueError(f"capacity must be at least 2, not {capacity}")
        self.capacity = capacity
        self.room = Room()
        """How many numbers the windows keep unsorted."""
        self._bitmap = bitmap
        self._keep_ms = keep_ms
        self._windows: dict[K, Window] = {}

    def window(self, key: K) -> Window:
        """The window of `key`, begun when it has none."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = self._new()
            self.room.share(len(self._windows))
        return window

    def _new(self) -> Window:
        return RotatingBitmap(self.capacity) if self._bitmap else RotatingSet(self.capacity, self.room, self._keep_ms)

    def duplicated(self, key: K, number: int) -> bool:
        """Whether `number` was seen; remembers nothing."""
        return key in self._windows and number in self._windows[key]

    def add(self, key: K, number: int) -> bool:
        """Remember `number`; False when it was seen before."""
        return self.window(key).add(number)

    def deduplicate(self, key: K, numbers: Sequence[int]) -> list[int]:
        """The numbers not seen before, in their order; all are remembered.

        As if they came one by one: of more than the capacity, those at the end may not know those at the beginning.

        Raises:
            OverflowError: In a bitmap a number is below 0; in either kind it is beyond 64 bits.
        """
        return list(compress(numbers, self.window(key).take(numbers)))

    def reconstruct(self, key: K, numbers: Iterable[int]) -> None:
        """Begin `key` anew with `numbers`, oldest first: after a restart, from a snapshot."""
        self.forget(key)
        window, numbers = self.window(key), iter(numbers)
        while some := list(islice(numbers, CHUNK)):
            window.take(some)

    def forget(self, key: K) -> None:
        """Drop the window of `key`."""
        self._windows.pop(key, None)
        self.room.share(len(self._windows))

    def keys(self) -> list[K]:
        """The keys that have a window."""
        return list(self._windows)

    def dump(self, key: K) -> bytes:
        """What is remembered of `key`, for `load`. Take it when nothing of the key is in flight: see above."""
        young, old = self.window(key).dump()
        return seal(self._kind, VERSION, struct.pack("<Q", len(young)) + young + old)

    def load(self, key: K, dumped: bytes) -> None:
        """Begin `key` anew as it was dumped, on a machine of the same byte order; ages begin anew.

        Raises:
            ValueError: The bytes are no snapshot of such a deduplicator (bitmap or not), or damaged; `key` stays.
        """
        payload = unseal(self._kind, VERSION, dumped)
        border = 8 + struct.unpack_from("<Q", payload)[0]
        window = self._new()
        window.load((payload[8:border], payload[border:]))
        self._windows[key] = window
        self.room.share(len(self._windows))

    @property
    def _kind(self) -> str:
        return "Dedup bitmap" if self._bitmap else "Dedup set"
