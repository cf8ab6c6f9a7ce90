"""Holds the messages of several partitions on a local disk until they are due: the store of the daemon.

It has no thread and no clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyroaring import BitMap64

from sidecar import files
from sidecar.delay.adoption import Adoption
from sidecar.delay.disk.blocks import DUE_MAX_MS, ORIGIN_MAX, POSITION_MAX, PUT_BYTES_MAX, Held, Leave
from sidecar.delay.disk.changes import Kind, placed
from sidecar.delay.disk.filename import is_unused, logs_of, refuse_unknown
from sidecar.delay.disk.hour import FileDamage
from sidecar.delay.disk.hours import PARKED_HOUR
from sidecar.delay.disk.listing import HourView, ListedRow
from sidecar.delay.disk.snapshot import Snapshot, StoredPartition
from sidecar.delay.disk.wal import CHECKPOINT
from sidecar.delay.interface import LISTED_MAX, Row, StorePlace
from sidecar.delay.journal import StoreJournal, SyncJob
from sidecar.delay.lanes import PartitionReaders
from sidecar.delay.names.cancels import NamedMessages
from sidecar.delay.readers import PartitionReader
from sidecar.delay.replay import CANCEL, FORGET, KEEP, Replay
from sidecar.errors import StateError
from sidecar.state.folder import StateFolder


class Writes:
    """`StoreWrites` of a store: changes are durable after a job, which any thread can run."""

    _folder: StateFolder
    _journal: StoreJournal

    @property
    def changes(self) -> int:
        """Number of changes so far: calls of `put`, `keep`, `cancel`, and new names."""
        return self._journal.progress.changes

    @property
    def synced(self) -> int:
        return self._journal.progress.synced

    @property
    def broken(self) -> OSError | None:
        return self._journal.broken

    @property
    def unsynced(self) -> int | None:
        """The lowest position of a message that is not durable; `take_due` does not reach it."""
        return self._journal.progress.unsynced

    def poll(self) -> None:
        """Do nothing: `ended_sync` reports durable changes."""

    def begin_sync(self) -> SyncJob | None:
        """Return a job that makes all changes so far durable; `ended_sync` must follow.

        None if all of them are durable, or a job has not ended. The job may also work on a checkpoint.

        Raises:
            StateError: The disk is full or broken; changes in memory are kept. After a full disk, the next call tries
                again. After an error while something was made durable, each call fails: open the store again.
        """
        with self._folder.errors("write"):
            return self._journal.begin_sync()

    def ended_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Count the changes before a job as durable, unless it failed with an error.

        A checkpoint that could not be written is tried again by a later job.
        """
        self._journal.ended(job, error)

    def sync(self) -> None:
        with self._folder.errors("write"):
            self._journal.sync()

    def in_place(self) -> bool:
        """Whether the log is where it was made: if not, writes to it are lost."""
        return self._journal.in_place


PARTITIONS_MAX = 1 << 16


