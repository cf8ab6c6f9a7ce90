"""A changelog in memory: appends that are late, or of the dead, and compaction."""

from __future__ import annotations

import copy
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, ChangelogRecord
from sidecar.delay.changelog.records import MESSAGE, VOID, counts, epoch_key, read_message, read_void
from sidecar.delay.interface import LISTED_MAX
from sidecar.delay.rows import PARKED_FROM, Held, Leave, ListedRow
from sidecar.errors import StateError
from tests.support.held_store import Content, ModelJob, ModelStore, Shelf


class ModelLog:
    """The log of one partition. It is a `Restorer`, too."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.records: list[ChangelogRecord] = []
        self._end = 0
        self._chance = chance
        self.late: list[list[ChangelogEntry]] = []
        """What dead producers may still append, each in its order."""
        self.is_deleted = False

    def add(self, entry: ChangelogEntry) -> int:
        """Append an entry; return its offset."""
        self.records.append(ChangelogRecord(self._end, *entry))
        self._end += 1
        return self._end - 1

    def compact(self, *, is_all: bool = False) -> None:
        """Remove what later records replace, and sometimes tombstones, up to some offset.

        Args:
            is_all: Whether all is removed that can be.
        """
        until = self._end if is_all or self._chance() < 0.3 else int(self._chance() * (self._end + 1))
        last = {record.key: record.offset for record in self.records}
        with_tombstones = is_all or self._chance() < 0.5
        newest = {record.key: record.offset for record in self.records if record.offset < until}
        self.records = [
            record
            for record in self.records
            if record.offset >= until
            or (record.offset == newest[record.key] and (record.value is not None or not with_tombstones))
            or (record.offset == last[record.key] and record.value is not None)
        ]

    def arrive(self) -> None:
        """Something of a dead producer arrives, or is gone."""
        if self.late:
            entries = self.late[int(self._chance() * len(self.late))]
            if self._chance() < 0.2:
                self.late.remove(entries)
                return
            self.add(entries.pop(0))
            if not entries:
                self.late.remove(entries)

    def there(self) -> Iterator[tuple[ChangelogRecord, Held]]:
        """The messages and parked parts that were not removed, with their records."""
        for record in {record.key: record for record in self.records}.values():
            if (held := held_of(record)) is not None:
                yield record, held

    def counted(self, named: int) -> list[Held]:
        """Those that count if a commit names this epoch."""
        raw = {record.key: record.value for record in self.records}.get(epoch_key(VOID, named))
        rules, found = read_void(raw) if raw else [], list[Held]()
        for record, held in self.there():
            lineage, _ = read_message(record.key, record.value or b"") if rules else ((0, 0), None)
            is_void = any(rule.voids(record.offset, lineage, held.position, held.origin) for rule in rules)
            if counts(named, record.offset, held.epoch) and not is_void:
                found.append(held)
        return found

    def on_the_way(self) -> list[Held]:
        """What dead producers may still append."""
        found = [held_of(entry) for entries in self.late for entry in entries]
        return [held for held in found if held is not None]

    # Restorer

    def open(self, tp: TopicPartition) -> int:
        return 7

    def append(self, tp: TopicPartition, entries: Iterable[ChangelogEntry]) -> int:
        for entry in entries:
            if self._chance() < 0.2:
                self.arrive()
            offset = self.add(entry)
        return offset

    def read(self, tp: TopicPartition, end: int, begin: int = 0) -> Iterator[Sequence[ChangelogRecord]]:
        if self._chance() < 0.2:
            self.compact()
        records = [record for record in self.records if begin <= record.offset < end]
        size = 1 + int(self._chance() * 20)
        for first in range(0, len(records), size):
            yield records[first : first + size]


def held_of(entry: ChangelogEntry | ChangelogRecord) -> Held | None:
    """The message, or parked part, of a record; None if it is of another kind."""
    if entry.key[:1] != MESSAGE or entry.value is None:
        return None
    return read_message(entry.key, entry.value)[1]._replace(timestamp_ms=None)


class ModelChangelog:
    """The `Changelog` of one process: what it appends is on the way until `land`, and then acknowledged or not yet."""

    def __init__(self, log: ModelLog) -> None:
        self._log = log
        self._way: list[tuple[list[ChangelogEntry], Callable[[int], None] | None]] = []
        self._landed: list[tuple[Callable[[int], None] | None, int]] = []
        self.broken = self.waiting = ""

    def append(
        self, tp: TopicPartition, entries: Sequence[ChangelogEntry], done: Callable[[int], None] | None = None
    ) -> None:
        self._way.append((list(entries), done))

    def land(self, count: int) -> None:
        """The broker gets some entries."""
        for _ in range(count):
            if not self._way:
                return
            entries, done = self._way[0]
            offset = self._log.add(entries.pop(0))
            if not entries:
                self._way.pop(0)
                self._landed.append((done, offset))

    def refuse(self) -> None:
        """A later owner has claimed the partition: nothing of what is on the way is appended."""
        self._landed += [(done, LOST) for _, done in self._way]
        self._way = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on the way."""
        return not self._way and not self._landed

    def serve(self, timeout_s: float = 0.0) -> None:
        if timeout_s:
            self.land(1 << 30)
        landed, self._landed = self._landed, []
        for done, offset in landed:
            if done is not None:
                done(offset)

    def die(self) -> None:
        """The process is gone; what is on the way may arrive later."""
        rest = [entry for entries, _ in self._way for entry in entries]
        if rest:
            self._log.late.append(rest)
        self._way = []

    def close(self) -> None:
        self.die()


