"""Takes over the delayed messages of a partition: claims its changelog, and reads the records that count.

For one thread that may wait for the broker. The main thread gets the messages, and the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pyroaring import BitMap64

from sidecar.core.partition_state import Stores
from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.interface import ChangelogEntry, ChangelogRecord, FencingRestorer, Restorer
from sidecar.delay.changelog.notes import Note, NotedPlace
from sidecar.delay.changelog.reach import REACH_KEY, Handed, PutReach, read_reach, resumed
from sidecar.delay.changelog.records import (
    CANCELLED,
    CHANGE,
    KEY,
    MESSAGE,
    NOBODY,
    PROOF,
    REMOVAL,
    STATE,
    VOID,
    KeptState,
    MessageKey,
    Moved,
    RecordLineage,
    VoidRule,
    claim,
    counts,
    epoch_in,
    epoch_key,
    is_of_owner,
    kind_of,
    proof_entry,
    read_change,
    read_message,
    read_message_key,
    read_removal,
    read_state,
    read_void,
    void_entry,
)
from sidecar.delay.rows import ORIGIN_MAX, PARKED_FROM, Held
from sidecar.errors import ConfigError

NEVER = ORIGIN_MAX + 1
"""Above all offsets."""


class LaterError(Exception):
    """The changelog records a later commit than the one that was read, or what is void for the owner that it names."""

    def __init__(self, epoch: int, rules: Sequence[VoidRule] = ()) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch, self.rules = epoch, rules


ROWS_AT_ONCE, BYTES_AT_ONCE = 4_000, 4 << 20
"""Messages that are given to the main thread at once, about: the more, the cheaper for each."""
LATE_MAX = 500_000
"""Messages due in the past whose keys are noted, so that those that were ended can be removed."""


class Start(NamedTuple):
    """Where the owner continues in the source."""

    stores: Stores
    """The stores in the commit; the epoch is of its own."""
    lineage: RecordLineage
    watermark: int
    """The offset below which all messages are settled: those from there on are read again after a reset."""
    seen: int
    """The offset from which on the store decides which messages it has."""
    now: int
    """The position of the present time; it decides what is noted, and nothing else."""

    def rule(self, store: int, epoch: int) -> VoidRule:
        """What is void in a store for the owner that starts here."""
        other = self.stores.other(store)
        return VoidRule(epoch, self.lineage, self.watermark, self.seen if other is None else other.seen, self.seen)


class TakenOver(NamedTuple):
    """A partition that was taken over."""

    store: int
    """The id of the changelog."""
    epoch: int
    """The epoch for the next commit."""
    kept: KeptState | None
    """The state of the last owner."""
    known: BitMap64
    """The origins, at or above `Start.seen`, of the messages that it has."""
    ended: Sequence[MessageKey]
    """Messages that were adopted, though they are no longer held."""
    garbage: Sequence[bytes]
    """Keys that are not needed once a commit has named the epoch."""
    is_lost: bool
    """Whether the commit names another changelog: that one was deleted, with all that it held."""
    moved: Sequence[Moved] = ()
    """Messages that were brought forward; some may no longer be held."""
    staying: Sequence[list[bytes]] = ()
    """The keys of cancelled messages that later owners must know."""
    next_offset: int | None = None
    """The offset of the owner's next record if no other owner appends; None if another one already did."""
    read: int = 0
    """Number of records that were read."""
    note: Note | None = None
    """The note of the local files that was used; None if everything was read."""
    removed: Collection[bytes] = ()
    """With a note: keys of messages that need not be removed, though they are below the watermark."""
    reach: PutReach | None = None
    """Where the owner continues in the source, if the changelog fences."""
    last_named: int = NOBODY
    """The epoch of the last earlier owner whose commit the changelog records."""