class PartitionStore(Writes, Adoption, NamedMessages):
    """A `HeldStore` in files: holds messages until they are due. For one thread of one process, but for its jobs.

    Each partition has its own reader: a cursor, which begins at the partition's watermark.

    Args:
        path: A folder; created if it is missing.

    Raises:
        StateError: The folder cannot be used, or another process uses it.
    """

    def __init__(self, path: Path) -> None:
        self._folder = StateFolder(path)
        self.damages: list[FileDamage] = []
        """Damage found since the start."""
        try:
            with self._folder.errors("read"):
                self._open(path)
        except StateError:
            self._folder.close()
            raise

    def _open(self, path: Path) -> None:
        snapshot, logs = self._checkpoint(path), logs_of(path)
        self.id = snapshot.id
        """48 random bits that were drawn when the folder was new."""
        self._names = {partition.name: number for number, partition in enumerate(snapshot.partitions)}
        lanes = [lane_of(partition) for partition in snapshot.partitions]
        self._lanes = PartitionReaders(path, snapshot.hours, snapshot.mark, snapshot.left, lanes, self.damages)
        replay = Replay(self._lanes, self._register, self.damages)
        is_changed = replay.run(self._repeated(snapshot, logs))
        self._journal = StoreJournal(path, max([*logs, snapshot.log]) + 1, self._lanes, self._snapshot)
        self._follow(logs, is_changed=is_changed)

    def _repeated(self, snapshot: Snapshot, logs: Mapping[int, Path]) -> Iterable[tuple[Path, int | None]]:
        """The logs that a start repeats, each with its durable bytes, None if they are not known."""
        return [(log, None) for number, log in logs.items() if number >= snapshot.log]

    def _follow(self, logs: Mapping[int, Path], *, is_changed: bool) -> None:
        """Remove the logs, after a checkpoint if anything was repeated."""
        if is_changed:
            self._journal.save(list(logs.values()), 0)
            self._journal.finish()
        for log in logs.values():
            files.remove(log)

    def _checkpoint(self, path: Path) -> Snapshot:
        refuse_unknown(path)
        raw = files.read_from(path / CHECKPOINT)
        if raw is None and is_unused(path):
            snapshot = Snapshot(secrets.randbits(48), 0, 0, [], {}, {})
            files.put(path / CHECKPOINT, snapshot.encoded())
            return snapshot
        return read_snapshot(path / CHECKPOINT, raw or b"")

    def _snapshot(self, log: int) -> Snapshot:
        lanes = self._lanes
        partitions = [
            StoredPartition(name, lane.state, lane.watermark, lane.floor, lane.known.copy())
            for name, lane in zip(self._names, lanes.lanes, strict=True)
        ]
        return Snapshot(self.id, log, lanes.mark, partitions, lanes.known(), lanes.left.copy())

    def _register(self, name: bytes) -> int:
        number = self._names[name] = len(self._names)
        self._lanes.lanes.append(PartitionReader())
        return number

    # Partitions

    def number(self, name: bytes) -> int:
        """The number of a partition; a new one is permanent, and durable with the next sync.

        Raises:
            StateError: There are too many.
        """
        number = self._names.get(name)
        if number is not None:
            return number
        if len(self._names) == PARTITIONS_MAX:
            raise StateError(
                f"delayed messages: {self._folder.path} has {PARTITIONS_MAX} partitions, and can have no more",
                hint="let this sidecar read fewer topics, or begin with another folder when it holds nothing",
            )
        self._journal.record.add_section(Kind.NAME, name)
        self._journal.progress.note()
        return self._register(name)

    def names(self) -> Mapping[bytes, int]:
        """The numbers of all partitions."""
        return self._names

    def place(self, number: int) -> StorePlace:
        return StorePlace(self.id, f"{self.id:x}.{number}")

    def committed(self, number: int, watermark: int) -> None:
        """Do nothing: a kept state counts at once."""

    def leave(self, number: int) -> None:
        """Do nothing: held messages stay here."""

    def forget_cancelled(self, number: int, position: int) -> None:
        """Do nothing: cancelled messages are ended already."""

    def state(self, number: int) -> bytes | None:
        return self._lanes.lanes[number].state

    def known(self, number: int) -> BitMap64:
        return self._lanes.lanes[number].known.copy()

    def held(self, number: int) -> int:
        """Number of messages that are not ended, without parked parts."""
        lanes = self._lanes
        parked = sum(lanes.left.get(number, hour) for hour in lanes.left.hours(number) if hour >= PARKED_HOUR)
        return lanes.lanes[number].held - parked

    def hours(self) -> dict[int, int]:
        return self._lanes.left.totals()

    def disk_bytes(self) -> int:
        """Bytes of the files of hours and of the logs."""
        return self._lanes.nbytes + self._journal.nbytes

    # Messages

    def put(self, number: int, rows: Iterable[Row]) -> list[int]:
        """Hold messages; return their positions, which are above all that were taken, or `seen`.

        Raises:
            ValueError: A number is out of range, or there are too many bytes; nothing is held.
            StateError: The disk cannot be written, and memory is full; nothing is held.
        """
        rows = list(rows)
        if not rows:
            return []
        _check(rows)
        self._make_room()
        new = (
            (due_ms, origin, epoch, number, stamp, tags, key, headers, value)
            for due_ms, origin, epoch, stamp, tags, key, headers, value in rows
        )
        positions = self._lanes.put(number, new, self._journal.record.puts)
        self._lanes.lanes[number].learn(row[1] for row in rows)
        self._journal.progress.note(min(positions))
        return positions

    def take_due(self, number: int, until: int, limit: int, nbytes: int, leave: Leave | None = None) -> list[Held]:
        """The partition's next messages in the order of positions. Each is returned once, unless `rewind` is called.

        Args:
            until: The position below which messages are taken; below `unsynced` in any case.
            limit: The most that are taken.
            nbytes: The most that their payloads have together; one is taken nevertheless.
            leave: Says which messages are left unread.

        Raises:
            StateError: A file cannot be read.
        """
        unsynced = self.unsynced
        with self._folder.errors("read"):
            until = until if unsynced is None else min(until, unsynced)
            return self._lanes.take_due(number, until, limit, nbytes, leave)

    def next(self, number: int) -> int | None:
        """A position below which the partition has nothing to take; None if there is nothing at all.

        It is the start of an hour until the hour's first message is asked for.
        """
        return self._lanes.next(number)

    def rewind(self, number: int) -> None:
        self._lanes.rewind(number)

    def find(self, number: int, position: int) -> Held | None:
        """A message that was not cancelled, taken or not, as long as its row is in a file.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._folder.errors("read"):
            return self._lanes.find(number, position)

    def keep(self, number: int, state: bytes, watermark: int, seen: int) -> None:
        """Keep the state of a partition.

        Args:
            watermark: All of its messages below this position are ended; a lower one than before changes nothing.
            seen: No message of any partition is put at or below this position.

        Raises:
            StateError: The watermark is above all that was taken, and the file of its hour cannot be read.
        """
        lanes = self._lanes
        with self._folder.errors("read"):
            lanes.end_below(number, watermark)
        lanes.mark = max(lanes.mark, seen, watermark - 1)
        lane = lanes.lanes[number]
        lane.state = state
        self._journal.record.add_section(Kind.KEEP, KEEP.pack(number, lane.watermark, lanes.mark, lane.floor) + state)
        self._journal.progress.note()

    def floor(self, number: int, origin: int) -> None:
        """Forget the origins below this one, durably with the next `keep` or checkpoint: they are not put again."""
        self._lanes.lanes[number].forget_origins(origin)

    def void(self, number: int, first: int, end: int) -> None:
        """Forget the origins in [first, end), and end their messages; the cursor goes back as with `rewind`.

        Raises:
            StateError: A file cannot be read.
        """
        with self._folder.errors("read"):
            ended = self._lanes.void(number, first, end)
        for position in ended:
            self._journal.record.add_section(Kind.CANCEL, CANCEL.pack(number, position))
        self._forget(number, first, end)

    def restart(self, number: int, origin: int | None) -> None:
        """Forget all origins; end the messages from an origin on, if one is given.

        Raises:
            StateError: A file cannot be read.
        """
        if origin is not None:
            self.void(number, origin, ORIGIN_MAX)
        self._lanes.lanes[number].floor = 0
        self._forget(number, 0, ORIGIN_MAX)

    def _forget(self, number: int, first: int, end: int) -> None:
        self._lanes.lanes[number].known.remove_range(first, end)
        self._journal.record.add_section(Kind.FORGET, FORGET.pack(number, first, end))
        self._journal.progress.note()

    def cancel(self, number: int, position: int) -> bool:
        """End a message at or above the cursor; return whether there was one.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        with self._folder.errors("read"):
            is_ended = self._lanes.cancel(number, position)
        if is_ended:
            self._journal.record.add_section(Kind.CANCEL, CANCEL.pack(number, position))
            self._journal.progress.note()
        return is_ended

    def unpark(self, number: int, position: int, epoch: int, origin: int) -> None:  # noqa: ARG002  # where owners share
        """Remove a parked part.

        Raises:
            StateError: The file of its hour cannot be read.
        """
        self.cancel(number, position)

    def release(self, number: int, position: int, due_ms: int) -> int | None:
        """Bring a message at or above the cursor forward; durable with the next write, as a whole.

        Returns:
            Its new position, the same if it is due earlier anyway; None if there is no such message.

        Raises:
            StateError: The file of its hour cannot be read; or the disk cannot be written, and memory is full.
        """
        held = self.find(number, position)
        if held is None or position < self._lanes.lanes[number].cursor:
            return None
        earlier = self._lanes.new_position(due_ms)
        if earlier < position:
            self.adopt(number, [placed(held, earlier)])
            self.cancel(number, position)
        return min(earlier, position)

    def listed(
        self, number: int, first: int = 0, end: int = POSITION_MAX, limit: int = LISTED_MAX, origin: int | None = None
    ) -> list[ListedRow]:
        """Messages that were not taken, in order. Payloads are not read.

        Args:
            end: The position behind the last.
            limit: The most that are returned.
            origin: The only origin, if one is given.

        Raises:
            StateError: A file cannot be read.
        """
        with self._folder.errors("read"):
            return self._lanes.listed(number, first, end, limit, origin)

    def views(self, lowest: Mapping[int, int], end: int) -> Sequence[HourView]:
        with self._folder.errors("read"):
            return self._lanes.views(lowest, end)

    def close(self) -> None:
        """Make everything durable, and free the folder; the next start has nothing to repeat.

        Raises:
            StateError: See `begin_sync`; the folder is free nevertheless.
        """
        try:
            with self._folder.errors("write"):
                self._journal.finish()
        finally:
            self._journal.close()
            self._folder.close()


