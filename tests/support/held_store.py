"""A store of delayed messages in memory, with the promises of `PartitionStore`: what is not durable may be lost."""

from __future__ import annotations

import copy
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.cancels import name_in
from sidecar.delay.headers import unpack_headers
from sidecar.delay.interface import LISTED_MAX, FileDamage, StorePlace, View
from sidecar.delay.rows import HOUR_MS, PARKED_FROM, Held, Leave, ListedRow, Unread
from sidecar.errors import StateError


@dataclass
class Shelf:
    """What is held of one partition."""

    name: bytes
    state: bytes | None = None
    watermark: int = 0
    floor: int = 0
    messages: dict[int, Held] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    known: BitMap64 = field(default_factory=BitMap64)

    def __deepcopy__(self, memo: object) -> Shelf:  # what is held is not changed, so this is ten times as fast
        return replace(self, messages=dict(self.messages), order=list(self.order), known=self.known.copy())


@dataclass
class Content:
    """What is on the disk, or is to be."""

    shelves: list[Shelf] = field(default_factory=list)
    mark: int = 0
    sequence: int = 0
    changes: int = 0

    def __deepcopy__(self, memo: object) -> Content:
        return replace(self, shelves=copy.deepcopy(self.shelves))


class ModelJob:
    """A write under way."""

    def __init__(self, content: Content) -> None:
        self.content = content

    def run(self) -> None:
        """Nothing is slow here."""