@dataclass(slots=True)
class Takeover:
    """One attempt.

    Args:
        adopt: Called with messages that are held, and perhaps some that are no longer. The flag says whether they start
            over: messages adopted before, and those of the local files, then do not count.
        note: Note of the local files, if they have the partition.
    """

    restorer: Restorer
    tp: TopicPartition
    start: Start
    adopt: Callable[[list[Held], bool], None]
    note: Note | None = None

    def run(self) -> TakenOver:
        """Take the partition over.

        Raises:
            ConfigError: The changelog cannot be used.
            UnavailableError: No broker answers; try again.
        """
        store, start = self.restorer.open(self.tp), self.start
        is_same = start.stores.own == store
        named = start.stores.epoch if is_same else NOBODY
        epoch = self._claim()
        reading = self._read_on(store, named, epoch) or self._read_all(store, named, epoch)
        last = epoch - 1
        if reading.void and reading.proved != reading.named:
            # What is void by this commit may count without it, after a reset. So all later owners must know of the
            # commit first, those too that claimed the partition behind this one.
            last = self.restorer.append(self.tp, [proof_entry(reading.named)])
            if last != epoch:
                epoch = self._claim()
                reading, last = self._read_all(store, reading.named, epoch), epoch - 1
        entries = [ChangelogEntry(key, None) for key in reading.void]
        if reading.dropped:  # a stale owner must not remove them: they are void once a commit has named the epoch
            entries.append(void_entry(epoch, {*reading.dropped.values()}))
        next_offset = last + 1 + len(entries)
        if entries:
            last = self.restorer.append(self.tp, entries)
        return TakenOver(
            store,
            epoch,
            reading.kept,
            reading.known,
            [*reading.ended, *reading.cancelled()],
            reading.garbage(epoch),
            is_lost=bool(start.stores.epoch) and not is_same,
            moved=list(reading.moved()),
            staying=list(reading.staying()),
            next_offset=next_offset if last + 1 == next_offset else None,
            read=reading.records,
            note=reading.note,
            removed=reading.removed,
            last_named=reading.proved,
        )

    def _claim(self) -> int:
        return self.restorer.append(self.tp, [claim()]) + 1

    def _read_all(self, store: int, named: int, epoch: int) -> Reading:
        own = self.start.rule(store, epoch)
        rules = [own]
        while True:
            reading = Reading(self.start, named, rules)
            self.adopt([], True)  # noqa: FBT003
            try:
                self._read(reading, epoch)
            except LaterError as later:
                named, rules = later.epoch, [own, *later.rules]
            else:
                return reading

    def _read_on(self, store: int, named: int, epoch: int) -> Reading | None:
        """Read the records since the note; None if the local files cannot be used.

        The commit names the owner that wrote the note: so there was none in between, and no reset. The log must still
        have the record at the place of the note, or a later one of that owner: it may have lost its end. And no change
        behind the place may have been removed: the files may be a copy that is too old.
        """
        note = self.note
        if note is None or note.place[:3] != (store, self.start.lineage, named):
            return None
        reading = Reading(self.start, named, [self.start.rule(store, epoch)], note)
        try:
            self._read(reading, epoch, note.place.offset)
        except LaterError:
            return None
        return reading if reading.has_place and reading.removed_to <= note.place.offset else None

    def _read(self, reading: Reading, end: int, begin: int = 0) -> None:
        for records in self.restorer.read(self.tp, end - 1, begin):
            try:
                reading.take_records(records)
            except ValueError as error:
                raise ConfigError(
                    f"the changelog of {self.tp} has a record that this version cannot read: {error}",
                    hint="start the version that wrote it, or a later one",
                ) from error
            if reading.is_full:
                self.adopt(reading.given(), False)  # noqa: FBT003
        if rows := reading.given():
            self.adopt(rows, False)  # noqa: FBT003


@dataclass(slots=True)
class FencedTakeover(Takeover):
    """One attempt where entries count without a commit of the source, as the changelog fences.

    It changes only the epoch: this owner may no longer be the source's owner.

    Args:
        handed: The source's offset, and its bounds.
    """

    restorer: FencingRestorer
    handed: Handed = field(default_factory=Handed)

    def run(self) -> TakenOver:
        """Take the partition over.

        Raises:
            ConfigError: A later version wrote a record.
            DoubtError: The source is to be asked again.
            UnavailableError: No database answers; try again.
        """
        store, start = self.restorer.open(self.tp), self.start
        epoch = self.restorer.append(self.tp, [claim()]) + 1
        reach, drops_from = resumed(self._reach(), start.lineage, start.watermark, start.seen, self.handed, epoch)
        start = start._replace(lineage=reach.lineage, watermark=NEVER if drops_from is None else drops_from)
        reading = Reading(start, epoch, [start.rule(store, epoch)])
        self.adopt([], True)  # noqa: FBT003
        self._read(reading, epoch)
        known = reading.known
        known.add_range(start.seen, max(start.seen, reach.seen))
        return TakenOver(
            store,
            epoch,
            reading.kept,
            known,
            [*reading.ended, *reading.cancelled()],
            reading.garbage(epoch),
            is_lost=bool(start.stores.epoch) and start.stores.own != store,
            moved=list(reading.moved()),
            staying=list(reading.staying()),
            read=reading.records,
            reach=reach,
            last_named=reading.proved,
        )

    def _reach(self) -> PutReach | None:
        raw = self.restorer.find(self.tp, REACH_KEY)
        try:
            return None if raw is None else read_reach(raw)
        except ValueError as error:
            raise ConfigError(
                f"the store of {self.tp} has a record that this version cannot read: {error}",
                hint="start the version that wrote it, or a later one",
            ) from error


