"""Windows of numbers that were seen, one per key; they forget the oldest half. Knows no broker."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sidecar.core.snapshots import Stored, seal, unseal
from sidecar.core.windows.bitmap import CAPACITY, EVER, IdCounts, Moment, RotatingBitmap
from sidecar.core.windows.idruns import Keys, Mask, Search, SortedRun, add_run, mixed, search, unmixed

KEY_BYTES = 8
RECENT_MIN, RECENT_MAX = 64, 8_192
"""Number of a window's newest keys: each batch of new ones is merged with them."""
NO_KEYS: Keys = np.empty(0, np.uint64)


class IdRoom:
    """Shared by windows: the number of their newest keys, how keys are looked up, and the count of their rotations.

    Args:
        size: Total of the newest keys of all windows, as long as each keeps at least `RECENT_MIN`.
        search: Looks keys up in runs.
    """

    def __init__(self, size: int = 1 << 17, search: Search = search) -> None:
        self.search = search
        self._size = size
        self._windows = 0
        self.each = RECENT_MAX
        self.rotations = 0
        """Number of times that a window forgot its old generation."""

    def share(self, windows: int) -> None:
        """Divide the room among this number of windows."""
        self._windows = windows
        self.each = max(RECENT_MIN, min(RECENT_MAX, self._size // max(1, windows)))

    def resize(self, size: int) -> None:
        """Set the total of the newest keys of all windows."""
        self._size = size
        self.share(self._windows)


class IdSet:
    """A set of numbers, added many at a time."""

    def __init__(self, room: IdRoom) -> None:
        self._room = room
        self.recent: Keys = NO_KEYS
        """The newest keys, rising; in no run yet."""
        self.runs: list[SortedRun] = []
        """Runs in memory, made here."""
        self.stored: list[SortedRun] = []
        """Runs that the shell stored, perhaps in files."""
        self.decided = -1
        """The highest offset of the messages that were checked against this set."""
        self.added = 0
        """Numbers added since it began; stored runs may also contain numbers of the previous generation."""
        self.begun_ms = self.ended_ms = 0.0
        """Times of the first and the last number; the latter is used once the set is the old generation."""
        self._sorted = 0

    def __contains__(self, number: int) -> bool:
        return bool(self.known(mixed([number]), -1)[0])

    def __len__(self) -> int:
        return len(self.recent) + self._sorted

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without the runs that the shell stores."""
        return self.recent.nbytes + sum(run.nbytes for run in self.runs)

    def known(self, keys: Keys, last: int) -> Mask:
        """A mask of the keys that are in the set.

        Args:
            last: The highest offset of their messages.
        """
        runs = (*self.runs, *self.stored)
        mask = self._room.search(runs, keys) if runs else np.zeros(len(keys), np.bool_)
        if len(self.recent):
            mask |= self.recent[self.recent.searchsorted(keys) % len(self.recent)] == keys
        if mask.any():
            self.decided = max(self.decided, last)
        return mask

    def update(self, keys: Keys, last: int, now_ms: float) -> None:
        """Add rising keys that are not in the set."""
        if not len(keys):
            return
        if not len(self):
            self.begun_ms = now_ms
        self.ended_ms = now_ms
        self.decided = max(self.decided, last)
        self.added += len(keys)
        self.recent = np.concatenate([self.recent, keys])
        self.recent.sort(kind="stable")  # merges the two
        if len(self.recent) > self._room.each:
            self.settle()

    def settle(self) -> None:
        """Make a run of the newest keys."""
        if len(self.recent):
            recent, self.recent = self.recent, NO_KEYS
            self._add(recent)

    def numbers(self) -> NDArray[np.int64]:
        """All numbers, in ascending order."""
        self.settle()
        numbers = unmixed(np.concatenate([NO_KEYS, *(run.keys for run in (*self.runs, *self.stored))]))
        numbers.sort()
        return numbers

    def load(self, numbers: NDArray[np.int64]) -> None:
        """Add many numbers that are not in the set."""
        keys = mixed(numbers)
        keys.sort()
        self._add(keys)

    def _add(self, keys: Keys) -> None:
        add_run(self.runs, SortedRun.of(keys))
        self._count()

    def install(self, stored: Sequence[SortedRun], elsewhere: Iterable[SortedRun] = ()) -> None:
        """Use the runs that the shell stored, and drop the numbers that these contain.

        Args:
            stored: All stored runs of this set.
            elsewhere: Stored runs of another generation, which may have taken some of these numbers.
        """
        self.settle()
        self.stored = list(stored)
        own, self.runs = self.runs, []
        for run in own:
            keys = run.keys
            for kept in (*stored, *elsewhere):
                keys = keys[~kept.contains(keys)]
            if len(keys) == len(run):
                self.runs.append(run)
            elif len(keys):
                add_run(self.runs, SortedRun.of(keys))
        self._count()

    def _count(self) -> None:
        self._sorted = sum(map(len, (*self.runs, *self.stored)))


K = TypeVar("K", bound=Hashable)
CHUNK = 10_000
VERSION = 1
_YOUNG_BYTES = struct.Struct("<Q")


class Window(Protocol):
    """Interface of both kinds of windows."""

    generation: int
    """Number of the young generation; each rotation increments it."""

    def __contains__(self, item: int) -> bool: ...

    def __len__(self) -> int: ...

    def add(self, item: int) -> bool:
        """Remember `item`; False if it was known."""
        ...

    def take(self, numbers: Sequence[int | None], moment: Moment = EVER, /) -> list[bool]:
        """Remember many numbers; return for each whether it was new, as None always is."""
        ...

    def dump(self) -> tuple[bytes, bytes]:
        """Young and old generation."""
        ...

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Replace the contents with a dump; ValueError if it is invalid."""
        ...


class RotatingSet:
    """Two generations of arbitrary 64-bit numbers, in 10 bytes per number.

    A generation has the highest offset of the messages that it decided, and is not forgotten before that is durably
    settled: if such a message is read again after a crash, it must get the same answer.

    Args:
        capacity: Maximum of numbers kept; at least half as many are remembered.
        room: Limit on the newest keys of each window, shared with other windows.
        keep_ms: Rotate at this age too: a number is forgotten after one to two times as long.
    """

    def __init__(self, capacity: int = CAPACITY, room: IdRoom | None = None, keep_ms: float | None = None) -> None:
        self.half = max(1, capacity // 2)
        self.generation = 0
        self._room = room or IdRoom()
        self._keep_ms = keep_ms
        self.young, self.old = IdSet(self._room), IdSet(self._room)

    def __contains__(self, item: int) -> bool:
        return item in self.young or item in self.old

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def add(self, item: int) -> bool:
        """Remember `item`; False if it was known. May rotate before, never after: a new `item` is in `young`."""
        return self.take([item])[0]

    def take(self, numbers: Sequence[int | None], moment: Moment = EVER, /) -> list[bool]:
        if None not in numbers:
            return list(self.take_all(np.array(numbers, np.int64), moment).tolist())
        new = np.ones(len(numbers), np.bool_)
        places = [place for place, number in enumerate(numbers) if number is not None]
        new[places] = self.take_all(np.array([numbers[place] for place in places], np.int64), moment)
        return list(new.tolist())

    def take_all(self, numbers: NDArray[np.int64], moment: Moment) -> Mask:
        """Remember many numbers, in 0.2 microseconds each; a mask of those that were new."""
        self._rotate_by_age(moment)
        keys, new, at = mixed(numbers), np.zeros(len(numbers), np.bool_), 0
        while at < len(keys):
            if self.young.added >= self.half and self._may_rotate(moment):
                unknown = (~self._known(keys[at:], moment.last)).nonzero()[0]
                if not len(unknown):
                    break
                self.rotate()  # before the first new number: batch borders make no difference
                at += int(unknown[0])
            room = self.half - self.young.added
            end = at + room if room > 0 else len(keys)
            new[at:end] = self._take(keys[at:end], moment)
            at = end
        return new

    def _known(self, keys: Keys, last: int) -> Mask:
        return self.old.known(keys, last) | self.young.known(keys, last)

    def _take(self, keys: Keys, moment: Moment) -> Mask:
        new, fresh = ~self._known(keys, moment.last), np.sort(keys)
        if (fresh[1:] == fresh[:-1]).any():
            first = np.zeros(len(keys), np.bool_)
            first[np.unique(keys, return_index=True)[1]] = True
            new &= first
        if not new.all():
            fresh = np.sort(keys[new])
        self.young.update(fresh, moment.last, moment.now_ms)
        return new

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
        """Forget the old generation; the young generation becomes the old."""
        self.young.settle()
        self.old, self.young = self.young, IdSet(self._room)
        self.generation += 1
        self._room.rotations += 1

    def install(self, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        """Use all runs that the shell stored of each generation, and drop the numbers that these contain."""
        young = runs.get(self.generation, ())
        self.young.install(young)
        self.old.install(runs.get(self.generation - 1, ()), young)

    def restore(
        self, runs: Mapping[int, Sequence[SortedRun]], begun_ms: Mapping[int, float], now_ms: float, decided: int
    ) -> None:
        """Continue from the runs that an earlier process stored.

        Args:
            begun_ms: Start of each generation, in monotonic time; now, if unknown.
            now_ms: Monotonic time.
            decided: The highest offset of messages that these ids may have decided.
        """
        self.generation = max(runs, default=0)
        self.install(runs)
        for generation, number in ((self.young, self.generation), (self.old, self.generation - 1)):
            generation.decided, generation.added = decided, len(generation)
            generation.begun_ms, generation.ended_ms = begun_ms.get(number, now_ms), now_ms

    def dump(self) -> tuple[bytes, bytes]:
        """Young and old generation: arrays of native 64-bit integers, in ascending order."""
        return self.young.numbers().tobytes(), self.old.numbers().tobytes()

    def load(self, dumped: tuple[bytes, bytes]) -> None:
        """Replace the contents with a dump.

        Raises:
            ValueError: The bytes are not arrays of 64-bit integers.
        """
        self.young, self.old = (IdSet(self._room) for _ in dumped)
        for ids, blob in zip((self.young, self.old), dumped, strict=True):
            ids.load(np.frombuffer(blob, np.int64))
            ids.added = len(ids)


class Deduplicator(Generic[K]):
    """Distinguishes repeated numbers from new numbers, separately for each key (such as a topic and partition).

    A number is remembered as soon as it is asked about, before its message is settled. So forget a key whose messages
    were handed back unsettled (its partition was revoked or lost): they are not duplicates when read again. Not
    thread-safe.

    Args:
        capacity: Maximum of numbers kept per key; at least the newest half is kept. Odd capacities are rounded down.
        bitmap: True for offsets and dense numbers (Roaring bitmaps: down to a bit per number), False for arbitrary
            numbers (sorted runs: 10 bytes per number; random numbers take 121 bytes each in a bitmap).
        keep_ms: Forget by age too; not with bitmaps. See `RotatingSet`.
        search: Looks numbers up in sorted runs; not with bitmaps.

    Raises:
        ValueError: The capacity is below 2.

    >>> seen = Deduplicator()
    >>> seen.deduplicate(("orders", 0), [5, 6, 7])
    [5, 6, 7]
    >>> seen.deduplicate(("orders", 0), [7, 8])
    [8]
    """

    def __init__(
        self, capacity: int = CAPACITY, *, bitmap: bool = True, keep_ms: float | None = None, search: Search = search
    ) -> None:
        if capacity < 2:
            raise ValueError(f"capacity must be at least 2, not {capacity}")
        self.capacity = capacity
        self.room = IdRoom(search=search)
        """Limit on the newest keys of the windows."""
        self._bitmap = bitmap
        self._keep_ms = keep_ms
        self._windows: dict[K, Window] = {}

    def window(self, key: K) -> Window:
        """The window of `key`; created if there is none."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = self._new()
            self.room.share(len(self._windows))
        return window

    def _new(self) -> Window:
        return RotatingBitmap(self.capacity) if self._bitmap else RotatingSet(self.capacity, self.room, self._keep_ms)

    def duplicated(self, key: K, number: int) -> bool:
        """Whether `number` was seen; does not remember it."""
        return key in self._windows and number in self._windows[key]

    def add(self, key: K, number: int) -> bool:
        """Remember `number`; False if it was seen before."""
        return self.window(key).add(number)

    def deduplicate(self, key: K, numbers: Sequence[int]) -> list[int]:
        """The numbers that were not seen before, in their order; all are remembered.

        The result is the same as one by one: of more numbers than the capacity, the first may be forgotten by the end.

        Raises:
            OverflowError: A number is below 0 (bitmaps only), or exceeds 64 bits.
        """
        return list(compress(numbers, self.window(key).take(numbers)))

    def reconstruct(self, key: K, numbers: Iterable[int]) -> None:
        """Replace the window of `key` by `numbers`, oldest first: after a restart, from a snapshot."""
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

    def count(self) -> IdCounts:
        """Count the numbers of all windows that are not bitmaps."""
        windows = [window for window in self._windows.values() if isinstance(window, RotatingSet)]
        sets = [generation for window in windows for generation in (window.young, window.old) if len(generation)]
        return IdCounts(
            sum(map(len, sets)),
            sum(generation.nbytes for generation in sets),
            sum(run.nbytes for generation in sets for run in generation.stored),
            min((generation.begun_ms for generation in sets), default=None),
            self.room.rotations,
        )

    def dump(self, key: K) -> bytes:
        """Snapshot of the window of `key`, for `load`. Take it while nothing of the key is in flight: see above."""
        young, old = self.window(key).dump()
        return seal(self._kind, VERSION, _YOUNG_BYTES.pack(len(young)) + young + old)

    def load(self, key: K, dumped: bytes) -> None:
        """Replace the window of `key` by a dump from a machine with the same byte order; ages start over.

        Raises:
            ValueError: The dump is damaged, or of another kind (bitmap or not); the window of `key` is unchanged.
        """
        stored = Stored(unseal(self._kind, VERSION, dumped))
        (young_bytes,) = stored.unpack(_YOUNG_BYTES)
        window = self._new()
        window.load((stored.take(young_bytes), stored.take(stored.left)))
        self._windows[key] = window
        self.room.share(len(self._windows))

    @property
    def _kind(self) -> str:
        return "Dedup bitmap" if self._bitmap else "Dedup set"