class ModelStore:
    """A `HeldStore`; `crash` is a loss of power."""

    def __init__(self, number: int = 1) -> None:
        self._id = number
        self._live, self._durable = Content(), Content()
        self._writing: Content | None = None
        self._cursors: dict[int, int] = {}
        self.used_bytes = 0
        self.broken: OSError | None = None
        self.damages: list[FileDamage] = []
        self.refuses = False
        """Whether the disk is full."""
        self.taken: set[int] = set()
        """Origins of all messages that were ever taken."""

    def crash(self, chance: Callable[[], float]) -> None:
        """The process is gone; what was not durable may be there or not, but nothing without what was before it."""
        survivors = [self._durable, *([self._writing] if self._writing else ()), copy.deepcopy(self._live)]
        self._live = copy.deepcopy(survivors[int(chance() * len(survivors))])
        self._durable, self._writing, self._cursors = copy.deepcopy(self._live), None, {}

    @property
    def rows(self) -> ModelStore:
        return self

    @property
    def writes(self) -> ModelStore:
        return self

    @property
    def changes(self) -> int:
        return self._live.changes

    @property
    def entered(self) -> int:
        return self.changes

    @property
    def synced(self) -> int:
        return self._durable.changes

    def numbers(self) -> range:
        """The partitions."""
        return range(len(self._live.shelves))

    def durable(self) -> list[Held]:
        """All messages and parked parts that would survive."""
        held = ((shelf.watermark, each) for shelf in self._durable.shelves for each in shelf.messages.values())
        return [each for watermark, each in held if each.position >= watermark]

    def _shelf(self, number: int) -> Shelf:
        return self._live.shelves[number]

    @property
    def in_place(self) -> bool:
        return True

    def disk_bytes(self) -> int:
        return self.used_bytes

    def number(self, name: bytes) -> int:
        for number, shelf in enumerate(self._live.shelves):
            if shelf.name == name:
                return number
        self._live.changes += 1
        self._live.shelves.append(Shelf(name))
        return len(self._live.shelves) - 1

    def note_reported(self) -> None:
        pass

    def place(self, number: int) -> StorePlace:
        return StorePlace(self._id, f"{self._id:x}.{number}")

    def committed(self, number: int, watermark: int) -> None:
        pass

    def leave(self, number: int) -> None:
        pass

    def poll(self) -> None:
        pass

    def state(self, number: int) -> bytes | None:
        return self._shelf(number).state

    def known(self, number: int) -> BitMap64:
        return BitMap64(self._shelf(number).known)

    def held(self, number: int) -> int:
        shelf = self._shelf(number)
        return sum(shelf.watermark <= position < PARKED_FROM for position in shelf.order)

    def hours(self) -> dict[int, int]:
        shelves = self._live.shelves
        held = (p for each in shelves for p in each.order if each.watermark <= p < PARKED_FROM)
        return Counter((p >> SEQUENCE_BITS) // HOUR_MS for p in held)

    def put(self, number: int, rows: Iterable[Held]) -> Sequence[int]:
        shelf, live, positions = self._shelf(number), self._live, []
        if self.refuses:
            raise StateError("the disk is full")
        for held in rows:
            live.sequence += 1
            position = max(held.position, (live.mark >> SEQUENCE_BITS) + 1 << SEQUENCE_BITS) + live.sequence
            shelf.messages[position] = held._replace(position=position)
            insort(shelf.order, position)
            shelf.known.add(held.origin)
            positions.append(position)
        live.changes += 1
        return positions

    def _unsynced(self, number: int) -> int | None:
        before = self._durable.shelves[number].messages.keys() if number < len(self._durable.shelves) else set()
        return min(self._shelf(number).messages.keys() - before, default=None)

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> Sequence[Held]:
        shelf, unsynced = self._shelf(number), self._unsynced(number)
        until = until if unsynced is None else min(until, unsynced)
        cursor = max(self._cursors.get(number, 0), shelf.watermark)
        positions = [position for position in shelf.order if cursor <= position < until][:limit]
        if positions:
            self._cursors[number] = positions[-1] + 1
            self._live.mark = max(self._live.mark, positions[-1])
        self.taken.update(shelf.messages[position].origin for position in positions)
        found = [shelf.messages[position] for position in positions]
        if leave is None:
            return found
        return [Unread(*each[:3], None, each.tags, None, b"", None) if leave(each.tags) else each for each in found]

    def live(self) -> set[int]:
        """Origins of all messages that it has now."""
        return {held.origin for shelf in self._live.shelves for held in shelf.messages.values()}

    def next(self, number: int) -> int | None:
        shelf = self._shelf(number)
        cursor = max(self._cursors.get(number, 0), shelf.watermark)
        return next((position for position in shelf.order if cursor <= position < PARKED_FROM), None)

    def rewind(self, number: int) -> None:
        self._cursors[number] = 0

    def find(self, number: int, position: int) -> Held | None:
        return self._shelf(number).messages.get(position) if number >= 0 else None

    def listed(
        self, number: int, first: int, end: int, limit: int = LISTED_MAX, origin: int | None = None
    ) -> Sequence[ListedRow]:
        shelf = self._shelf(number)
        first = max(first, self._cursors.get(number, 0), shelf.watermark)
        found = [shelf.messages[position] for position in shelf.order if first <= position < end]
        return [ListedRow(held.position, held.origin, 0) for held in found if origin in (None, held.origin)][:limit]

    def view(self, lowest: Mapping[int, int], end: int) -> View:
        raise NotImplementedError

    def cancel(self, number: int, position: int) -> bool:
        if not self.listed(number, position, position + 1, 1, None):
            return False
        shelf = self._shelf(number)
        del shelf.messages[position]
        shelf.order.remove(position)
        self._live.changes += 1
        return True

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        for position in list(self._shelf(number).order):
            held = self.find(number, position)
            if held is not None and lowest <= position < PARKED_FROM:
                name = name_in(unpack_headers(held.headers))
                is_meant = name is not None and held.origin < names.get(name, 0)
                yield [held] if is_meant and self.cancel(number, position) else []

    def park(self, number: int, part: Held) -> None:
        self.adopt(number, [part])

    def parked(self, number: int) -> Sequence[Held]:
        held = self._shelf(number).messages.values()
        return [each._replace(value=None) for each in held if each.position >= PARKED_FROM]

    def forget_cancelled(self, number: int, positions: Iterable[int]) -> None:
        pass

    def is_moving(self, number: int) -> bool:
        return False

    def release(self, number: int, position: int, due_ms: int) -> int | None:
        if not self.listed(number, position, position + 1, 1, None):
            return None
        live, held = self._live, self._shelf(number).messages[position]
        live.sequence += 1
        earlier = (max(due_ms, (live.mark >> SEQUENCE_BITS) + 1) << SEQUENCE_BITS) + live.sequence
        if earlier < position:
            self.adopt(number, [held._replace(position=earlier)])
            self.cancel(number, position)
        return min(earlier, position)

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        shelf = self._shelf(number)
        shelf.state, shelf.watermark = state, watermark
        self._live.mark = max(self._live.mark, seen)
        self._live.changes += 1

    def floor(self, number: int, origin: int) -> None:
        self._shelf(number).known.remove_range(0, origin)
        self._live.changes += 1

    def void(self, number: int, first: int, end: int, *, restarts: bool = False) -> None:
        shelf = self._shelf(number)
        shelf.known.remove_range(0 if restarts else first, end)
        self._end(shelf, first, end)

    def _end(self, shelf: Shelf, first: int, end: int) -> None:
        void = [p for p, held in shelf.messages.items() if first <= held.origin < end and p >= shelf.watermark]
        for position in void:
            del shelf.messages[position]
            shelf.order.remove(position)
        self._live.changes += 1

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        shelf = self._shelf(number)
        if self.refuses:
            raise StateError("the disk is full")
        for held in rows:
            if held.position >= shelf.watermark:
                shelf.messages[held.position] = held
                insort(shelf.order, held.position)
        self._live.changes += 1

    def learn(self, number: int, origins: Iterable[int]) -> None:
        self._shelf(number).known.update(origins)
        self._live.changes += 1

    def drop(self, number: int) -> None:
        self._live.shelves[number] = Shelf(self._shelf(number).name, watermark=1 << 63)
        self._live.changes += 1

    def begin_sync(self) -> ModelJob | None:
        if self._live.changes == self._durable.changes:
            return None
        if self.refuses:
            raise StateError("the disk is full")
        self._writing = copy.deepcopy(self._live)
        return ModelJob(self._writing)

    def ended_sync(self, job: ModelJob, error: OSError | None) -> None:
        self._writing = None
        if error is None:
            self._durable = job.content

    def sync(self) -> None:
        self._durable = copy.deepcopy(self._live)
