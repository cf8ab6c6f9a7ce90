"""A changelog in memory: appends that are late, or of the dead, and compaction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sidecar.core.delays import SEQUENCE_BITS
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import LOST, ChangelogEntry, ChangelogRecord, Point
from sidecar.delay.changelog.records import MESSAGE, VOID, counts, epoch_key, read_message, read_void
from sidecar.delay.rows import Held
from sidecar.errors import StateError
from tests.support.held_store import Content, ModelStore


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

    def compact(self) -> None:
        """Remove what later records replace, and sometimes tombstones, up to some offset."""
        until = self._end if self._chance() < 0.3 else int(self._chance() * (self._end + 1))
        last = {record.key: record.offset for record in self.records}
        with_tombstones = self._chance() < 0.5
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


@dataclass(frozen=True)
class Vouched:
    """The files at a point, and the table."""

    content: Content
    twins: tuple[tuple[int, Held], ...]
    table: bytes = b""

    def __deepcopy__(self, memo: object) -> Vouched:
        return self


class ModelCache(ModelStore):
    """A `KeptRows` in memory.

    Args:
        number: Of its host.
        vouched: What an earlier process left.
        copies: All that earlier processes vouched for.
    """

    def __init__(self, number: int = 1, vouched: Vouched | None = None, copies: Iterable[Vouched] = ()) -> None:
        super().__init__(number)
        self.twins: list[tuple[int, Held]] = []
        """Messages at a position that another one has, too, with the numbers of their partitions."""
        self.vouched: bytes | None = None
        if vouched is not None:
            self._live, self.twins, self.vouched = copy.deepcopy(vouched.content), list(vouched.twins), vouched.table
            self._live.vouched = vouched
            self._durable = copy.deepcopy(self._live)
        self.copies = list(copies)
        """What may be copied back."""
        self._points: dict[int, Vouched] = {}
        self._spare: set[int] = set()
        self.loss = ""

    def restarted(self, chance: Callable[[], float]) -> ModelCache:
        """The next process has what was durable, and perhaps what was written; or a copy, or nothing."""
        survivors = [each.vouched for each in (self._durable, self._writing, self._live) if each is not None]
        vouched, fate = survivors[int(chance() * len(survivors))], chance()
        if fate < 0.1:
            vouched = None
        elif fate < 0.25 and self.copies:
            vouched = self.copies[int(chance() * len(self.copies))]
        assert vouched is None or isinstance(vouched, Vouched)
        return ModelCache(self._id, vouched, self.copies)

    # Rows that outlive the process

    def retain(self, numbers: Collection[int]) -> None:
        self._spare = set(numbers)
        for number in self.numbers():
            if number not in self._spare:
                self.drop(number)

    def use(self, number: int) -> None:
        self._spare.discard(number)

    def begin_partition(self, name: bytes) -> int:
        return self.number(b"%s\0%d" % (name, len(self._live.shelves)))

    def point(self) -> Point:
        if self.refuses:
            raise StateError("the disk is full")
        point = Point(self._live.changes, len(self._points))
        self._points[point.change] = Vouched(copy.deepcopy(self._live), tuple(self.twins))
        return point

    def vouch(self, point: Point, table: bytes) -> None:
        found = self._points[point.change]
        vouched = Vouched(found.content, found.twins, table)
        self._live.vouched = vouched
        self._live.changes += 1
        self.copies.append(vouched)

    # Rows

    def _unsynced(self, number: int) -> int | None:
        return None

    def adopt(self, number: int, rows: Iterable[Held]) -> None:
        shelf, rows = self._shelf(number), list(rows)
        first = {row.position: row for row in reversed(rows)}
        super().adopt(number, [row for position, row in first.items() if position not in shelf.messages])
        for held in rows:
            if shelf.messages.get(held.position, NOTHING).epoch != held.epoch:  # one is removed before anything is read
                self.twins.append((number, held))
            self._live.sequence = max(self._live.sequence, held.position & ((1 << SEQUENCE_BITS) - 1))

    def drop(self, number: int) -> None:
        super().drop(number)
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