def read_snapshot(path: Path, raw: bytes) -> Snapshot:
    """The checkpoint of a store.

    Raises:
        StateError: It is damaged, missing, or of another version.
    """
    try:
        return Snapshot.decoded(raw)
    except ValueError as error:
        raise StateError(
            f"delayed messages: {path} cannot be used: {error}",
            hint="restore the folder; or move it away, and the messages that it holds are lost",
        ) from error


def lane_of(partition: StoredPartition) -> PartitionReader:
    """A partition as a checkpoint has it."""
    lane = PartitionReader()
    _, lane.state, lane.watermark, lane.floor, lane.known = partition
    return lane


def _check(rows: list[Row]) -> None:
    columns: list[tuple[str, list[int], int]] = [
        ("due_ms", [row[0] for row in rows], DUE_MAX_MS),
        ("origins", [row[1] for row in rows], ORIGIN_MAX),
        ("epochs", [row[2] for row in rows], ORIGIN_MAX),
    ]
    for name, numbers, most in columns:
        if not 0 <= min(numbers) <= max(numbers) <= most:
            raise ValueError(f"{name} lie between 0 and {most}, unlike those from {min(numbers)} to {max(numbers)}")
    nbytes = sum(len(key or b"") + len(headers) + len(value or b"") for *_, key, headers, value in rows)
    if nbytes > PUT_BYTES_MAX:
        raise ValueError(f"{nbytes} bytes at once, {PUT_BYTES_MAX} can be put")