NOTHING = Held(0, 0, 0, None, NO_TAGS, None, b"", None)
COPIED_EVERY, COPIES_MAX = 2, 40
"""Changes after which the files are copied again, and the copies that stay."""


@dataclass
class CacheShelf(Shelf):
    """What is held of one partition, with its notes."""

    notes: dict[bytes, bytes] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> CacheShelf:
        copied = copy.copy(self)
        copied.messages, copied.order = dict(self.messages), list(self.order)
        copied.known, copied.notes = self.known.copy(), dict(self.notes)
        return copied


class ModelCache(ModelStore):
    """A `LocalCache` in memory: `_live` is what memory has, `_written` what the files have.

    Args:
        number: Of its host.
        written: What an earlier process left.
        copies: What the files of earlier processes had at times.
    """

    def __init__(self, number: int = 1, written: Content | None = None, copies: Iterable[Content] = ()) -> None:
        super().__init__(number)
        self.twins: list[tuple[int, Held]] = []
        """Messages at a position that another one has, too, with the numbers of their partitions."""
        self._live = copy.deepcopy(written or Content())
        self._written, self._durable = copy.deepcopy(self._live), copy.deepcopy(self._live)
        self.copies = list(copies)
        """What may be copied back."""
        self._owned: set[int] = set()
        self._spare: set[int] = set()
        self.loss = ""
        for number in self.numbers():
            if b"" in self._notes(number):
                self._spare.add(number)
            else:
                self.drop(number)

    def restarted(self, chance: Callable[[], float], *, is_old: bool = False) -> ModelCache:
        """The next process has what was durable, and perhaps what was written; or a copy, or nothing.

        Args:
            is_old: Whether it has a copy if there is one.
        """
        survivors = [self._durable, *([self._writing] if self._writing else ()), self._written]
        written, fate = survivors[int(chance() * len(survivors))], chance()
        if fate < 0.1 and not is_old:
            return ModelCache(self._id, None, self.copies)
        if (is_old or fate < 0.25) and self.copies:
            written = self.copies[int(chance() * len(self.copies))]
        return ModelCache(self._id, written, self.copies)

    @property
    def local(self) -> Any:
        """The same, for what is typed with a `LocalCache`."""
        return self

    def _notes(self, number: int) -> dict[bytes, bytes]:
        shelf = self._shelf(number)
        return shelf.notes if isinstance(shelf, CacheShelf) else {}

    # Changes on the way

    @property
    def changes(self) -> int:
        return self._written.changes

    def begin_sync(self) -> ModelJob | None:
        if self._written.changes == self._durable.changes:
            return None
        if self.refuses:
            raise StateError("the disk is full")
        self._writing = copy.deepcopy(self._written)
        return ModelJob(self._writing)

    def sync(self) -> None:
        self._durable = copy.deepcopy(self._written)

    def _write(self, number: int, shelf: Shelf) -> None:
        shelves = self._written.shelves
        while len(shelves) <= number:
            shelves.append(CacheShelf(b"", watermark=1 << 63))
        shelves[number] = shelf
        self._written.changes += 1
        self._written.sequence, self._written.mark = self._live.sequence, self._live.mark

    def own(self, number: int) -> None:
        self._owned.add(number)
        self._write(number, copy.deepcopy(self._shelf(number)))

    def prepared(self, number: int) -> Sequence[Shelf]:
        return [copy.deepcopy(self._shelf(number))]

    def enter(self, number: int, changes: Sequence[Shelf], place: bytes | None) -> None:
        if self.refuses:
            raise StateError("the disk is full")
        shelf = changes[-1] if changes else copy.deepcopy(self._written.shelves[number])
        for notes in (cast("CacheShelf", shelf).notes, self._notes(number)):
            notes.pop(b"", None)
            if place is not None:
                notes[b""] = place
        self._write(number, shelf)
        if place is not None and self._written.changes % COPIED_EVERY == 0:
            self.copies = [*self.copies, copy.deepcopy(self._written)][-COPIES_MAX:]

    def _is_there(self, number: int, position: int) -> bool:
        """Whether the files have a message."""
        return number not in self._owned or position in self._written.shelves[number].messages

    # Partitions

    def spare(self, name: bytes) -> int | None:
        names = {self._shelf(number).name.rpartition(b"\0")[0]: number for number in self._spare}
        return names.get(name)

    def is_spare(self, number: int) -> bool:
        return number in self._spare

    def use(self, number: int) -> None:
        if number in self._spare:
            self._spare.remove(number)
            for content in (self._live, self._written):
                cast("CacheShelf", content.shelves[number]).notes.pop(b"", None)
            self._written.changes += 1

    def drop_spare(self) -> None:
        for number in list(self._spare):
            self.drop(number)

    def begin_partition(self, name: bytes) -> int:
        number = len(self._live.shelves)
        self._live.shelves.append(CacheShelf(b"%s\0%d" % (name, number)))
        return number

    def kept(self, number: int) -> tuple[int, int, bytes] | None:
        shelf = self._shelf(number)
        return None if shelf.state is None else (shelf.watermark, self._live.mark, shelf.state)

    def note(self, number: int, notes: Mapping[bytes, bytes | None]) -> None:
        for key, value in notes.items():
            self._notes(number).pop(key, None)
            if value is not None:
                self._notes(number)[key] = value

    def notes(self, number: int) -> Mapping[bytes, bytes]:
        return dict(self._notes(number))

    def ended(self, number: int, watermark: int) -> Iterable[Held]:
        return [held for position, held in self._shelf(number).messages.items() if position < watermark]

    def forget_below(self, number: int, position: int) -> None:
        shelf = self._shelf(number)
        shelf.order = [each for each in shelf.order if each >= position]
        shelf.messages = {each: held for each, held in shelf.messages.items() if each >= position}

    # Rows

    def _unsynced(self, number: int) -> int | None:
        return None

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> Sequence[Held]:
        found = super().take_due(number, until, limit, nbytes, leave)
        return [held for held in found if self._is_there(number, held.position)]

    def listed(
        self, number: int, first: int, end: int, limit: int = LISTED_MAX, origin: int | None = None
    ) -> Sequence[ListedRow]:
        found = super().listed(number, first, end, limit, origin)
        return [each for each in found if self._is_there(number, each.position)]

    def cancel(self, number: int, position: int) -> bool:
        if position >= PARKED_FROM and not self._is_there(number, position):
            raise StateError("it is on the way")
        return super().cancel(number, position)

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        shelf, rows = self._shelf(number), list(rows)
        first = {row.position: row for row in reversed(rows)}
        if self.refuses and number not in self._owned:
            raise StateError("the disk is full")
        for position, held in first.items():
            if position >= shelf.watermark and position not in shelf.messages:
                shelf.messages[position] = held
                insort(shelf.order, position)
        for held in rows:
            if shelf.messages.get(held.position, NOTHING).epoch != held.epoch:  # one is removed before anything is read
                self.twins.append((number, held))
            self._live.sequence = max(self._live.sequence, held.position & ((1 << SEQUENCE_BITS) - 1))

    def leave(self, number: int) -> None:
        if b"" not in self._notes(number):
            self.drop(number)
            return
        self._owned.discard(number)
        self._spare.add(number)
        self._live.shelves[number] = copy.deepcopy(self._written.shelves[number])
        self._cursors[number] = 0

    def drop(self, number: int) -> None:
        super().drop(number)
        self._spare.discard(number)
        self._owned.discard(number)
        if number < len(self._written.shelves):
            self._write(number, CacheShelf(b"", watermark=1 << 63))
        self.twins = [twin for twin in self.twins if twin[0] != number]

    def remove(self, number: int, position: int, epoch: int) -> bool:
        shelf = self._shelf(number)
        held = shelf.messages.get(position)
        twins = [twin for twin in self.twins if (twin[0], twin[1].position) == (number, position)]
        if held is not None and held.epoch == epoch:
            if twins:
                shelf.messages[position] = twins[0][1]
                self.twins.remove(twins[0])
            else:
                del shelf.messages[position]
                shelf.order.remove(position)
            return True
        cancelled = [twin for twin in twins if twin[1].epoch == epoch]
        self.twins = [twin for twin in self.twins if twin not in cancelled]
        return bool(cancelled)
