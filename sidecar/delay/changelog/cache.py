"""The rows of a changelog's owned partitions on the local disk. Knows no changelog.

A change of an owned partition is *prepared* at once: it has its positions, and memory counts it. It *enters* the files
once the changelog has acknowledged it; the last change of an append has a note in its write, which says up to where the
files have the changelog. Until then its messages are on the way: those that it adds are not found, nor those that it
removes. So the files never have more than the changelog, and a start finds no less than the last note says.
"""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sidecar import files
from sidecar.delay.database import DAMAGED, ROWS, has_files
from sidecar.delay.interface import LISTED_MAX
from sidecar.delay.partition import NOTHING, HeldPartition, Write
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.rows import POSITION_MAX, Held, Kind, ListedRow, number_in, position_in, prefix, unpacked
from sidecar.delay.stored import IDENTITY
from sidecar.errors import StateError
from sidecar.state.folder import LOCK_FILE

_PLACE = b""
"""The key of the note without which a start drops a partition."""


class LocalCache(PartitionStore):
    """A `HeldStore`. Files that are damaged or incomplete are removed: all that they have is in the changelog.

    Partitions come from other hosts, and go to them. Positions are unique in a partition, but several messages may be
    adopted at one, until all but one are removed. What was left is *spare* until it is used.

    Args:
        path: A folder that no other process uses.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    is_only = False

    def _open(self, path: Path) -> None:
        self._noted: set[int] = set()
        """Partitions that have the note."""
        self._owned: set[int] = set()
        """Partitions whose changes wait."""
        self._prepared: dict[int, list[Write]] = {}
        """Changes since `prepared` was called."""
        self._way = Counter[int]()
        """Numbers of changes that have not entered, by partition."""
        self._ending: set[tuple[int, int]] = set()
        """Partitions and positions of messages that changes on the way remove one by one."""
        self._parking: dict[tuple[int, int], Held] = {}
        """Parked parts on the way."""
        self._removed_below = Counter[int]()
        """Positions below which the rows of ended messages are removed."""
        try:
            is_known = (path / IDENTITY).exists() or not has_files(path / ROWS)
            if is_sound := is_known and not (path / DAMAGED).exists():
                super()._open(path)
                is_sound = not self.damages
                self._find_spare()
        except (OSError, StateError, ValueError, LookupError, struct.error):
            is_sound = False
        if not is_sound:
            self._clear(path)
            super()._open(path)

    def _find_spare(self) -> None:
        for number in list(self._partitions):
            if self._database.get(prefix(Kind.NOTE, number) + _PLACE) is None:
                self.drop(number)
            else:
                self._noted.add(number)

    def _clear(self, path: Path) -> None:
        if hasattr(self, "_database"):
            self._database.close()
        self.damages.clear()
        self._noted.clear()
        for each in path.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != LOCK_FILE:
                files.remove(each)

    # Changes on the way

    def own(self, number: int) -> None:
        """Let the changes of a partition wait for `enter` from now on."""
        self._owned.add(number)

    def _send(self, partition: HeldPartition, change: Write) -> None:
        if partition.number not in self._owned:
            super()._send(partition, change)
            return
        self._prepared.setdefault(partition.number, []).append(change)
        self._ending |= {(partition.number, position_in(key)) for key in change.ended}

    def prepared(self, number: int) -> Sequence[Write]:
        """The changes of an owned partition since the last call."""
        changes = self._prepared.pop(number, [])
        self._way[number] += len(changes)
        return changes

    def enter(self, number: int, changes: Sequence[Write], place: bytes | None) -> None:
        """Write changes that were prepared, in this order, the last one with a note; without one, there is none.

        Raises:
            StateError: The disk cannot be written; a later call with the same arguments tries again.
        """
        writes = changes or [Write()]
        if place is not None:
            writes[-1].batch.put(prefix(Kind.NOTE, number) + _PLACE, place)
            self._noted.add(number)
        elif number in self._noted:
            writes[-1].batch.delete(prefix(Kind.NOTE, number) + _PLACE)
        elif not changes:
            return
        for change in writes:
            self._database.write(change.batch, change.ended_bytes)
        if place is None:
            self._noted.discard(number)
        self._way[number] -= len(changes)
        partition = self._partitions[number]
        for change in changes:
            if change.lowest < NOTHING and (partition.following is None or change.lowest < partition.following):
                partition.following = change.lowest
            self._ending.difference_update((number, position_in(key)) for key in change.ended)
            if change.parked is not None:
                del self._parking[number, change.parked]

    def _last(self, number: int) -> Write:
        """The change that was prepared last."""
        prepared = self._prepared.setdefault(number, [])
        if not prepared:
            prepared.append(Write())
        return prepared[-1]

    def _rare_place(self, partition: HeldPartition, due_ms: int, given: Sequence[int], last: dict[int, int]) -> int:
        if self._way[partition.number] or partition.number in self._prepared:  # it looks at what is written
            raise StateError("more than a million messages are due within an hour: the broker has not acknowledged all")
        return super()._rare_place(partition, due_ms, given, last)

    def park(self, number: int, part: Held) -> None:
        super().park(number, part)
        if number in self._owned:
            self._last(number).parked = part.position
            self._parking[number, part.position] = part

    def find(self, number: int, position: int) -> Held | None:
        return self._parking.get((number, position)) or super().find(number, position)

    def cancel(self, number: int, position: int) -> bool:
        if (number, position) in self._parking:
            raise StateError("the broker has not acknowledged a parked part yet that is to be removed")
        return super().cancel(number, position)

    def parked(self, number: int) -> list[Held]:
        found = [each for each in super().parked(number) if (number, each.position) not in self._ending]
        way = (part for (of, _), part in self._parking.items() if of == number)
        return [*found, *(part._replace(value=None) for part in way)]

    def listed(
        self, number: int, first: int = 0, end: int = POSITION_MAX, limit: int = LISTED_MAX, origin: int | None = None
    ) -> list[ListedRow]:
        found = super().listed(number, first, end, limit, origin)
        return [each for each in found if (number, each.position) not in self._ending]

    def _found(self, partition: HeldPartition, position: int) -> list[tuple[bytes, bytes]]:
        return [] if (partition.number, position) in self._ending else super()._found(partition, position)

    def _named(self, key: bytes, name: bytes, below: int) -> tuple[bytes, bytes] | None:
        found = super()._named(key, name, below)
        return None if found and (number_in(key), position_in(found[0])) in self._ending else found

    def _note_put(self, lowest: int) -> None:
        """Do nothing: `unsynced` does not ask."""

    # Notes

    def note(self, number: int, notes: Mapping[bytes, bytes | None]) -> None:
        """Keep notes, with the change that was prepared last; None removes one."""
        batch = self._last(number).batch if number in self._owned else Write().batch
        for key, value in notes.items():
            if value is None:
                batch.delete(prefix(Kind.NOTE, number) + key)
            else:
                batch.put(prefix(Kind.NOTE, number) + key, value)
        if number not in self._owned:
            self._database.write(batch)

    def notes(self, number: int) -> dict[bytes, bytes]:
        """The notes of a partition, by their keys.

        Raises:
            StateError: A file cannot be read.
        """
        start = prefix(Kind.NOTE, number)
        with self._database.errors("read"):
            return {key[len(start) :]: value for key, value in self._under(start)}

    # Ended messages

    def _remove_range(self, change: Write, first: bytes, end: bytes) -> None:
        """Do nothing: their rows stay until `forget_below`."""

    def ended(self, number: int, watermark: int) -> Iterator[Held]:
        """Messages below a position whose rows are there, without their content.

        Raises:
            StateError: A file cannot be read.
        """
        partition = self._partitions[number]
        with self._database.errors("read"):
            for row in self._under(partition.rows, partition.rows, partition.at(watermark)):
                yield unpacked(*row, lambda _: True)

    def forget_below(self, number: int, position: int) -> None:
        """Remove the rows of ended messages, with the change that was prepared last."""
        partition = self._partitions[number]
        first, self._removed_below[number] = partition.at(self._removed_below[number]), position
        self._last(number).batch.delete_range(first, partition.at(position))

    # Partitions

    def kept(self, number: int) -> tuple[int, int, bytes] | None:
        """Watermark, mark and state that were kept last."""
        partition = self._partitions[number]
        return None if partition.state is None else (partition.watermark, partition.mark, partition.state)

    def spare(self, name: bytes) -> int | None:
        """A spare partition of this name."""
        named = (number for each, number in self._numbers.items() if each.rpartition(b"\0")[0] == name)
        return next(filter(self.is_spare, named), None)

    def is_spare(self, number: int) -> bool:
        return number in self._noted and number not in self._owned

    def use(self, number: int) -> None:
        """Use a partition: it is changed, so its note no longer holds.

        Raises:
            StateError: The disk cannot be written.
        """
        if number in self._noted:
            self.note(number, {_PLACE: None})
            self._noted.discard(number)

    def drop_spare(self) -> None:
        for number in filter(self.is_spare, list(self._partitions)):
            self.drop(number)

    def begin_partition(self, name: bytes) -> int:
        """The number of a new partition."""
        return self.number(b"%s\0%d" % (name, self._free))

    def leave(self, number: int) -> None:
        """Have a partition as the files have it, which is spare then: what is on the way may never enter.

        Raises:
            StateError: A file cannot be read, or the disk cannot be written.
        """
        if number not in self._noted:
            self.drop(number)
            return
        self._forget_way(number)
        with self._database.errors("read"):
            raw = self._database.get(self._partitions[number].key)
            self._waiting_bytes -= self._partitions[number].nbytes
            partition = self._partitions[number] = HeldPartition.decoded(number, raw or b"")
            self._add_counts(prefix(Kind.COUNT, number), self._folder.path)
            self._waiting_bytes += partition.nbytes

    def drop(self, number: int) -> None:
        self._noted.discard(number)
        self._forget_way(number)
        super().drop(number)

    def _forget_way(self, number: int) -> None:
        self._owned.discard(number)
        self._prepared.pop(number, None)
        del self._way[number], self._removed_below[number]
        self._ending = {each for each in self._ending if each[0] != number}
        self._parking = {each: part for each, part in self._parking.items() if each[0] != number}

    def _counted(self) -> Iterable[HeldPartition]:
        return (each for number, each in self._partitions.items() if not self.is_spare(number))

    def remove(self, number: int, position: int, epoch: int) -> bool:
        """End the message that was adopted with this epoch, and not taken; return whether there was one.

        Raises:
            StateError: The disk cannot be read or written.
        """
        partition = self._partitions[number]
        with self._database.errors("read"):
            found = [pair for pair in self._found(partition, position) if pair[0].endswith(epoch.to_bytes(8, "big"))]
        return position >= partition.cursor and self._end(partition, found)

    @property
    def unsynced(self) -> int | None:
        """Nothing waits for this disk: the broker has it."""
        return None

    @property
    def loss(self) -> str:
        """Why the files can no longer be used; empty if they can."""
        for damage in self.damages:
            return f"the local copy of delayed messages is damaged, and is restored at the next start: {damage.path}"
        if not self._database.in_place:
            return "the local copy of delayed messages was moved or removed, and is restored at the next start"
        return ""

    def close(self) -> None:
        """Free the folder. Files that can no longer be used are not used again."""
        is_lost = bool(self.loss or self._database.broken)
        self._database.close()
        if is_lost:
            with suppress(OSError):
                files.remove(self._folder.path / IDENTITY)
        self._folder.close()