class Reading:
    """The content of the records read so far.

    Args:
        rules: Of the owner that reads, and those in the record of the owner that the commit names.
        note: Note of the local files, which may have messages whose records are not read.
    """

    def __init__(self, start: Start, named: int, rules: Sequence[VoidRule], note: Note | None = None) -> None:
        self._start = start
        self.named = named
        self.proved = note.place.epoch if note else NOBODY
        """The last epoch that, according to the changelog, a commit has named."""
        self._rules = rules
        self.note = note
        self.kept = note.kept if note else None
        self.has_place = False
        """With a note: whether the log has the record at its place, or a later one of that owner."""
        self.removed_to = 0
        """The owner that the commit names may have removed changes up to this offset."""
        self.records = 0
        self._rows: dict[bytes, Held] = {}
        """Messages that may be held, by their keys. They wait for others: most are removed soon after they were put."""
        self._nbytes = 0
        self.removed: set[bytes] = set()
        """With a note: keys of messages that were removed, or changed."""
        self.void: dict[bytes, None] = {}
        """Keys of messages that do not count, and would once a commit names the next epoch."""
        self.dropped: dict[bytes, VoidRule] = {}
        """Keys of messages that are left out, with the rule; they count for others until a commit names the epoch."""
        self.ended: list[MessageKey] = []
        """Messages that were given out, and removed later."""
        self._known: dict[bytes, None] = {}
        """Keys of the messages whose origins are known."""
        self._late: dict[bytes, None] = {}
        """Keys of messages that were due in the past when they were read."""
        self._all_late = note is None
        """Whether `_late` has all of them."""
        self._states: list[bytes] = []
        self._changes: dict[bytes, list[bytes]] = {}
        """Keys of changes by the key of their message; the last change counts."""
        self._moved_to: dict[bytes, int] = {}
        """Positions in the local files that are not those of the keys."""
        for position, keys in note.moved if note else ():
            self._changes[keys[0]], self._moved_to[keys[0]] = keys[1:], position

    @property
    def is_full(self) -> bool:
        """Whether enough messages wait to be given out."""
        return len(self._rows) >= ROWS_AT_ONCE or self._nbytes >= BYTES_AT_ONCE

    def given(self) -> list[Held]:
        """The messages that may be held, of those that were not given out yet."""
        rows = list(self._rows.values())
        self._rows, self._nbytes = {}, 0
        return rows

    def take_records(self, records: Sequence[ChangelogRecord]) -> None:
        """Take the next records.

        Raises:
            LaterError: The log records a later commit.
            ValueError: A record has another form.
        """
        self.records += len(records)
        if self.note is not None and not self.has_place and records:
            records = self._behind(self.note.place, records)
        for record in records:
            kind, value = kind_of(record.key), record.value
            if kind == MESSAGE and value is None:
                self._removed(record.key)
            elif kind == MESSAGE and value is not None:
                if (row := self._message(record, value)) is not None:
                    self._rows[record.key] = row
                    self._nbytes += _nbytes(row)
            elif kind == STATE and value is not None:
                self._state(record, value)
            elif kind == CHANGE:
                self._change(record)
            elif kind == REMOVAL and value is not None:
                self._removal(record, value)
            elif kind == PROOF and value is not None:
                self._proof(record, epoch_in(record.key))
            elif kind == VOID and value is not None:
                self._void_rules(record, value)

    def _behind(self, place: NotedPlace, records: Sequence[ChangelogRecord]) -> Sequence[ChangelogRecord]:
        """The records behind a place, whose own record the files have."""
        first = records[0]
        is_there = (first.offset, first.key) == (place.offset, place.key)
        self.has_place = is_there or any(is_of_owner(record, place.epoch) for record in records)
        return records[1:] if is_there else records

    def _removal(self, record: ChangelogRecord, value: bytes) -> None:
        epoch, offset = epoch_in(record.key), read_removal(value)
        if epoch == self.named:
            self.removed_to = offset
        if epoch <= self.named:
            self._states.append(record.key)

    def _state(self, record: ChangelogRecord, value: bytes) -> None:
        epoch, kept = epoch_in(record.key), read_state(value)
        if counts(self.named, record.offset, epoch):
            self.kept = kept
        if kept.is_proved:
            self._proof(record, epoch)
        elif epoch <= self.named:
            self._states.append(record.key)

    def _proof(self, record: ChangelogRecord, epoch: int) -> None:
        if epoch > self.named:
            raise LaterError(epoch)
        self.proved = max(self.proved, epoch)
        self._states.append(record.key)

    def _void_rules(self, record: ChangelogRecord, value: bytes) -> None:
        epoch, rules = epoch_in(record.key), read_void(value)
        if epoch == self.named and rules != self._rules[1:]:  # they are about messages that were read already
            raise LaterError(epoch, rules)
        if epoch <= self.named:
            self._states.append(record.key)

    def _change(self, record: ChangelogRecord) -> None:
        change = read_change(record.key, record.value)
        if record.value is None:
            self.void.pop(record.key, None)
            with suppress(KeyError, ValueError):  # of a change that was compacted away
                self._changes[change.message].remove(record.key)
        elif counts(self.named, record.offset, change.epoch):
            self._changes.setdefault(change.message, []).append(record.key)
            if self.note is not None:
                self.removed.add(change.message)
        elif change.epoch < self.named:
            self.void[record.key] = None

    def _message(self, record: ChangelogRecord, value: bytes) -> Held | None:
        _, position, epoch, origin = KEY.unpack(record.key)
        if not counts(self.named, record.offset, epoch):
            if epoch < self.named:
                self.void[record.key] = None
            return None
        lineage, held = read_message(record.key, value)
        start = self._start
        for rule in self._rules:
            if rule.voids(record.offset, lineage, position, origin):
                self.dropped[record.key] = rule
                return None
        if lineage == start.lineage and origin >= start.seen and position < PARKED_FROM:
            self._known[record.key] = None
        if position < start.now:
            if len(self._late) < LATE_MAX:
                self._late[record.key] = None
            else:
                self._all_late = False
        return held

    def _removed(self, key: bytes) -> None:
        if key in self.void:
            del self.void[key]
            return
        if self.dropped.pop(key, None) is not None:
            return
        self._known.pop(key, None)
        if self.note is not None:
            self.removed.add(key)
        if (row := self._rows.pop(key, None)) is not None:
            self._nbytes -= _nbytes(row)
            if self.note is None:  # it was never given out
                self._late.pop(key, None)
                return
        found = read_message_key(key)
        # Where the message itself was compacted away, nothing was given out.
        if found.position >= self._start.now or not self._all_late or key in self._late:
            self.ended.append(found)
        self._late.pop(key, None)

    @property
    def known(self) -> BitMap64:
        """The origins of the messages that the store has."""
        return BitMap64(read_message_key(key).origin for key in self._known)

    def cancelled(self) -> Iterator[MessageKey]:
        """Messages that were cancelled."""
        return (moved.message for moved in self._moved() if moved.position == CANCELLED)

    def moved(self) -> Iterator[Moved]:
        """Messages that were brought forward."""
        return (moved for moved in self._moved() if moved.position != CANCELLED)

    def _moved(self) -> Iterator[Moved]:
        for key, changes in self._changes.items():
            if changes:
                message = read_message_key(key)
                message = message._replace(position=self._moved_to.get(key, message.position))
                yield Moved(message, read_change(changes[-1], None).position, [key, *changes])

    def garbage(self, epoch: int) -> list[bytes]:
        """Keys that are not needed once a commit has named this epoch.

        They are those of messages that are left out, before those of the rules; of states, which that of this owner
        replaces; and of messages that were ended and not removed.
        """
        watermark = self.kept.watermark if self.kept is not None else 0
        ended = [key for key in self._late if read_message_key(key).position < watermark]
        of_owner = [epoch_key(kind, self.named) for kind in (STATE, REMOVAL)] if self.note else []
        cancelled = [key for keys in self._removable() if not self._must_stay(keys[0]) for key in keys]
        dropped = [*self.dropped, epoch_key(VOID, epoch)] if self.dropped else []
        return [*dict.fromkeys([*dropped, *self._states, *of_owner, *ended, *cancelled])]

    def staying(self) -> Iterator[list[bytes]]:
        """Keys of cancelled messages that are not garbage."""
        return (keys for keys in self._removable() if self._must_stay(keys[0]))

    def _removable(self) -> Iterator[list[bytes]]:
        yield from (keys for keys in (self.note.removable if self.note else ()) if keys[0] not in self.removed)
        yield from (moved.keys for moved in self._moved() if moved.position == CANCELLED)

    def _must_stay(self, key: bytes) -> bool:
        """Whether a cancelled message may be read again: it must be known until no owner reads it again."""
        return read_message_key(key).origin >= self._start.seen if self.note else key in self._known


def _nbytes(held: Held) -> int:
    return len(held.key or b"") + len(held.headers) + len(held.value or b"")
