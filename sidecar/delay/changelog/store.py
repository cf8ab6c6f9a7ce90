"""A store of delayed messages in a changelog, with the rows of the owned partitions on the local disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sidecar.core.records import TopicPartition
from sidecar.delay.changelog.appends import Appends
from sidecar.delay.changelog.cache import LocalCache
from sidecar.delay.changelog.interface import Changelog, ChangelogEntry
from sidecar.delay.changelog.notes import Note, changed, note_of
from sidecar.delay.changelog.owned import Owned
from sidecar.delay.changelog.proofs import Proofs
from sidecar.delay.changelog.records import (
    CANCELLED,
    KeptState,
    Moved,
    RecordLineage,
    change_entry,
    message_entry,
)
from sidecar.delay.changelog.takeover import TakenOver
from sidecar.delay.interface import Job, ReadRows, StorePlace
from sidecar.delay.rows import Held, Leave, held_of
from sidecar.errors import StateError

UNACKNOWLEDGED_BYTES_MAX = 32 << 20
"""Bytes on the way to the broker from which on no more are put."""
CACHE_CHANGES = 256
"""Changes after which the local files are written."""
SPARE_S = 600.0
"""How long files of partitions that are not taken over stay."""
NOT_OWNED = -1
"""The number of a partition that is not owned."""


class ChangelogWrites:
    """The durability of a `ChangelogStore`: what the broker has acknowledged, and the local files have."""

    in_place = True
    """Wherever the local files are: `broken` reports missing ones."""

    def __init__(self, cache: LocalCache, changelog: Changelog, appends: Appends, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._changelog = changelog
        self._appends = appends
        self._clock = clock
        self._spare_until_s: float | None = None
        self.note_left()

    def note_left(self) -> None:
        """Note that there are files of partitions that are not owned."""
        self._spare_until_s = self._spare_until_s or self._clock() + SPARE_S

    @property
    def changes(self) -> int:
        return self._appends.changes

    @property
    def synced(self) -> int:
        """The number of changes that are acknowledged, as are all before them."""
        return self._appends.synced

    @property
    def entered(self) -> int:
        """The same: what is acknowledged has entered the local files."""
        return self._appends.synced

    @property
    def broken(self) -> OSError | None:
        if self._changelog.broken:
            return OSError(self._changelog.broken)
        # The changelog has what the local disk has lost: this process cannot continue, and the next one restores it.
        return OSError(self._cache.loss) if self._cache.loss else self._cache.writes.broken

    def poll(self) -> None:
        """Handle acknowledgements."""
        self._appends.serve()

    def begin_sync(self) -> Job | None:
        """Begin work that the local files need now and then; nothing waits for it.

        Raises:
            StateError: The broker does not acknowledge anything, or the disk is full.
        """
        if reason := self._changelog.waiting or self._appends.problem:
            raise StateError(reason)
        local = self._cache.writes
        with suppress(StateError):  # `put` reports it if that lasts
            if self._spare_until_s is not None and self._clock() >= self._spare_until_s:
                self._cache.drop_spare()
                self._spare_until_s = None
            if local.changes - local.synced >= CACHE_CHANGES:
                return local.begin_sync()
        return None

    def ended_sync(self, job: Any, error: OSError | None) -> None:
        """Handle the end of a job: the changes are in the local files."""
        self._cache.writes.ended_sync(job, error)

    def sync(self) -> None:
        """Wait until everything is acknowledged; see `Appends.sync`."""
        self._appends.sync()


class ChangelogStore:
    """A `HeldStore`. Its changes are durable once the broker has acknowledged them. For the main thread.

    Args:
        cache: Has the rows of owned partitions, and those of an earlier process.
        clock: Seconds.
    """

    def __init__(self, cache: LocalCache, changelog: Changelog, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._changelog = changelog
        self._numbers: dict[bytes, int] = {}
        self._owned: dict[int, Owned] = {}
        self._appends = Appends(changelog, cache)
        self._proofs = Proofs(self._appends, cache)
        self.writes = ChangelogWrites(cache, changelog, self._appends, clock)

    @property
    def rows(self) -> ReadRows:
        """The local rows of owned partitions."""
        return self._cache.rows

    # Ownership

    def begin_partition(self, name: bytes) -> tuple[int, Note | None]:
        """A number for a partition that is being taken over, and the note if an earlier process left it here."""
        cache = self._cache
        if (number := cache.spare(name)) is not None:
            note = note_of(cache.notes(number), cache.kept(number))
            if note is not None:
                return number, note
        return cache.begin_partition(name), None

    def begin_anew(self, name: bytes, number: int) -> int:
        """Another number, which is empty; the rows of the first one do not count."""
        self._cache.use(number)
        self._cache.drop(number)
        return self._cache.begin_partition(name)

    def adopt(self, number: int, rows: list[Held]) -> None:
        """Take over messages.

        Raises:
            StateError: The disk is full.
        """
        self._cache.use(number)
        self._cache.adopt(number, rows)

    def abandon(self, number: int) -> None:
        """End a failed takeover; rows that an earlier process left stay for the next attempt."""
        if not self._cache.is_spare(number):
            self._cache.drop(number)

    def own(self, name: bytes, number: int, tp: TopicPartition, lineage: RecordLineage, taken_over: TakenOver) -> None:
        """Own a partition that was taken over; `lineage` is the source's, the rest as in `begin_partition`."""
        kept = taken_over.kept
        owned = Owned.of(name, number, tp, lineage, taken_over)
        self._cache.use(number)
        self._cache.learn(number, taken_over.known)
        if kept is not None:
            self._take_ended(number, owned, taken_over)
            self._cache.keep(number, kept.state, kept.watermark, kept.seen)
        for ended in taken_over.ended:
            self._cache.remove(number, ended.position, ended.epoch)
        self._numbers[name] = number
        self._owned[number] = owned
        for moved in taken_over.moved:
            self._move(number, owned, moved)
        groups = [*owned.moved.values(), *taken_over.staying]
        self._cache.note(number, {**dict.fromkeys(self._cache.notes(number)), **dict(map(changed, groups))})
        self._cache.own(number)

    def _take_ended(self, number: int, owned: Owned, taken_over: TakenOver) -> None:
        """Have the messages of the local files removed that were delivered, and perhaps not removed."""
        kept, moved = taken_over.kept, {each.message.position for each in taken_over.moved}
        if taken_over.note is not None and kept is not None:
            alone = [each for each in self._cache.ended(number, kept.watermark) if each.position not in moved]
            owned.note_taken(each for each in alone if owned.keys(each)[0] not in taken_over.removed)

    def _move(self, number: int, owned: Owned, moved: Moved) -> None:
        """Give a message that was adopted the position that it was given later."""
        message, position, keys = moved
        held = self._cache.rows.find(number, message.position)
        is_held = held is not None and (held.epoch, held.origin) == (message.epoch, message.origin)
        is_there = message.position == position
        if held is not None and is_held and not is_there:
            self._cache.cancel(number, message.position)
        watermark = 0 if owned.kept is None else owned.kept.watermark
        if held is not None and is_held and position >= watermark:
            if not is_there:
                self._cache.adopt(number, [held._replace(position=position)])
            owned.moved[position] = keys
        else:
            owned.garbage += keys

    def is_proved(self, name: bytes) -> bool:
        """Whether all later owners will know the epoch of an owned partition."""
        return self._owned[self._numbers[name]].is_proved

    def lost(self) -> Mapping[TopicPartition, str]:
        """The owned partitions that must be taken over again, with the reason."""
        doubted = [owned.tp for owned in self._owned.values() if owned.is_doubted]
        return dict.fromkeys(doubted, "another process wrote to its changelog during the takeover") | dict.fromkeys(
            self._appends.lost, "another process has claimed its delayed messages"
        )

    def leave(self, number: int) -> None:
        """Leave a partition that is no longer owned: other owners have its messages, unless it comes back."""
        owned = self._owned.pop(number, None)
        if owned is not None:
            del self._numbers[owned.name]
            self._appends.leave(owned)
            self._cache.leave(number)
            self.writes.note_left()

    def place(self, number: int) -> StorePlace:
        """Where the messages of a partition are: all its owners have the same."""
        owned = self._owned[number]
        return StorePlace(owned.store, f"{owned.store:x}.{owned.tp.partition}", owned.epoch)

    # Partitions

    def number(self, name: bytes) -> int:
        """The number of an owned partition; `NOT_OWNED` of any other."""
        return self._numbers.get(name, NOT_OWNED)

    # Messages

    def put(self, number: int, rows: Iterable[Held]) -> Sequence[int]:
        self._check_room()
        owned = self._owned[number]
        epoch, lineage = owned.epoch, owned.lineage
        rows = [held_of((wanted, origin, epoch, *rest)) for wanted, origin, _, *rest in rows]
        positions = self._cache.put(number, rows)
        placed = (held_of((position, *row[1:])) for position, row in zip(positions, rows, strict=True))
        entries = [message_entry(lineage, held) for held in placed]
        entries += owned.put(row.origin for row in rows)
        self._appends.append(owned, entries, lowest=min(positions))
        return positions

    def park(self, number: int, part: Held) -> None:
        self._check_room()
        owned = self._owned[number]
        held = part._replace(epoch=owned.epoch)
        self._cache.park(number, held)
        self._appends.append(owned, [message_entry(owned.lineage, held)])

    def _check_room(self) -> None:
        if self._appends.problem:
            raise StateError(self._appends.problem)
        if (waiting := self._appends.waiting_bytes) > UNACKNOWLEDGED_BYTES_MAX:
            raise StateError(f"the broker has not acknowledged {waiting} bytes of delayed messages yet")

    def _check_cache(self) -> None:
        if self._cache.rows.damages:
            raise StateError(self._cache.loss)

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> Sequence[Held]:
        """The next messages below a position, in order; none that is not acknowledged. See `HeldStore`.

        Raises:
            StateError: A local file cannot be read, or is damaged.
        """
        owned = self._owned[number]
        held = self._cache.take_due(number, min(until, self._appends.lowest(owned)), limit, nbytes, leave)
        self._check_cache()
        owned.note_taken(held)
        return held

    def rewind(self, number: int) -> None:
        self._owned[number].rewind()
        self._cache.rewind(number)

    def cancel(self, number: int, position: int) -> bool:
        """End a message that was not taken; return whether there was one.

        It stays ended once that is acknowledged, and a commit that began later has succeeded: then call
        `forget_cancelled`.

        Raises:
            StateError: A local file cannot be read.
        """
        held, owned = self._cache.rows.find(number, position), self._owned[number]
        if held is None or not self._cache.cancel(number, position):
            return False
        owned.cancelled[position] = self._change(owned, held, CANCELLED, position)
        owned.moved.pop(position, None)
        return True

    def cancel_named(self, number: int, lowest: int, names: Mapping[bytes, int]) -> Iterator[Sequence[Held]]:
        owned = self._owned[number]
        for found in self._cache.cancel_named(number, lowest, names):
            changes: list[ChangelogEntry] = []
            for held in found:
                keys = owned.keys(held)
                changes.append(change_entry(keys[0], owned.epoch, CANCELLED))
                owned.cancelled[held.position] = [*dict.fromkeys([*keys, changes[-1].key])]
                owned.moved.pop(held.position, None)
            if changes:
                self._cache.note(number, dict(changed(owned.cancelled[held.position]) for held in found))
                self._appends.append(owned, changes, lowest=min(held.position for held in found))
            yield found

    def forget_cancelled(self, number: int, positions: Iterable[int]) -> None:
        """Remove cancelled messages: all later owners know of the cancellation."""
        owned = self._owned[number]
        owned.withheld += [keys for position in positions if (keys := owned.cancelled.pop(position, None))]
        self._proofs.remove_changed(owned)

    def is_moving(self, number: int) -> bool:
        return self._owned[number].moving > 0

    def release(self, number: int, position: int, due_ms: int) -> int | None:
        held, owned = self._cache.rows.find(number, position), self._owned[number]
        earlier = self._cache.release(number, position, due_ms)
        if held is not None and earlier is not None and earlier != position:
            owned.moving += 1
            owned.moved[earlier] = self._change(owned, held, earlier, earlier, partial(_moved, owned))
            owned.moved.pop(position, None)
        return earlier

    def _change(
        self, owned: Owned, held: Held, position: int, lowest: int, then: Callable[[int], None] | None = None
    ) -> list[bytes]:
        """Append a change of a message; return all of its keys."""
        keys = owned.keys(held)
        change = change_entry(keys[0], owned.epoch, position)
        keys = [*dict.fromkeys([*keys, change.key])]
        self._cache.note(owned.number, dict([changed(keys)]))
        self._appends.append(owned, [change], then, lowest)
        return keys

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        """Keep a state; end the messages below its watermark, and put none below `seen`.

        Raises:
            StateError: A local file cannot be read, or is damaged.
        """
        owned = self._owned[number]
        self._check_cache()
        self._cache.keep(number, state, watermark, seen)
        self._check_cache()
        owned.kept = KeptState(owned.is_named, watermark, seen, state)
        if owned.is_named or owned.reach is None:  # the last owner's is there, and no void one may follow it
            self._proofs.keep(owned)

    def floor(self, number: int, origin: int) -> None:
        """Forget the origins below this one, which the source's commit has."""
        self._cache.floor(number, origin)
        if (owned := self._owned.get(number)) is not None:
            self._proofs.read_on(owned, origin)

    def committed(self, number: int, watermark: int) -> None:
        if (owned := self._owned.get(number)) is not None:
            self._proofs.end_below(owned, watermark)

    def void(self, number: int, first: int, end: int, *, restarts: bool = False) -> None:
        """Do nothing: the takeover has left out messages that are read again, or that others void."""


def _moved(owned: Owned, _: int) -> None:
    owned.moving -= 1
